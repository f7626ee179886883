"""Who tries credentials that open nothing has to wait, longer each time: tokens, Atropos keys, sign-in links, sockets.

In memory, by process, and without a query: the keys are too long to be guessed, what counts is that trying costs
nothing to refuse. A credential that opened something lately passes all the same, so nobody is shut out by a neighbour
who shares their address. Passwords, which can be guessed, are counted in the database (django-axes).
"""

import ipaddress
import time
from collections import OrderedDict
from dataclasses import dataclass
from hashlib import blake2b
from math import ceil

from rollouts.errors import TooManyFailures

FREE_FAILURES = 100
"""So many are answered as what they are."""
FIRST_WAIT_S, LONGEST_WAIT_S = 60.0, 960.0
"""Then the address waits, twice as long each time. Failures as far apart as the longest wait are forgotten."""
KNOWN_FOR_S = 600.0
"""So long a credential passes after it last opened something."""
MAX_REMEMBERED = 10_000
"""Addresses, and credentials: of more the oldest are forgotten."""

only_runs_are_nameless = False
"""Whether whoever has no address is code of a run. It waits for nothing then: all runs share that door, and one of them
would shut it to the trainers of all others."""


@dataclass(slots=True)
class _Failures:
    count: int = 0
    waits: int = 0
    until: float = 0.0
    newest: float = 0.0


_failures: "OrderedDict[str, _Failures]" = OrderedDict()
_known: "OrderedDict[bytes, float]" = OrderedDict()
"""Digest of a credential -> when it last opened something, monotonic."""


def check(address: str, credential: str = "") -> None:
    """Raise TooManyFailures if the address has to wait, unless the credential is known to open something."""
    failures = _failures.get(network(address))
    if failures is None or (wait_s := failures.until - time.monotonic()) <= 0:
        return
    if not credential or not is_known(credential):
        raise TooManyFailures.for_seconds(ceil(wait_s))


def is_known(credential: str, *, for_s: float = KNOWN_FOR_S) -> bool:
    """Whether it opened something within the last ``for_s`` seconds."""
    opened_at = _known.get(_digest(credential))
    return opened_at is not None and time.monotonic() - opened_at <= for_s


def failed(address: str) -> None:
    """A credential from there opened nothing."""
    if not address and only_runs_are_nameless:
        return
    now, whence = time.monotonic(), network(address)
    failures = _failures.get(whence)
    if failures is None or now - max(failures.newest, failures.until) > LONGEST_WAIT_S:
        failures = _failures[whence] = _Failures()
    _failures.move_to_end(whence)
    failures.count += 1
    failures.newest = now
    if failures.count >= FREE_FAILURES:
        failures.until = now + min(FIRST_WAIT_S * 2**failures.waits, LONGEST_WAIT_S)
        failures.waits += 1
        failures.count = 0
    _bound(_failures)


def opened(credential: str) -> None:
    """It opened something."""
    digest = _digest(credential)
    _known[digest] = time.monotonic()
    _known.move_to_end(digest)
    _bound(_known)


def forget() -> None:
    """Begin anew, as a process does."""
    _failures.clear()
    _known.clear()


def _bound(remembered: "OrderedDict[str, _Failures] | OrderedDict[bytes, float]") -> None:
    while len(remembered) > MAX_REMEMBERED:
        try:
            remembered.popitem(last=False)
        except KeyError:  # another thread was faster
            return


def _digest(credential: str) -> bytes:
    return blake2b(credential.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def network(address: str) -> str:
    """The address; of IPv6 the network that one customer has. Requests over a unix socket have none, and share it."""
    if ":" not in address:
        return address
    try:
        return str(ipaddress.ip_network((address.partition("%")[0], 64), strict=False))
    except ValueError:
        return address
