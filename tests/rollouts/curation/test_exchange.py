"""Groups as files: every line comes back as it was, each is stored once, and memory does not grow with the file."""

import gzip
import io
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from environments.types import FunctionCall, Message, ToolCall
from rollouts.models import Run, ScoredGroup
from rollouts.services.batches import forming
from rollouts.services.curation import exchange
from rollouts.services.curation.exchange import BadLine, Imported, Line
from rollouts.services.runs import life
from rollouts.states import GroupState
from tests.factories import make_project
from tests.lanes import amount
from tests.rollouts import story
from trainers.config import resolve

pytestmark = pytest.mark.django_db

Item = dict[str, Any]


@pytest.fixture
def run() -> Run:
    return launch()


def launch() -> Run:
    resolved = resolve("external-trainer", overrides={"batch.batch_size": 4})
    return life.start(life.create(project=make_project(), user=None, resolved=resolved, actor="user:ada"))


def item(number: int = 0, **more: Any) -> Item:
    """A group of two as Atropos writes it, told apart by a number."""
    tokens = [[7, 8, 100 + number], [7, 8, 200 + number, 9]]
    masks = [[-100, -100, *row[2:]] for row in tokens]
    return {"tokens": tokens, "masks": masks, "scores": [1.0, 0.0], **more}


COMPLETE = item(
    advantages=[[0.0, 0.0, 0.5], [0.0, 0.0, -0.5, -0.25]],
    ref_logprobs=[[1.0, 1.0, -0.5], [1.0, 1.0, -0.25, -2.0]],
    messages=[[{"role": "user", "content": "é\u2028"}], [{"role": "tool", "content": [{"type": "text"}], "id": 7}]],
    generation_params={"temperature": 0.7, "stop": ["\n"]},
    inference_logprobs=[[1.0, 1.0, -0.5], [1.0, 1.0, -0.25, -2.0]],
    overrides=[{"set_advantage_to_zero": True}, {}],
    group_overrides={"sft": True, "group_size": 2},
    images=["data:image/png;base64,AAAA", None],
    env_id=3,
    distill_token_ids=[[[1, 2], [3, 4], [5, 6]], [[1, 2], [3, 4], [5, 6], [7, 8]]],
    distill_logprobs=[[[-0.5, -1.0]] * 3, [[-0.5, -1.0]] * 4],
)


def lines(items: Iterable[Item | bytes], name: str = "f") -> Iterator[Line]:
    for number, each in enumerate(items, 1):
        yield Line(f"{name}:{number}", each if isinstance(each, bytes) else json.dumps(each).encode())


def load(run: Run, source: Iterable[Line], *, skips: bool = True) -> tuple[Imported, list[str]]:
    totals, bad = Imported(), []

    def on_bad(line: BadLine) -> None:
        bad.append(str(line))
        if not skips:
            raise line

    for _ in exchange.import_groups(run, source, totals, environment="outside", actor="cli:ada", on_bad=on_bad):
        pass
    return totals, bad


def dump(run: Run, **options: Any) -> list[Item]:
    return [json.loads(line) for line in exchange.export_groups(run, **options)]


def given_values(one: Item) -> Item:
    """What an item says: a key that is null says as little as one that is absent."""
    return {key: value for key, value in one.items() if value is not None}


# --- there and back --------------------------------------------------------------------------------------------------


def test_a_group_with_every_optional_field_comes_back_as_it_was(run: Run) -> None:
    load(run, lines([COMPLETE, item(1)]))
    complete, plain = dump(run)
    assert complete == COMPLETE
    assert set(plain) == set(COMPLETE), "always every key, null when unset"
    assert given_values(plain) == item(1)


names = st.sampled_from(["", "role", "a b", "ключ", "x\ty"])
leaves = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.sampled_from(["", 'a\n"\\', "é\u2028😀", "\0"])
json_values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(names, inner, max_size=2), max_leaves=4
)
numbers = st.floats(-50, 3, width=32).map(lambda number: float(str(np.float32(number))))
"""With the fewest digits that say which float32 is meant, as clients send them."""


