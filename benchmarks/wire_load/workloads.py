"""The workloads: each takes a server that is empty, drives it once and returns figures.

`fleet.py` says what is timed of a submission. Of a batch it is the time from the first byte of the GET to the last byte
of its answer; decoding and checking it comes after.
"""

import gzip
import hashlib
import time
from argparse import Namespace
from collections.abc import Callable
from typing import NamedTuple

import msgspec
import numpy as np

from benchmarks.wire_load import payloads
from benchmarks.wire_load.connection import Address, Answer, Connection
from benchmarks.wire_load.figures import Figures, latencies
from benchmarks.wire_load.fleet import STAMPS_PER_CLIENT, Plan, drive
from benchmarks.wire_load.machine import CpuSample, memory
from benchmarks.wire_load.payloads import GzipRequest, Request, Shape
from benchmarks.wire_load.servers import Server

VARIANTS = 16
"""Different random bodies that clients take turns with."""
FILL_CLIENTS = 2
FILL_LIST = 16
"""Most groups per request where filling a queue is not what is timed."""
REST_S = 12.0
"""Memory is that of a server at rest. Ours gives what it does not use back every ten seconds."""
NATIVE_WAIT_S = 30
EPOCH_HEADER, SHA256_HEADER = "Rollyard-Epoch", b"rollyard-sha256"


class Workload(NamedTuple):
    """One named way to load a server."""

    run: Callable[[Server, Namespace], Figures]
    overrides: Callable[[Namespace], list[str]] = lambda _options: []
    """Run config with which a Rollyard is launched for it."""


def submit_json(server: Server, options: Namespace) -> Figures:
    """Groups over the Atropos protocol, --list of them per request."""
    address = server.require(server.atropos, "Atropos endpoints")
    _register(address, options)
    shape = Shape(options.group_size, options.tokens, logprobs=options.logprobs)
    return drive(address, _json_requests(address, shape, options), _plan(options), server.processes)


def submit_native(server: Server, options: Namespace) -> Figures:
    """Groups as MessagePack over the native API, --list of them per request.

    A server without such an API gets the same groups one by one over the Atropos protocol.
    """
    if server.native is None:
        return submit_json(server, Namespace(**{**vars(options), "list": 1}))
    shape = Shape(options.group_size, options.tokens)
    requests = _native_requests(server.native, shape, server.token, options.list)
    return drive(server.native, requests, _plan(options), server.processes)


