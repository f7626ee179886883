"""process, evaluate and serve, against a server that says the same two tokens to everybody."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from environments import estimates
from environments.__main__ import main
from environments.library.reverse_text import ReverseText
from environments.types import Message, PlayedGroup, PlayedRollout, StopReason
from environments.verbs import commands, playing, synthesis
from environments.verbs.files import Conditions, GroupFile
from tests.environments.group_store import RUN, GroupStore, serving, status
from tests.workers.stub_server import StubServer, stub_server
from trainers.data.examples import parse_example

ASKED = ["reverse_text", "--at-once", "4"]
FEW = ["--args", '{"words": 1, "min_length": 1, "max_length": 1}']
"""Arguments with which there are as many problems as ever, and no more than 26 different ones."""


@pytest.fixture
def stub() -> Iterator[StubServer]:
    with stub_server() as server:
        yield server


def run(verb: str, stub: StubServer, *options: Any) -> int:
    return main([verb, *ASKED, "--base-url", f"{stub.url}/v1", *map(str, options)])


def groups_in(path: Path) -> list[PlayedGroup]:
    _, *lines = path.read_bytes().splitlines()
    return [msgspec.json.decode(line, type=PlayedGroup) for line in lines]


def test_what_is_in_the_file_is_not_played_again_and_a_line_cut_short_is(stub: StubServer, tmp_path: Path) -> None:
    out = tmp_path / "groups.jsonl"
    assert run("process", stub, "--out", out, "--problems", 3, "--samples", 2) == 0
    known = groups_in(out)
    with out.open("ab") as file:
        file.write(b'{"environment": "reverse_te')  # as a kill leaves it
    before = stub.generated
    assert run("process", stub, "--out", out, "--problems", 5, "--samples", 2) == 0
    played = groups_in(out)
    assert played[:3] == known
    assert len({group.problem_key for group in played}) == 5
    assert stub.generated == before + 2, "one request for each of the two that were missing"


def test_a_file_of_something_else_is_left_alone(
    stub: StubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "notes.txt"
    out.write_text("dear diary\n")
    assert run("process", stub, "--out", out) == 2
    assert "line 1, is no group" in capsys.readouterr().err
    assert out.read_text() == "dear diary\n"


def test_options_come_from_a_file_and_the_command_line_wins(
    stub: StubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toml, yaml = tmp_path / "play.toml", tmp_path / "play.yaml"
    toml.write_text(f'out = "{tmp_path / "a.jsonl"}"\nproblems = 4\nsamples = 3\nargs = {{ max_length = 4 }}\n')
    yaml.write_text(f"out: {tmp_path / 'b.jsonl'}\nmax-tokens: 1\nproblems: 1\n")
    assert run("process", stub, "--config", toml, "--problems", 2) == 0
    assert [len(group.rollouts) for group in groups_in(tmp_path / "a.jsonl")] == [3, 3]
    assert all(len(group.problem_key) <= 4 for group in groups_in(tmp_path / "a.jsonl"))
    assert run("process", stub, "--config", yaml) == 0
    assert [sum(rollout.loss_mask) for rollout in groups_in(tmp_path / "b.jsonl")[0].rollouts] == [1] * 4
    yaml.write_text("probelms: 3\n")
    assert run("process", stub, "--config", yaml) == 2
    assert "probelms is no option" in capsys.readouterr().err


def test_an_evaluation_says_what_its_samples_are_worth(
    stub: StubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "eval.jsonl"
    options = ["--problems", 6, "--samples", 4, "--threshold", 0.1, "--out", out, "--html", tmp_path / "eval.html"]
    assert run("evaluate", stub, *options) == 0
    found = json.loads(capsys.readouterr().out)
    solved = [[rollout.reward or 0.0 for rollout in group.rollouts] for group in groups_in(out)]
    assert (found["problems"], found["rollouts"], found["failed"]) == (6, 24, 0)
    assert found["avg@4"] == estimates.mean(solved)._asdict() | {"problems": 6}
    assert found["pass@2"] == estimates.at_k(solved, 2, threshold=0.1)._asdict() | {"problems": 6}
    assert found["pass^4"] == estimates.hat_k(solved, 4, threshold=0.1)._asdict() | {"problems": 6}
    assert (tmp_path / "eval.html").read_text().count("<details open>") == 6


def test_problems_that_are_the_same_are_each_played_and_counted(
    stub: StubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "eval.jsonl"
    assert run("evaluate", stub, *FEW, "--problems", 60, "--samples", 2, "--out", out) == 0
    found = json.loads(capsys.readouterr().out)
    assert len({group.problem_key for group in groups_in(out)}) <= 26
    assert (found["problems"], found["rollouts"]) == (60, 120)
    assert run("evaluate", stub, *FEW, "--problems", 60, "--samples", 2) == 0
    assert json.loads(capsys.readouterr().out) == found, "as without a file"


@pytest.mark.parametrize("is_away", [False, True], ids=["killed", "without a server"])
def test_problems_that_are_the_same_are_gone_on_with_where_they_were(
    stub: StubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], is_away: bool
) -> None:
    out, undisturbed = tmp_path / "eval.jsonl", tmp_path / "undisturbed.jsonl"
    options = [*FEW, "--samples", 2, "--problems"]
    run("evaluate", stub, *options, 25, "--out", out)
    if is_away:
        stub.mode = "error"
        assert run("evaluate", stub, *options, 60, "--out", out) == 1
        capsys.readouterr()
        assert run("evaluate", stub, *options, 60, "--out", out) == 1, "each is tried again, and again for nothing"
        found = json.loads(capsys.readouterr().out)
        assert (found["problems"], found["problems_without_a_score"], found["failed"]) == (60, 35, 70)
        stub.mode = "ok"
    before = stub.generated
    assert run("evaluate", stub, *options, 60, "--out", out) == 0
    assert stub.generated == before + 35
    assert run("evaluate", stub, *options, 60, "--out", undisturbed) == 0
    assert _played(groups_in(undisturbed)) == _played(_last_of(out))
    assert run("evaluate", stub, *FEW, "--samples", 2, "--index", 60, "--problems", 40, "--out", out) == 0
    assert run("evaluate", stub, *options, 100, "--out", undisturbed) == 0
    assert _played(groups_in(undisturbed)) == _played(_last_of(out)), "in another order of problems too"
    assert stub.generated == before + 35 + 60 + 40 + 40


def _last_of(path: Path) -> list[PlayedGroup]:
    with GroupFile(path, msgspec.convert(json.loads(path.open().readline())["played"], Conditions)) as file:
        return list(file.groups())


def _played(groups: list[PlayedGroup]) -> list[Any]:
    return sorted((group.problem_key, group.key, [each.reward for each in group.rollouts]) for group in groups)


def test_a_file_of_before_groups_had_keys_is_gone_on_with(
    stub: StubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "eval.jsonl"
    options = [*FEW, "--problems", 60, "--samples", 2, "--out", out]
    run("evaluate", stub, *options)
    stub.mode = "error"
    run("evaluate", stub, *FEW, "--index", 60, "--problems", 1, "--samples", 2, "--out", out)
    stub.mode = "ok"
    first = {group.problem_key: group for group in reversed(groups_in(out)[:60])}
    unanswered = groups_in(out)[60]
    kept = [group for key, group in first.items() if key != unanswered.problem_key] + [unanswered]
    out.write_bytes(b"".join(msgspec.json.encode(_without_key(group)) + b"\n" for group in kept))
    capsys.readouterr()
    before = stub.generated
    for _ in range(2):
        assert run("evaluate", stub, *options) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["problems"], found["rollouts"], found["failed"]) == (60, 120, 0)
    assert stub.generated == before + 60 - (len(kept) - 1)


def _without_key(group: PlayedGroup) -> PlayedGroup:
    return msgspec.structs.replace(group, key=None)


def test_what_was_played_otherwise_is_not_gone_on_with(
    stub: StubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "eval.jsonl"
    options = ["--problems", 3, "--samples", 2, "--out", out]
    assert run("evaluate", stub, *options, "--model", "a") == 0
    before = stub.generated, out.read_bytes()
    for other, told in (
        (["--model", "b"], "model 'a', not 'b'"),
        (["--model", "a", "--temperature", 0], "temperature 1.0, not 0.0"),
        (["--model", "a", "--max-tokens", 7], "max_tokens 256, not 7"),
        (["--model", "a", "--samples", 4], "samples 2, not 4"),
        (["--model", "a", *FEW], "args {}, not {'words': 1"),
    ):
        capsys.readouterr()
        assert run("evaluate", stub, *options, *other) == 2
        said = capsys.readouterr().err
        assert f"eval.jsonl has groups of {told}" in said
        assert "name another file" in said
    assert main(["evaluate", "alphabet_sort", "--base-url", f"{stub.url}/v1", *map(str, options)]) == 2
    assert "environment 'reverse_text', not 'alphabet_sort'" in capsys.readouterr().err
    assert (stub.generated, out.read_bytes()) == before
    assert run("evaluate", stub, *options, "--model", "a") == 0


def test_only_the_problems_that_are_asked_for_are_summed_up(
    stub: StubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    groups, out = tmp_path / "groups.jsonl", tmp_path / "sft.jsonl"
    assert run("process", stub, "--problems", 5, "--samples", 2, "--out", groups) == 0
    assert run("evaluate", stub, "--problems", 3, "--samples", 2, "--out", groups, "--html", tmp_path / "x.html") == 0
    assert json.loads(capsys.readouterr().out)["problems"] == 3, "none of those to train on"
    assert (tmp_path / "x.html").read_text().count("<details open>") == 3
    assert run("evaluate", stub, "--problems", 2, "--samples", 2, "--out", groups) == 0
    assert json.loads(capsys.readouterr().out)["problems"] == 2
    options = ["--samples", 2, "--groups", groups, "--out", out, "--min-reward", 0]
    assert run("synthesize", stub, "--problems", 4, *options) == 0
    assert json.loads(capsys.readouterr().out)["problems"] == 4
    held_out = {group.problem_key for group in groups_in(groups) if str(group.key).startswith("eval")}
    assert not held_out & {json.loads(line)["problem_key"] for line in out.read_text().splitlines()}


def test_what_would_measure_nothing_is_not_evaluated(stub: StubServer, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--base-url", f"{stub.url}/v1", "--problems", "1", "--samples", "1"]
    assert main(["evaluate", "judge", *asked]) == 2
    assert "--args: against: 'group' compares replies of one policy with each other" in capsys.readouterr().err
    assert stub.generated == 0


def test_rollouts_that_failed_have_no_score_and_are_counted(
    stub: StubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "eval.jsonl"
    run("evaluate", stub, "--problems", 1, "--samples", 2, "--out", out)
    stub.mode = "error"
    capsys.readouterr()
    assert run("evaluate", stub, "--problems", 3, "--samples", 2, "--out", out) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["problems"], found["problems_without_a_score"]) == (3, 2)
    assert (found["rollouts"], found["failed"]) == (6, 4)
    assert found["errors"] == {"policy: PolicyUnavailable": 4}
    assert found["pass@2"]["problems"] == 1
    stub.mode = "ok"
    assert run("evaluate", stub, "--problems", 3, "--samples", 2, "--out", out) == 0, "the server is back"
    assert json.loads(capsys.readouterr().out)["pass@2"]["problems"] == 3


def test_a_teachers_best_rollouts_become_sft_data_that_says_where_it_is_from(
    stub: StubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    groups, out = tmp_path / "groups.jsonl", tmp_path / "sft.jsonl"
    options = ["--problems", 12, "--samples", 3, "--groups", groups, "--out", out, "--min-reward", 0.05]
    assert run("synthesize", stub, *options) == 0
    kept = json.loads(capsys.readouterr().out)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    good = {group.problem_key for group in groups_in(groups) if (group.rollouts[0].reward or 0) >= 0.05}
    assert {line["problem_key"] for line in lines} == good
    assert 0 < len(lines) < 12
    assert (kept["lines"], kept["surplus"], kept["too_low"]) == (len(lines), 2 * len(lines), 36 - 3 * len(lines))
    assert kept["tokens"] == 36 * 2
    assert {(line["environment"], line["environment_version"], line["teacher"]) for line in lines} == {
        ("reverse_text", ReverseText.version, "policy")
    }
    assert all(line["messages"][-1] == {"role": "assistant", "content": "gg"} for line in lines)
    for number, line in enumerate(out.read_bytes().splitlines()):
        parse_example(line, f"line {number}", ["assistant"])  # the trainer takes it as it is


def test_good_rollouts_of_problems_that_are_the_same_are_all_kept(
    stub: StubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    groups, out = tmp_path / "groups.jsonl", tmp_path / "sft.jsonl"
    options = [*FEW, "--problems", 60, "--samples", 1, "--groups", groups, "--out", out, "--min-reward", 0]
    assert run("synthesize", stub, *options) == 0
    kept = json.loads(capsys.readouterr().out)
    assert (kept["problems"], kept["lines"]) == (60, 60)


def test_examples_that_a_problem_shows_are_not_the_teachers(stub: StubServer, tmp_path: Path) -> None:
    rows = [{"question": f"{n}?", "choices": ["yes", "no"], "answer": "yes"} for n in range(12)]
    (tmp_path / "train.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    args = json.dumps({"data": str(tmp_path), "few_shot": 3})
    out, url = tmp_path / "sft.jsonl", f"{stub.url}/v1"
    options = ["--problems", "2", "--samples", "1", "--groups", f"{tmp_path}/played", "--out", str(out)]
    assert main(["synthesize", "choices", "--args", args, "--base-url", url, *options, "--min-reward", "0"]) == 0
    for line in map(json.loads, out.read_text().splitlines()):
        assert [message["role"] for message in line["prompt"]] == [*["user", "assistant"] * 3, "user"]
        assert [message["content"] for message in line["completion"]] == ["gg"]


def test_what_two_branches_of_a_rollout_have_in_common_is_one_line_to_train_on() -> None:
    asked, said, more = Message("user", "1?"), Message("assistant", "a"), Message("user", "2?")
    rollout = PlayedRollout(
        token_ids=[1, 2, 3, 4, 1, 2, 3, 5, 6],
        loss_mask=[0, 1, 0, 1, 0, 0, 0, 1, 1],
        inference_logprobs=[0.0] * 9,
        branch_lengths=[4, 5],
        earlier_branches=[[asked, said, more, Message("assistant", "b")]],
        messages=[asked, said, Message("user", "3?"), Message("assistant", "c")],
        reward=1.0,
    )
    group = PlayedGroup(environment="e", problem_key="p", rollouts=[rollout])
    first, second = synthesis.lines([group], synthesis.Kept(), "teacher", 1.0, 1)
    assert [message["content"] for message in first["messages"]] == ["1?", "a", "2?", "b"]
    assert [message["content"] for message in second["prompt"]] == ["1?", "a", "3?"]
    assert [message["content"] for message in second["completion"]] == ["c"]


@pytest.mark.parametrize("verb", ["play", "process", "evaluate", "synthesize", "serve"])
def test_problems_with_tools_are_not_played_where_no_call_would_be_heard(
    verb: str, stub: StubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROLLYARD_TOKEN", "t")
    options = {
        "play": [],
        "process": ["--out", tmp_path / "groups.jsonl"],
        "evaluate": [],
        "synthesize": ["--groups", tmp_path / "groups.jsonl", "--out", tmp_path / "sft.jsonl"],
        "serve": ["--url", "http://127.0.0.1:9", "--run", RUN],
    }[verb]
    assert main([verb, "calculator", "--base-url", f"{stub.url}/v1", *map(str, options)]) == 2
    assert "--tokenizer" in capsys.readouterr().err
    assert stub.generated == 0


def test_groups_are_served_into_a_run_until_it_is_over(
    stub: StubServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = GroupStore()
    monkeypatch.setenv("ROLLYARD_TOKEN", "t")
    with serving(store) as url:
        assert run("serve", stub, "--url", url, "--run", RUN, "--samples", 2, "--problems", 5) == 0
        assert {len(group.rollouts) for group in store.groups.values()} == {2}
        assert len(store.groups) == 5
        store.mishaps.append(status(410, code="run_over", detail="Run run-1 is finished."))
        assert run("serve", stub, "--url", url, "--run", RUN) == 0
    assert "is finished" in capsys.readouterr().err


def test_a_run_is_sent_no_failures_while_the_policys_server_restarts(
    stub: StubServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = GroupStore()
    monkeypatch.setenv("ROLLYARD_TOKEN", "t")
    monkeypatch.setattr(playing, "_FIRST_PAUSE_S", 0.1)
    stub.mode = "error"
    with serving(store) as url:
        threading.Timer(0.3, lambda: setattr(stub, "mode", "ok")).start()
        assert run("serve", stub, "--url", url, "--run", RUN, "--samples", 2, "--problems", 5) == 0
    assert len(store.groups) == 5
    assert not any(rollout.error for group in store.groups.values() for rollout in group.rollouts)
    assert "again in" in capsys.readouterr().err


def test_what_is_refused_for_good_is_sent_at_once(stub: StubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    store = GroupStore()
    monkeypatch.setenv("ROLLYARD_TOKEN", "t")
    stub.mode = "refuse"
    with serving(store) as url:
        assert run("serve", stub, "--url", url, "--run", RUN, "--samples", 1, "--problems", 2) == 0
    assert len(store.groups) == 2


def test_a_server_that_went_with_its_run_keeps_nobody_from_hearing_that(
    stub: StubServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = GroupStore()
    monkeypatch.setenv("ROLLYARD_TOKEN", "t")
    monkeypatch.setattr(playing, "_FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr(commands, "_PATIENCE_S", 0.2)
    stub.mode = "error"
    store.mishaps.append(status(410, code="run_over", detail="Run run-1 is finished."))
    with serving(store) as url:
        assert run("serve", stub, "--url", url, "--run", RUN, "--samples", 1) == 0
    assert "is finished" in capsys.readouterr().err


def test_of_a_match_the_best_of_each_seat_are_kept() -> None:
    rollouts = [
        PlayedRollout(
            messages=[Message("user", "a card"), Message("assistant", seat)],
            token_ids=[1, 2],
            loss_mask=[0, 1],
            inference_logprobs=[0.0, -0.5],
            reward=reward,
            seat=seat,
            stop_reason=StopReason.STOP,
        )
        for seat, reward in (("first", 1.0), ("second", 0.5), ("first", 0.75), ("second", 0.25))
    ]
    group = PlayedGroup(environment="e", environment_version="1", problem_key="p", rollouts=rollouts)
    kept = synthesis.Kept()
    lines = list(synthesis.lines([group], kept, "teacher", 0.0, 1))
    assert [(line["seat"], line["reward"]) for line in lines] == [("first", 1.0), ("second", 0.5)]
    assert kept.surplus == 2