@st.composite
def items(draw: st.DrawFn) -> Item:
    lengths = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))

    def rows(values: st.SearchStrategy[Any]) -> list[list[Any]]:
        return [draw(st.lists(values, min_size=length, max_size=length)) for length in lengths]

    def maybe(value: Any) -> Any:
        return value if draw(st.booleans()) else None

    tokens = rows(st.integers(0, 2**31 - 1) | st.integers(0, 3))
    mask = draw(st.sampled_from([st.sampled_from([-100, 0]), st.integers(0, 1), st.integers(-(2**31), 2**31 - 1)]))
    labels = [[token if draw(st.booleans()) else -100 for token in row] for row in tokens]
    message = st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "odd"]), "content": json_values}, optional={"extra": json_values}
    )
    count = len(lengths)
    top_k = draw(st.integers(0, 2))
    many = st.lists(st.integers(0, 9), min_size=top_k, max_size=top_k)
    one: Item = {
        "tokens": tokens,
        "masks": labels if draw(st.booleans()) else rows(mask),
        "scores": draw(st.lists(numbers, min_size=count, max_size=count)),
        "advantages": maybe(rows(numbers)),
        "ref_logprobs": maybe(rows(numbers)),
        "inference_logprobs": maybe(rows(numbers)),
        "messages": maybe([draw(st.lists(message, max_size=2)) for _ in lengths]),
        "generation_params": maybe(draw(st.dictionaries(names, json_values, max_size=2))),
        "overrides": maybe([draw(st.dictionaries(names, json_values, max_size=2)) for _ in lengths]),
        "group_overrides": maybe(draw(st.dictionaries(names, json_values, max_size=2))),
        "images": draw(json_values),
        "env_id": maybe(draw(st.integers(-5, 5))),
        "distill_token_ids": maybe(rows(many)),
        "distill_logprobs": maybe(rows(st.lists(numbers, max_size=2))),
    }
    return given_values(one)


@pytest.mark.slow
@settings(max_examples=amount(30, 600), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(items(), min_size=1, max_size=3))
def test_whatever_was_imported_comes_back(sent: list[Item]) -> None:
    run = launch()
    totals, bad = load(run, lines(sent))
    assert (totals.stored, bad) == (len(sent), [])
    assert [given_values(one) for one in dump(run)] == sent


def test_what_is_exported_can_be_imported_elsewhere_and_is_the_same_again(run: Run) -> None:
    load(run, lines([COMPLETE, item(1)]))
    first = list(exchange.export_groups(run))
    other = launch()
    load(other, lines(first))
    assert list(exchange.export_groups(other)) == first


def test_a_line_stays_a_line_however_it_was_sent(run: Run) -> None:
    indented = json.dumps(COMPLETE, indent=1).encode()
    load(run, [Line("f:1", indented)])
    [line] = exchange.export_groups(run)
    assert line.count(b"\n") == 1
    assert json.loads(line) == COMPLETE


# --- importing -------------------------------------------------------------------------------------------------------


def test_an_imported_group_is_ready_and_attributable(run: Run) -> None:
    totals, _ = load(run, lines([item()]))
    assert totals == Imported(stored=1, rollouts=2, tokens=7)
    group = ScoredGroup.objects.get()
    assert (group.state, group.environment.name, group.rollout_count) == (GroupState.READY, "outside", 2)
    assert set(group.rollouts.values_list("worker", flat=True)) == {"cli:ada"}


def test_importing_again_stores_nothing_twice_and_equal_lines_are_groups_of_their_own(run: Run) -> None:
    sent = [item(1), item(2), item(1), item(1)]
    assert load(run, lines(sent))[0].stored == 4
    assert load(run, lines(sent))[0] == Imported(known=4)
    assert load(run, lines([*sent[::-1], item(3), item(1)]))[0] == Imported(stored=2, known=4, rollouts=4, tokens=14)
    assert ScoredGroup.objects.count() == 6


def test_groups_that_were_trained_meanwhile_are_known_too(run: Run) -> None:
    load(run, lines([item(1), item(2)]))
    epoch = story.register(run).epoch
    delivery = forming.fetch(run, epoch=epoch, step=0)
    assert delivery is not None
    story.ack(run, epoch, 0, delivery.sha256)
    assert load(run, lines([item(1), item(2)]))[0] == Imported(known=2)
    assert [group.state for group in ScoredGroup.objects.all()] == [GroupState.TRAINED] * 2


BAD: dict[bytes, str] = {
    b"{": "JSON decode error",
    b"[]": "Input should be a valid dictionary",
    b"null": "Field required",
    b'"text"': "Input should be a valid dictionary",
    json.dumps(item())[:-9].encode(): "JSON decode error",
    json.dumps(item(masks=[[1]])).encode(): "masks: 1 rows for 2 sequences",
    json.dumps(item(scores=[1.0])).encode(): "scores: 1 scores for 2 sequences",
    json.dumps(item(scores=[float("nan"), 0.0])).encode(): "finite number",
    json.dumps(item(scores=[1e39, 0.0])).encode(): "rollouts.0.reward must be a finite 32-bit number",
    json.dumps(item(tokens=[[-1] * 3, [1] * 4])).encode(): "tokens.0.0",
    json.dumps({"tokens": [[1]]}).encode(): "masks: Field required",
    b"\xff\xfe\x00": "error parsing the body",
}


