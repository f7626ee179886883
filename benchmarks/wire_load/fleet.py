"""Client processes in a closed loop: each sends its next request when the last one is answered.

Inside the timing: from the first byte handed to the socket to the last byte of the answer read. Outside: making bodies,
connecting, and everything that happens before the warm-up is over.
"""

import math
import multiprocessing
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Pipe

import psutil

from benchmarks.wire_load.connection import SUCCESS, Address, Connection
from benchmarks.wire_load.figures import Figures, latencies
from benchmarks.wire_load.machine import CpuSample
from benchmarks.wire_load.payloads import GzipRequest, Request

Requests = Sequence[Request] | Sequence[GzipRequest]
STAMPS_PER_CLIENT = 10**9
_HEAD_START_S = 0.3
"""Until every client is forked and connected."""


@dataclass(frozen=True)
class Plan:
    """How long to send: for a time, or a number of requests."""

    clients: int
    seconds: float = 0.0
    """Measured, after the warm-up. Unused when there is a number of requests."""
    warmup_s: float = 0.0
    requests: int | None = None
    """Of all clients together, those of the warm-up included."""
    timeout_s: float = 120.0
    first_stamp: int = 0

    def share(self, client: int) -> float:
        """Requests of one client."""
        return math.inf if self.requests is None else (self.requests + client) // self.clients


@dataclass
class _Log:
    """What one client measured."""

    began: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    """After the warm-up."""
    error: str = ""


def drive(address: Address, requests: Requests, plan: Plan, processes: Callable[[], list[psutil.Process]]) -> Figures:
    """Send until the plan is done; groups per second, latencies, and who used the cores meanwhile.

    Raises SystemExit with the first complaint when an answer is no success.
    """
    context = multiprocessing.get_context("fork")  # clients share the bodies instead of each getting a copy
    start_at = time.monotonic() + _HEAD_START_S
    measured_from = start_at + plan.warmup_s
    stop_at = measured_from + plan.seconds if plan.requests is None else math.inf
    clients = []
    for number in range(plan.clients):
        receiving, sending = context.Pipe(duplex=False)
        arguments = (sending, number, address, requests, plan, start_at, stop_at)
        process = context.Process(target=_client, args=arguments, daemon=True)
        process.start()
        sending.close()
        clients.append((process, receiving))
    _wait_until(measured_from)
    before = CpuSample.take(processes())
    logs: list[_Log] = [_received(receiving) for _, receiving in clients]
    after = CpuSample.take(processes())
    for process, receiving in clients:
        process.join()
        receiving.close()
    if errors := [log.error for log in logs if log.error]:
        raise SystemExit(f"{len(errors)} of {plan.clients} clients failed, the first with\n{errors[0]}")
    answered = _figures(logs, requests[0].groups, measured_from, stop_at)
    used = before.until(after, client_s=sum(log.cpu_s for log in logs))
    return {
        **answered,
        "request_bytes": sum(each.body_bytes for each in requests) / len(requests),
        # Hardly changes when others want the cores too, as latencies do.
        "server_cpu_ms_per_group": 1000 * used["server_cpu_cores"] / answered["groups_per_s"],
        **used,
    }


def _figures(logs: Sequence[_Log], groups_per_request: int, measured_from: float, stop_at: float) -> Figures:
    pairs = [pair for log in logs for pair in zip(log.began, log.ended, strict=True) if pair[1] >= measured_from]
    last = min(stop_at, max((ended for _, ended in pairs), default=measured_from))
    answered = sum(ended <= last for _, ended in pairs)
    seconds = [ended - began for began, ended in pairs if began >= measured_from]
    if not seconds:
        raise SystemExit("no request began and ended after the warm-up: send more, or warm up for less")
    return {
        "groups_per_s": groups_per_request * answered / (min(stop_at, last) - measured_from),
        **latencies(seconds),
        "groups": float(groups_per_request * answered),
    }


def _client(
    results: "Pipe[_Log, None]",
    number: int,
    address: Address,
    requests: Requests,
    plan: Plan,
    start_at: float,
    stop_at: float,
) -> None:
    """Body of a client process."""
    log = _Log()
    connection = Connection(address, plan.timeout_s)
    stamp = plan.first_stamp + number * STAMPS_PER_CLIENT
    measured_from, cpu_before = start_at + plan.warmup_s, 0.0
    try:
        connection.connect()
        _wait_until(start_at)
        while (began := time.monotonic()) < stop_at and len(log.began) < plan.share(number):
            if not cpu_before and began >= measured_from:
                cpu_before = time.process_time()
            # Clients begin at different bodies, so that neighbours on the wire differ in more than their stamp.
            request = requests[(len(log.began) + 3 * number) % len(requests)]
            answer = connection.exchange(request.stamped(stamp))
            stamp += request.groups
            if answer.status not in SUCCESS:
                raise ValueError(f"answered {answer.status}: {answer.body[:500]!r}")
            log.began.append(began)
            log.ended.append(time.monotonic())
        log.cpu_s = time.process_time() - cpu_before if cpu_before else 0.0
    except Exception:  # noqa: BLE001 - whatever it was, the parent says it and ends
        log.error = traceback.format_exc(limit=-1)
    finally:
        connection.close()
        results.send(log)


def _received(receiving: "Pipe[None, _Log]") -> _Log:
    try:
        return receiving.recv()
    except EOFError:
        return _Log(error="the process ended without a result: was it killed for memory?")


def _wait_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))
