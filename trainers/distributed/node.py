"""One node of a trainer that has several: `python -m trainers.distributed.node`, once on each node.

It starts the node's ranks and ends them together, as torchrun does on a single node. Nodes of torchrun meet at a store
that listens on every interface and unpickles what anybody sends it. These meet in a file that all of them see, or, as a
job, over a socket of their node (`meeting.py`); what still listens are gloo and NCCL, on the interface that is named.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

MEETING_VARIABLE = "ROLLYARD_MEETING"
"""Names the file in which the ranks of several nodes meet, or the socket that leads there."""
NODE_VARIABLE, INTERFACE_VARIABLE = "ROLLYARD_NODE", "ROLLYARD_INTERFACE"
"""What is said of a node that is not on the command line, which is the same on each."""
APART_VARIABLE = "ROLLYARD_APART"
"""Set where the nodes share no disk."""
_MEETING_DEADLINE_S = 300.0
"""For the first node to open the meeting."""
_TERM_DEADLINE_S = 10.0
"""Between SIGTERM and SIGKILL."""
_POLL_S = 0.2


def arguments() -> argparse.ArgumentParser:
    """Every option."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["rl", "sft"], help="which trainer")
    parser.add_argument("--nodes", type=int, required=True, help="how many there are")
    number = os.environ.get(NODE_VARIABLE)
    which = f"which of them this is, from 0; without it {NODE_VARIABLE} says"
    parser.add_argument("--node", type=int, required=number is None, default=number, help=which)
    parser.add_argument("--ranks", type=int, required=True, help="processes of each node: one for each device")
    where = "where the ranks meet: no file yet, in a directory that all nodes see"
    meeting = os.environ.get(MEETING_VARIABLE)
    which = f"{where}; without it {MEETING_VARIABLE} says"
    parser.add_argument("--meeting", type=Path, required=meeting is None, default=meeting, help=which)
    interface = os.environ.get(INTERFACE_VARIABLE)
    over = f"the network interface that they talk over, such as eth1; without it {INTERFACE_VARIABLE} says"
    parser.add_argument("--interface", required=interface is None, default=interface, help=over)
    return parser


def main(words: Sequence[str] | None = None) -> int:
    """Run the ranks of this node to their end. Returns 0 if all of them succeeded."""
    parser = arguments()
    asked = parser.parse_args(words)
    if asked.nodes < 1 or asked.ranks < 1 or not 0 <= asked.node < asked.nodes:
        parser.error("--node counts from 0 and is below --nodes; --nodes and --ranks are at least 1")
    signal.signal(signal.SIGTERM, _leave)
    try:
        with _meeting(asked.meeting, is_first=asked.node == 0):
            return _run(asked)
    except (FileExistsError, FileNotFoundError, TimeoutError) as error:
        parser.exit(2, f"{error}\n")


@contextmanager
def _meeting(file: Path, *, is_first: bool) -> Iterator[None]:
    """Open the file and remove it in the end, or wait until the first node has opened it.

    What an earlier start left in it would send ranks to addresses where nobody is. A socket is somebody else's to open.
    Raises FileExistsError, FileNotFoundError without its directory, TimeoutError.
    """
    if file.is_socket():
        yield
        return
    if not is_first:
        give_up_at = time.monotonic() + _MEETING_DEADLINE_S
        while not file.exists():
            if time.monotonic() > give_up_at:
                raise TimeoutError(f"node 0 has not made {file} within {_MEETING_DEADLINE_S:.0f} s: was it started?")
            time.sleep(_POLL_S)
        yield
        return
    try:
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        raise FileExistsError(f"{file} is of another start: remove it if none of its ranks is left") from None
    except FileNotFoundError:
        raise FileNotFoundError(f"{file.parent} is no directory: name one that all nodes see") from None
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


def _run(asked: argparse.Namespace) -> int:
    interface = {"GLOO_SOCKET_IFNAME": asked.interface, "NCCL_SOCKET_IFNAME": asked.interface}
    world = {"WORLD_SIZE": str(asked.nodes * asked.ranks), "LOCAL_WORLD_SIZE": str(asked.ranks)}
    shared = os.environ | interface | world | {MEETING_VARIABLE: str(asked.meeting.absolute())}
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        for local in range(asked.ranks):
            place = {"RANK": str(asked.node * asked.ranks + local), "LOCAL_RANK": str(local)}
            ranks.append(subprocess.Popen([sys.executable, "-m", f"trainers.{asked.kind}"], env=shared | place))
        # Every rank is asked each time: the first that lives says nothing of those behind it.
        while None in (codes := [rank.poll() for rank in ranks]) and not any(codes):
            time.sleep(_POLL_S)
    finally:
        _end(ranks)
    return int(any(rank.returncode for rank in ranks))


def _end(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    """Leave none running: without the others a rank waits in a collective."""
    for rank in ranks:
        rank.terminate()
    give_up_at = time.monotonic() + _TERM_DEADLINE_S
    for rank in ranks:
        try:
            rank.wait(max(0.0, give_up_at - time.monotonic()))
        except subprocess.TimeoutExpired:
            rank.kill()
            rank.wait()


def _leave(signum: int, frame: object) -> None:
    raise SystemExit(128 + signum)


if __name__ == "__main__":
    sys.exit(main())