@pytest.mark.parametrize("text", BAD, ids=BAD.values())
def test_a_bad_line_is_told_with_its_place_and_the_rest_is_stored(run: Run, text: bytes) -> None:
    totals, [told] = load(run, lines([item(1), text, item(2)]))
    assert told.startswith("f:2: ")
    assert BAD[text] in told
    assert (totals.stored, totals.bad) == (2, 1)


def test_a_bad_line_that_is_not_skipped_ends_the_import_behind_what_came_before(run: Run) -> None:
    sent: list[Item | bytes] = [*[item(number) for number in range(20)], b"{", item(30)]
    with pytest.raises(BadLine, match="f:21: "):
        load(run, lines(sent), skips=False)
    assert ScoredGroup.objects.count() == 20
    sent[20] = item(31)
    assert load(run, lines(sent), skips=False)[0] == Imported(stored=2, known=20, rollouts=4, tokens=14)


def test_lines_without_logprobs_to_compare_with_are_bad_for_a_trainer_that_does() -> None:
    run = story.launch()
    sampled = {"inference_logprobs": COMPLETE["inference_logprobs"]}
    totals, bad = load(run, lines([item(1), item(2, **sampled)]))
    assert (totals.bad, totals.stored) == (1, 1)
    assert bad[0].startswith("f:1: inference_logprobs: It has none")


def test_lines_that_ask_for_what_only_a_trainer_of_atropos_knows_are_bad_for_one_of_ours() -> None:
    run = story.launch()
    unknown = ("group_overrides", "images", "distill_token_ids", "distill_logprobs")
    totals, bad = load(run, lines([COMPLETE, {key: COMPLETE[key] for key in COMPLETE if key not in unknown}]))
    assert (totals.bad, totals.stored) == (1, 1)
    assert bad[0].startswith(
        "f:1: group_overrides: It asks for the group_overrides sft, which only a trainer of Atropos"
    )
    assert "; images: It has images, " in bad[0]


def test_lines_are_read_no_further_ahead_than_a_chunk(run: Run) -> None:
    read = 0

    def counted() -> Iterator[Line]:
        nonlocal read
        for line in lines(item(number) for number in range(100)):
            read += 1
            yield line

    totals = Imported()
    source = exchange.import_groups(run, counted(), totals, environment="e", actor="a", on_bad=pytest.fail)
    for _ in source:
        assert read - totals.stored <= 1
        assert totals.stored == ScoredGroup.objects.count()
    assert totals.stored == 100


def test_large_lines_are_stored_few_at_a_time(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "CHUNK_BYTES", 2 * len(json.dumps(item(1))) + 10)
    totals = Imported()
    source = exchange.import_groups(
        run, lines(item(number) for number in range(1, 6)), totals, environment="e", actor="a", on_bad=pytest.fail
    )
    assert [totals.stored for _ in source] == [2, 4, 5]


# --- reading files ---------------------------------------------------------------------------------------------------


def read(path: Path) -> list[Line]:
    with path.open("rb") as file:
        return list(exchange.lines_of(file, path.name))


def test_plain_and_gzipped_files_have_the_same_lines_with_their_numbers(tmp_path: Path) -> None:
    content = b'{"a": 1}\r\n\n   \n{"b": 2}\n{"c": 3}'
    wanted = [(1, b'{"a": 1}'), (4, b'{"b": 2}'), (5, b'{"c": 3}')]
    plain, packed = tmp_path / "a.jsonl", tmp_path / "b.jsonl.gz"
    plain.write_bytes(content)
    packed.write_bytes(gzip.compress(content[:9]) + gzip.compress(content[9:]))
    for path in (plain, packed):
        assert read(path) == [Line(f"{path.name}:{number}", text) for number, text in wanted]
    plain.write_bytes(b"")
    assert read(plain) == []
    plain.write_bytes(b"x")
    assert read(plain) == [Line("a.jsonl:1", b"x")]


@pytest.mark.parametrize("damage", [lambda packed: packed[:-12], lambda packed: packed[:40] + b"\0" * 20 + packed[60:]])
def test_a_damaged_gzip_file_is_told_at_the_line_where_it_ends(tmp_path: Path, damage: Any) -> None:
    path = tmp_path / "b.jsonl.gz"
    content = b"".join(json.dumps(item(number)).encode() + b"\n" for number in range(200))
    path.write_bytes(damage(gzip.compress(content)))
    *whole, last = read(path)
    assert all(json.loads(line.text) for line in whole if not line.fault)
    assert last.at == f"b.jsonl.gz:{len(whole) + 1}"
    assert "cannot be read from here on" in last.fault


