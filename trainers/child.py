"""Processes that cannot outlive the one that started them: on Linux the kernel signals them when it dies.

A process asks for itself (`die_with_parent`), or a program is started that asks and then becomes another one:
`python -I -S child.py PARENT SIGNAL ACCOUNT -- ARGV`. That spares a `preexec_fn`, which runs between fork and exec
where a lock of another thread may be held for ever. Standard library only, because `-I -S` leaves nothing else.
"""

import ctypes
import os
import pwd
import signal
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_prctl = getattr(ctypes.CDLL(None, use_errno=True), "prctl", None)
"""Of Linux alone. Looked up here, so that nothing is loaded between fork and exec."""


def die_with_parent(signum: int = signal.SIGKILL, parent: int | None = None) -> None:
    """Ask Linux to signal this process when its parent dies; elsewhere do nothing. Returns only while it lives.

    `parent` is who started us, for a caller that may already have been orphaned: without it, whoever is above us now.
    The kernel means the *thread* that forked us, and forgets the request when our credentials change.
    """
    if _prctl is None:
        return
    parent = os.getppid() if parent is None else parent
    if _prctl(_PR_SET_PDEATHSIG, int(signum), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # it died before the request
        os.kill(os.getpid(), signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of every process below us whose own parent dies, to find and to reap it. Linux only."""
    if _prctl is not None and _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def main(arguments: list[str]) -> None:
    """Drop to ACCOUNT ("" keeps ours), ask for SIGNAL when process PARENT dies, and exec ARGV."""
    parent, death_signal, account, separator, *argv = arguments
    assert separator == "--"
    if account:
        entry = pwd.getpwnam(account)
        os.initgroups(account, entry.pw_gid)
        os.setgid(entry.pw_gid)
        os.setuid(entry.pw_uid)
    die_with_parent(int(death_signal), int(parent))
    os.execvp(argv[0], argv)


if __name__ == "__main__":
    main(sys.argv[1:])
