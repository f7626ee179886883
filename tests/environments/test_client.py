"""The client of an environment: against a server that misbehaves on purpose, and against the real one."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.client.group_client import ClientError, GroupClient, Refused, SpoolFull, Unreachable, pack
from environments.types import Message, PackedRollout, PackedScoredGroup, PlayedGroup, PlayedRollout, RolloutError
from rollouts.formats.arrays import pack_arrays, pack_group
from tests.environments.group_store import (
    RUN,
    GroupStore,
    hang_up,
    port_of,
    serving,
    slow_down,
    status,
    store_and_hang_up,
)


def group(key: str | None = None, *, tokens: int = 4, problem: str = "p") -> PlayedGroup:
    rollouts = [
        PlayedRollout(
            reward=reward,
            token_ids=list(range(tokens)),
            loss_mask=[0] + [1] * (tokens - 1),
            inference_logprobs=[0.0] + [-0.5] * (tokens - 1),
        )
        for reward in (1.0, 0.0)
    ]
    return PlayedGroup(environment="outside", problem_key=problem, rollouts=rollouts, key=key)


@pytest.fixture
def store() -> GroupStore:
    return GroupStore()


@pytest.fixture
def client(store: GroupStore) -> Iterator[GroupClient]:
    with serving(store) as url, GroupClient(url, "secret", RUN, retry_budget_s=10, first_pause_s=0.001) as client:
        yield client


def impatient(url: str, spool_dir: Path | None = None, **options: Any) -> GroupClient:
    return GroupClient(url, "secret", RUN, spool_dir, retry_budget_s=0.02, first_pause_s=0.01, **options)


def closed_port() -> str:
    with serving(GroupStore()) as url:
        return url


def spooled(directory: Path) -> list[list[str | None]]:
    """Keys in the files that wait to be sent, oldest first."""
    paths = sorted((directory / RUN).glob("*.groups"))
    return [
        [each.key for each in msgspec.msgpack.decode(path.read_bytes(), type=list[PackedScoredGroup])] for path in paths
    ]


def test_groups_arrive_packed_and_in_order(store: GroupStore, client: GroupClient) -> None:
    sent = [group("b"), pack(group("a")), group("c")]
    assert client.submit(sent) == ["b", "a", "c"]
    assert store.keys == ["b", "a", "c"]
    assert store.groups["b"] == pack(group("b"))
    assert len(store.requests) == 1


def test_every_group_has_a_key_before_the_first_try_so_a_lost_answer_stores_nothing_twice(
    store: GroupStore, client: GroupClient
) -> None:
    store.mishaps = [store_and_hang_up, store_and_hang_up]
    groups = [group(), group(), group("mine")]
    keys = client.submit(groups)
    assert len(store.requests) == 3
    assert store.keys == keys == [each.key for each in groups]
    assert len(set(keys)) == 3
    assert client.submit(groups) == keys
    assert store.keys == keys


def test_what_may_pass_is_asked_again(store: GroupStore, client: GroupClient) -> None:
    not_yet = status(409, code="state_conflict", detail="Run run-1 has not been started yet.")
    store.mishaps = [status(503), hang_up, status(500), status(429), status(502), not_yet]
    assert client.submit([group("a")]) == store.keys == ["a"]
    assert len(store.requests) == 7


def test_the_server_is_not_asked_earlier_than_it_wants(store: GroupStore, client: GroupClient) -> None:
    store.mishaps = [status(429, headers={"Retry-After": "0.3"}), slow_down(0.4)]
    client.submit([group()])
    client.submit([group()])
    refused, slowed, after = (at for at, _ in store.requests)
    assert slowed - refused >= 0.3
    assert after - slowed >= 0.3


@pytest.mark.parametrize("wish", ["soon", "-3", "nan", "Wed, 21 Oct 2026 07:28:00 GMT"])
def test_a_wish_that_is_no_number_of_seconds_is_no_wish(store: GroupStore, client: GroupClient, wish: str) -> None:
    store.mishaps = [status(503, headers={"Retry-After": wish})]
    assert client.submit([group("a")]) == ["a"]


def test_the_budget_ends_the_retries(store: GroupStore) -> None:
    with impatient(closed_port()) as client, pytest.raises(Unreachable, match="ConnectError") as nobody:
        client.submit([group()])
    assert nobody.value.status is None
    store.mishaps = [status(429, headers={"Retry-After": "1"})] * 9
    with serving(store) as url, impatient(url) as client, pytest.raises(Unreachable, match="status 429") as full:
        client.submit([group()])
    assert full.value.status == 429


def test_a_refusal_is_not_retried_and_says_what_is_wrong(store: GroupStore, client: GroupClient) -> None:
    store.mishaps = [status(422, code="invalid", detail="It does not fit.", fields={"groups.0.key": "is too long"})]
    with pytest.raises(Refused, match="is too long") as refused:
        client.submit([group()])
    error = refused.value
    assert (error.status, error.code, error.fields) == (422, "invalid", {"groups.0.key": "is too long"})
    assert isinstance(error, ClientError)
    store.mishaps = [lambda handler: handler.tell(404, "a page of a proxy")]
    with pytest.raises(Refused) as refused:
        client.submit([group()])
    assert (refused.value.status, refused.value.code) == (404, "")
    assert len(store.requests) == 2


def test_an_address_without_a_scheme_is_told_at_once() -> None:
    with pytest.raises(ValueError, match="begin with http"):
        GroupClient("localhost:8000", "t", RUN)


@pytest.mark.slow
def test_many_groups_go_in_requests_of_bounded_size(store: GroupStore) -> None:
    with serving(store) as url, GroupClient(url, "t", RUN, max_request_bytes=10_000) as client:
        keys = client.submit(group(tokens=100) for _ in range(150))
        client.submit([group("large", tokens=5_000)])
        assert client.submit([]) == []
    assert store.keys == [*keys, "large"]
    sizes = [count for _, count in store.requests]
    assert sizes[-1] == 1
    assert len(set(sizes[:-2])) == 1
    with serving(store) as url, GroupClient(url, "t", RUN) as client:
        client.submit(group() for _ in range(100))
    assert [count for _, count in store.requests[-2:]] == [64, 36]


def test_groups_that_cannot_be_sent_are_spooled_and_sent_oldest_first(store: GroupStore, tmp_path: Path) -> None:
    with serving(store) as url:
        pass
    with impatient(url, tmp_path) as client:
        keys = client.submit([group(), group()]) + client.submit([group("third")])
        assert spooled(tmp_path) == [keys[:2], ["third"]]
        with serving(store, port_of(url)):
            assert client.flush() == (3, [])
            assert client.flush() == (0, [])
    assert store.keys == keys
    assert spooled(tmp_path) == []


def test_a_submission_sends_what_is_spooled_before_what_is_new(store: GroupStore, tmp_path: Path) -> None:
    with serving(store) as url:
        pass
    with impatient(url, tmp_path) as client:
        client.submit([group("old")])
        with serving(store, port_of(url)):
            client.submit([group("new")])
    assert store.keys == ["old", "new"]
    assert spooled(tmp_path) == []


def test_the_next_client_sends_what_one_before_it_spooled_also_when_it_was_spooled_twice(
    store: GroupStore, tmp_path: Path
) -> None:
    with impatient(closed_port(), tmp_path) as client:
        for _ in range(2):
            client.submit([group("a"), group("b")])
        client.submit([group("c")])
    assert spooled(tmp_path) == [["a", "b"], ["a", "b"], ["c"]]
    store.mishaps = [hang_up, store_and_hang_up, store_and_hang_up]
    with serving(store) as url, GroupClient(url, "t", RUN, tmp_path, first_pause_s=0.001) as later:
        assert later.flush().groups == 5
    assert store.keys == ["a", "b", "c"]


def test_spools_of_two_runs_do_not_mix(store: GroupStore, tmp_path: Path) -> None:
    with impatient(closed_port(), tmp_path) as client:
        client.submit([group("a")])
    with serving(store) as url, GroupClient(url, "t", "run-2", tmp_path) as other:
        assert other.flush().groups == 0
    assert spooled(tmp_path) == [["a"]]


def test_a_full_spool_is_an_error_and_keeps_what_it_has(store: GroupStore, tmp_path: Path) -> None:
    with serving(store) as url:
        pass
    with impatient(url, tmp_path, max_spool_bytes=1_000, max_request_bytes=1) as client:
        groups = [group(tokens=40) for _ in range(3)]
        with pytest.raises(SpoolFull, match="of 1000 bytes"):
            client.submit(groups)
        before = spooled(tmp_path)
        assert 0 < len(before) < 3
        with serving(store, port_of(url)):
            keys = client.submit(groups)
    assert store.keys == keys == [each.key for each in groups]


def test_groups_that_are_refused_for_what_they_hold_are_set_aside_and_hold_up_nobody(
    store: GroupStore, tmp_path: Path
) -> None:
    with impatient(closed_port(), tmp_path) as client:
        for key in ("a", "bad", "c"):
            client.submit([group(key)])
    store.unfit = {"bad"}
    with serving(store) as url, GroupClient(url, "t", RUN, tmp_path) as later:
        sent, [aside] = later.flush()
        assert later.flush() == (0, [])
    assert (sent, store.keys) == (2, ["a", "c"])
    assert aside.name.endswith(".groups.refused")
    assert msgspec.msgpack.decode(aside.read_bytes(), type=list[PackedScoredGroup])[0].key == "bad"


def test_a_refusal_of_the_run_or_the_token_leaves_the_spool_as_it_is(store: GroupStore, tmp_path: Path) -> None:
    with impatient(closed_port(), tmp_path) as client:
        client.submit([group("a")])
    store.mishaps = [status(410, code="run_over"), status(401, code="not_authenticated")]
    with serving(store) as url, GroupClient(url, "t", RUN, tmp_path) as later:
        for code in ("run_over", "not_authenticated"):
            with pytest.raises(Refused) as refused:
                later.flush()
            assert refused.value.code == code
    assert spooled(tmp_path) == [["a"]]


def test_a_full_queue_holds_back_instead_of_filling_the_spool(store: GroupStore, tmp_path: Path) -> None:
    """Whoever spools at once while the trainer is behind would play on at full speed."""
    with serving(store) as url, GroupClient(url, "t", RUN, tmp_path, retry_budget_s=10, first_pause_s=0.001) as client:
        store.mishaps = [status(429, headers={"Retry-After": "60"})]
        client.submit([group("a")])
        assert spooled(tmp_path) == [["a"]]
        store.mishaps = [status(429)]
        client.submit([group("b")])
    assert store.keys == ["a", "b"]


def test_threads_share_a_client_and_its_spool(store: GroupStore, tmp_path: Path) -> None:
    with serving(store) as url:
        pass
    with impatient(url, tmp_path) as client:
        threads = [threading.Thread(target=client.submit, args=([group()],)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert len(spooled(tmp_path)) == 8
        with serving(store, port_of(url)):
            threads = [threading.Thread(target=client.flush) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(20)
    assert len(store.keys) == 8
    assert spooled(tmp_path) == []


SPOOLING = """
import os, sys
from pathlib import Path
from environments.client.group_client import GroupClient
from tests.environments.test_client import group
client = GroupClient(sys.argv[1], "t", "run-1", sys.argv[2], retry_budget_s=0)
for number in range(10**6):
    client.submit([group(f"g{number}")])
    print(f"g{number}", flush=True)