def test_a_line_that_is_too_long_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "MAX_LINE_BYTES", 10)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"1234567890\n" + b"x" * 99 + b"\n" + b"12345\n" + b"y" * 30)
    first, second, third, fourth = read(path)
    assert (first.fault, third.text) == ("has more than 10 bytes", b"12345")
    assert [line.at for line in (second, third, fourth)] == ["a.jsonl:2", "a.jsonl:3", "a.jsonl:4"]
    assert "more than 10 bytes" in fourth.fault


def test_a_file_may_be_a_pipe() -> None:
    class Pipe(io.RawIOBase):
        source = io.BytesIO(gzip.compress(b"1\n2\n"))

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            return self.source.readinto(buffer)

    assert [line.text for line in exchange.lines_of(io.BufferedReader(Pipe()), "p")] == [b"1", b"2"]


# --- exporting -------------------------------------------------------------------------------------------------------


def test_groups_of_our_own_drivers_are_exported_with_labels_and_filled_logprobs() -> None:
    run = story.launch()
    first, second = story.claim(run, 2)
    story.settle(first, [1.0, None])
    story.settle(second, [None, None])
    [only] = dump(run)
    assert given_values(only) == {
        "tokens": [[65, 66, 67, 68]],
        "masks": [[-100, -100, 67, 68]],
        "scores": [1.0],
        "inference_logprobs": [[1.0, 1.0, -0.5, -0.5]],
        "messages": [[]],
    }
    assert dump(run, states=[GroupState.FAILED]) == [], "nothing was scored"


def test_groups_of_which_no_token_was_scored_make_no_line(run: Run) -> None:
    """Of seats that were never asked, or an endpoint: such a line could not be read in again."""
    nothing: dict[str, Any] = {"token_ids": [], "loss_mask": [], "inference_logprobs": [], "seat": "a"}
    unasked = story.scored("unasked", rewards=[])
    unasked.rollouts = [story.rollout(1.0, **nothing), story.rollout(0.0, **nothing)]
    half = story.scored("half", rewards=[])
    half.rollouts = [story.rollout(1.0, **nothing), story.rollout(None)]
    story.submit(run, [unasked, half, story.scored("whole")], actor="token:t")
    assert list(run.groups.order_by("key").values_list("token_count", flat=True)) == [4, 0, 8]
    [only] = dump(run)
    assert len(only["tokens"]) == 2


def test_calls_of_tools_are_exported_so_that_they_can_be_imported(run: Run) -> None:
    call = ToolCall("call_1", FunctionCall("add", "{}"))
    said = [Message("user", "?"), Message("assistant", tool_calls=[call]), Message("tool", "3", tool_call_id="call_1")]
    group = story.scored("mine")
    for rollout in group.rollouts:
        rollout.messages = said
    story.submit(run, [group], actor="token:t")
    [sent] = dump(run)
    assert sent["messages"][0][1] == {"role": "assistant", "content": "", "tool_calls": [msgspec.to_builtins(call)]}
    other = launch()
    load(other, lines([sent]))
    assert dump(other)[0]["messages"] == sent["messages"]


def test_states_and_environments_can_be_chosen() -> None:
    run, epoch = story.train()
    story.submit(run, [story.scored(str(n), environment="ab"[n % 2], problem_key=str(n)) for n in range(5)], actor="x")
    forming.fetch(run, epoch=epoch, step=0)
    ScoredGroup.objects.filter(key="4").update(state=GroupState.REJECTED, withheld="rejected")
    assert len(dump(run)) == 4
    assert len(dump(run, states=[GroupState.BATCHED])) == 2
    assert len(dump(run, states=[GroupState.READY, GroupState.REJECTED])) == 3
    assert len(dump(run, environment="a")) == 2
    assert len(dump(run, environment="b", states=[GroupState.BATCHED])) == 1
    assert dump(run, environment="none") == []


def test_an_export_goes_page_by_page_in_order_and_ends_with_what_was_there_when_it_began(
    run: Run, monkeypatch: pytest.MonkeyPatch, django_assert_max_num_queries: Any
) -> None:
    monkeypatch.setattr(exchange, "PAGE_IDS", 5)
    monkeypatch.setattr(exchange, "PAGE_TOKENS", 14)
    load(run, lines(item(number) for number in range(12)))
    other = launch()
    with django_assert_max_num_queries(1 + 3 + 2 * 7):
        source = exchange.export_groups(run)
        seen = [json.loads(next(source)) for _ in range(3)]
    load(run, lines([item(50)]))
    load(other, lines([item(51)]))
    seen += [json.loads(line) for line in source]
    assert [one["tokens"][0][2] - 100 for one in seen] == list(range(12))


def test_an_export_of_nothing_is_empty(run: Run) -> None:
    assert dump(run) == []
