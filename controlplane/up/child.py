"""Become another program that cannot outlive its parent: `python -I -S child.py PARENT SIGNAL ACCOUNT -- ARGV`.

A program of its own instead of a `preexec_fn`, which runs between fork and exec where a lock of another thread may be
held for ever. Standard library only, because it starts before anything of ours is importable.
"""

import ctypes
import os
import pwd
import sys

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Drop to ACCOUNT ("" keeps ours), ask for SIGNAL when process PARENT dies, and exec ARGV."""
    parent, death_signal, account, separator, *argv = arguments
    assert separator == "--"
    if account:
        entry = pwd.getpwnam(account)
        os.initgroups(account, entry.pw_gid)
        os.setgid(entry.pw_gid)
        os.setuid(entry.pw_uid)
    # After the change of user: the kernel forgets the request when credentials change.
    if sys.platform == "linux" and ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(death_signal)):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != int(parent):
        sys.exit("child: the parent died first")
    os.execvp(argv[0], argv)


if __name__ == "__main__":
    main(sys.argv[1:])