"""


@pytest.mark.slow
def test_a_client_that_is_killed_loses_nothing_that_it_spooled(store: GroupStore, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SPOOLING, closed_port(), str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"},
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout is not None
    told = [process.stdout.readline().strip() for _ in range(20)]
    process.send_signal(signal.SIGKILL)
    told += process.stdout.read().split()
    process.wait()
    (tmp_path / RUN / "000000000021-cafecafe.partial").write_bytes(b"cut")
    with serving(store) as url, GroupClient(url, "t", RUN, tmp_path) as later:
        later.flush()
        assert store.keys[: len(told)] == told
        assert len(store.keys) <= len(told) + 1, "one may be on the disk of which nobody was told"
    with impatient(closed_port(), tmp_path) as much_later:
        much_later.submit([group()])
    assert not list((tmp_path / RUN).glob("*.partial")), "what a dead process began to write is removed"


finite = st.floats(-100, 0, width=32)
rollouts = st.integers(0, 6).flatmap(
    lambda tokens: st.builds(
        PlayedRollout,
        reward=st.none() | finite,
        messages=st.just([Message("user", "hi", name="ada")]),
        metrics=st.dictionaries(st.sampled_from("ab"), finite),
        error=st.none() | st.just(RolloutError(kind="policy", type="T", message="m")),  # type: ignore[arg-type]
        dispatch_policy_version=st.none() | st.integers(0, 5),
        replica=st.sampled_from(["", "inference-0"]),
        token_ids=st.lists(st.integers(0, 2**31 - 1), min_size=tokens, max_size=tokens),
        loss_mask=st.lists(st.integers(0, 1), min_size=tokens, max_size=tokens),
        inference_logprobs=st.lists(finite, min_size=tokens, max_size=tokens),
    )
)


@pytest.mark.slow
@given(st.lists(rollouts, max_size=4))
def test_packing_here_is_packing_in_the_store(played: list[PlayedRollout]) -> None:
    one = PlayedGroup(environment="e", problem_key="p", key="k", rollouts=played)
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(pack(one)), type=PackedScoredGroup)
    ours, theirs = pack_group(sent, ("groups", 0)), pack_group(one, ("groups", 0))
    assert (ours.environment, ours.problem_key, ours.key) == ("e", "p", "k")
    assert ours.rollouts == theirs.rollouts
    arrays = pack_arrays(played, ("groups", 0))
    for name in ("lengths", "token_ids", "loss_mask", "inference_logprobs"):
        packed = getattr(ours.arrays, name)
        assert packed.tobytes() == getattr(arrays, name).tobytes()
        assert packed.dtype == getattr(arrays, name).dtype


@pytest.mark.parametrize(
    ("field", "value"), [("token_ids", [-1]), ("token_ids", [2**32]), ("loss_mask", [256]), ("token_ids", ["7"])]
)
def test_what_no_array_can_hold_is_named(field: str, value: list[Any]) -> None:
    rollout = msgspec.structs.replace(group().rollouts[0], **{field: value})
    with pytest.raises(ValueError, match=rf"rollouts.1.{field}"):
        pack(PlayedGroup(environment="e", problem_key="p", rollouts=[group().rollouts[0], rollout]))


def test_a_packed_group_has_every_field_of_a_group() -> None:
    one = PlayedGroup(environment="e", environment_version="3", problem_key="p", key="k", rollouts=group().rollouts)
    ours = pack(one)
    for name in set(PlayedGroup.__struct_fields__) - {"rollouts"}:
        assert getattr(ours, name) == getattr(one, name)


def test_a_packed_rollout_has_every_field_of_a_rollout() -> None:
    """So that nothing is left behind when one is made of the other."""
    assert set(PlayedRollout.__struct_fields__) <= set(PackedRollout.__struct_fields__)


def test_a_missing_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROLLYARD_TOKEN", raising=False)
    monkeypatch.setenv("ROLLYARD_URL", "http://localhost")
    with pytest.raises(KeyError, match="ROLLYARD_TOKEN"):
        GroupClient.from_environment()