def batch_atropos(server: Server, options: Namespace) -> Figures:
    """GET /batch on a queue of --queue groups. The first call apart: Atropos forms every batch in it."""
    address = server.require(server.atropos, "Atropos endpoints")
    connection = Connection(address, options.timeout)
    queued = connection.call("GET", "/status").json()["queue_size"]
    if queued:
        raise SystemExit(f"{queued} groups are queued already: give the server a fresh run")
    _register(address, options)
    env_ids = _register_environments(connection, options) if options.minimum_allocation else [None]
    shape = Shape(options.group_size, options.tokens, logprobs=options.logprobs)
    count = options.other_queue if server.name != "rollyard" and options.other_queue else options.queue
    rng = np.random.default_rng(0)
    groups = [payloads.atropos_group(rng, shape, env_ids[number % len(env_ids)]) for number in range(VARIANTS)]
    _fill(server, address, "/scored_data_list", groups, count, options)
    connection.renew()
    get = address.head("GET", "/batch", {"Accept-Encoding": "identity" if options.identity else "gzip, deflate"})
    before, answers, seconds = CpuSample.take(server.processes()), [], []
    for _ in range(min(options.batches, count * shape.group_size // options.batch_size)):
        began = time.monotonic()
        answers.append(connection.exchange(get))
        seconds.append(time.monotonic() - began)
        _check_batch(answers[-1], options)
    cpu_s = CpuSample.take(server.processes()).server_s - before.server_s
    connection.close()
    if len(seconds) < 2:
        raise SystemExit("--queue holds fewer than two batches: queue more groups")
    return {
        "first_ms": 1000 * seconds[0],
        **latencies(seconds[1:], "later_"),
        "all_ms": 1000 * sum(seconds),
        "server_cpu_ms_per_batch": 1000 * cpu_s / len(seconds),
        "batches": float(len(seconds)),
        "answer_bytes": sum(len(answer.body) for answer in answers) / len(answers),
        "queued_groups": float(count),
    }


def batch_native(server: Server, options: Namespace) -> Figures:
    """Batches of --native-batch-size rollouts: each formed at the first ask, the same at the second, acknowledged."""
    address = server.require(server.native, "native API (--native-url)")
    shape = Shape(options.group_size, options.native_tokens)
    authorization = {"Authorization": f"Token {server.token}"}
    connection = Connection(address, options.timeout)
    registered = connection.call("POST", "/trainer", {}, authorization).json()
    headers = {**authorization, EPOCH_HEADER: str(registered["epoch"])}
    groups = [payloads.native_group(np.random.default_rng(seed), shape) for seed in range(VARIANTS)]
    needed = options.native_batches * -(-options.native_batch_size // shape.group_size)
    _fill(server, address, "/groups", groups, needed, options, packed=True)
    connection.renew()
    first: list[float] = []
    again: list[float] = []
    sizes = []
    for step in range(options.native_batches):
        get = address.head("GET", f"/batches/{step}?wait_s={NATIVE_WAIT_S}", headers)
        digests = []
        for seconds in (first, again):
            began = time.monotonic()
            answer = connection.exchange(get)
            seconds.append(time.monotonic() - began)
            digests.append(_checked_digest(answer))
        if digests[0] != digests[1]:
            raise SystemExit(f"batch {step} was not the same when fetched again")
        sizes.append(len(answer.body))
        ack = {"metrics": {}, "batch_sha256": digests[0]}
        connection.call("POST", f"/steps/{step}", ack, headers)
    connection.close()
    return {
        **latencies(first),
        **latencies(again, "again_"),
        "batches": float(len(first)),
        "answer_bytes": sum(sizes) / len(sizes),
    }


def hold(server: Server, options: Namespace) -> Figures:
    """What --memory-groups queued groups cost: memory of the processes, and disk where there is a database."""
    shape = Shape(options.group_size, options.memory_tokens)
    other_count = options.other_memory_groups if server.name != "rollyard" else 0
    count = other_count or options.memory_groups
    packed = options.native and server.native is not None
    address = server.require(server.native if packed else server.atropos, "endpoint to submit to")
    if packed:
        groups = [payloads.native_group(np.random.default_rng(seed), shape) for seed in range(VARIANTS)]
    else:
        _register(address, options)
        groups = [payloads.atropos_group(np.random.default_rng(seed), shape) for seed in range(VARIANTS)]
    path = "/groups" if packed else "/scored_data_list"
    # What a process loads at its first request is not what the groups cost.
    _fill(server, address, path, groups, FILL_LIST * FILL_CLIENTS, options, packed=packed)
    time.sleep(REST_S)
    before, disk_before = memory(server.processes()), server.database_bytes()
    figures = _fill(
        server, address, path, groups, count, options, packed=packed, first_stamp=FILL_CLIENTS * STAMPS_PER_CLIENT
    )
    time.sleep(REST_S)
    after, disk_after = memory(server.processes()), server.database_bytes()
    found = {name: figures[name] for name in ("groups", "groups_per_s")}
    found["trained_tokens"] = found["groups"] * shape.trained_per_group
    for name in after:
        found |= {f"{name}_before": before.get(name, 0.0), f"{name}_after": after[name]}
    if "all_pss_mb" in after:
        grown = (after["all_pss_mb"] - before["all_pss_mb"]) * 1e6
        found["memory_bytes_per_trained_token"] = grown / found["trained_tokens"]
        found["memory_mb_per_1000_groups"] = grown / 1e3 / found["groups"]
    if disk_before is not None and disk_after is not None:
        found["database_mb"] = disk_after / 1e6
        found["database_bytes_per_trained_token"] = (disk_after - disk_before) / found["trained_tokens"]
    return found


WORKLOADS = {
    "submit-json": Workload(submit_json),
    "submit-native": Workload(submit_native),
    "batch-atropos": Workload(batch_atropos, lambda _options: ["batch.max_queued_rollouts=100000000"]),
    "batch-native": Workload(batch_native, lambda options: [f"batch.batch_size={options.native_batch_size}"]),
    "memory": Workload(hold, lambda _options: ["batch.max_queued_rollouts=100000000"]),
}


def _plan(options: Namespace) -> Plan:
    requests = None if options.groups is None else -(-options.groups // options.list)
    return Plan(options.clients, options.seconds, options.warmup, requests, options.timeout)


def _json_requests(address: Address, shape: Shape, options: Namespace) -> list[Request] | list[GzipRequest]:
    rng = np.random.default_rng(0)
    groups = [payloads.atropos_group(rng, shape) for _ in range(VARIANTS)]
    headers = {"Content-Type": "application/json", "Accept-Encoding": "gzip, deflate"}
    if options.gzip:
        return [GzipRequest(address, "/scored_data", headers, group) for group in groups]
    if options.list == 1:
        return [Request(address, "/scored_data", headers, group) for group in groups]
    lists = [payloads.json_list(_rotated(groups, start, options.list)) for start in range(0, VARIANTS, 4)]
    return [Request(address, "/scored_data_list", headers, body) for body in lists]


def _native_requests(address: Address, shape: Shape, token: str, per_request: int) -> list[Request]:
    groups = [payloads.native_group(np.random.default_rng(seed), shape) for seed in range(VARIANTS)]
    headers = {"Content-Type": "application/msgpack", "Authorization": f"Token {token}"}
    bodies = groups
    if per_request > 1:
        bodies = [payloads.msgpack_list(_rotated(groups, start, per_request)) for start in range(0, VARIANTS, 4)]
    return [Request(address, "/groups", headers, body) for body in bodies]


def _fill(
    server: Server,
    address: Address,
    path: str,
    groups: list[bytes],
    count: int,
    options: Namespace,
    *,
    packed: bool = False,
    first_stamp: int = 0,
) -> Figures:
    """Submit ``count`` groups, in lists as long as divide them evenly."""
    length = next(length for length in range(FILL_LIST, 0, -1) if count % length == 0)
    as_list = payloads.msgpack_list if packed else payloads.json_list
    kind = {"Content-Type": "application/msgpack", "Authorization": f"Token {server.token}"}
    headers = kind if packed else {"Content-Type": "application/json"}
    # Lists that begin at different groups: those of every environment stay in the queue at all times.
    bodies = [as_list(_rotated(groups, start, length)) for start in range(4)]
    plan = Plan(FILL_CLIENTS, requests=count // length, timeout_s=options.timeout, first_stamp=first_stamp)
    return drive(address, [Request(address, path, headers, body) for body in bodies], plan, server.processes)


def _rotated(groups: list[bytes], start: int, count: int) -> list[bytes]:
    return [groups[(start + number) % len(groups)] for number in range(count)]


def _register(address: Address, options: Namespace) -> None:
    connection = Connection(address, options.timeout)
    body = {
        "wandb_group": "bench",
        "wandb_project": "bench",
        "batch_size": options.batch_size,
        "max_token_len": -1,
        "checkpoint_dir": "",
        "save_checkpoint_interval": 0,
        "starting_step": 0,
        "num_steps": 1_000_000,
    }
    connection.call("POST", "/register", body)
    connection.close()


def _register_environments(connection: Connection, options: Namespace) -> list[int]:
    """Two environments with a quarter of every batch each; they may register once a batch was asked for."""
    connection.call("GET", "/batch")
    body = {
        "max_token_length": options.tokens,
        "desired_name": "bench",
        "weight": 1.0,
        "group_size": options.group_size,
        "min_batch_allocation": 0.25,
    }
    answers = [connection.call("POST", "/register-env", body).json() for _ in range(2)]
    return [answer["env_id"] for answer in answers]


def _check_batch(answer: Answer, options: Namespace) -> None:
    """That the batch is whole; the next request waits, but not its clock."""
    body = gzip.decompress(answer.body) if answer.headers.get(b"content-encoding") == b"gzip" else answer.body
    groups = msgspec.json.decode(body)["batch"] if answer.status == 200 else None
    if groups is None:
        raise SystemExit(f"GET /batch answered {answer.status} without a batch: {body[:200]!r}")
    sequences = sum(len(group["tokens"]) for group in groups)
    if sequences != options.batch_size:
        raise SystemExit(f"a batch has {sequences} sequences instead of {options.batch_size}")


def _checked_digest(answer: Answer) -> str:
    digest = hashlib.sha256(answer.body).hexdigest()
    if answer.status != 200 or answer.headers.get(SHA256_HEADER) != digest.encode():
        raise SystemExit(f"a batch answered {answer.status} with a body that is not what its header promises")
    return digest
