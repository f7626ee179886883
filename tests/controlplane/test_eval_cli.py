"""`rollyard eval`, `evaluations` and `synthesize`, as a person types them."""

import json
import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from controlplane.cli import follow
from environments.types import Message
from rollouts.models import Evaluation, Run
from rollouts.services import endpoints
from rollouts.services.groups import evaluations, settling
from rollouts.services.runs import life
from rollouts.states import RunState
from tests.controlplane.command_line import Done, Rollyard
from tests.model_files import whole_model
from tests.rollouts import story
from tests.rollouts.runs.test_eval_runs import begun
from trainers.data.examples import parse_example
from trainers.data.sources import read_lines

pytestmark = pytest.mark.django_db


@pytest.fixture
def model() -> str:
    return str(whole_model())


def launched(done: Done) -> list[Run]:
    assert done.returncode == 0, done.stderr
    return [Run.objects.get(key=json.loads(line)["run"]) for line in done.stdout.splitlines()]


def played(run: Run, rewards: list[float]) -> Run:
    """Every problem of a run, each of its rollouts a conversation; then it is finished."""
    run = begun(run)
    while claims := story.claim(run, 50):
        for claim in claims:
            said = [Message("user", f"problem {claim.problem_index}"), Message("assistant", "né")]
            rollouts = [story.rollout(reward, messages=said) for reward in rewards]
            settling.settle(token=claim.token, problem_key=f"p{claim.problem_index}", rollouts=rollouts, worker="w")
    evaluations.conclude(run)
    evaluations.advance(run)
    life.end(story.fresh(run), to=RunState.FINISHED)
    return story.fresh(run)


def test_several_targets_are_a_run_each(rollyard: Rollyard, model: str) -> None:
    endpoints.add(name="teacher", base_url="https://api.test/v1", model="m", is_for_all=True, actor="user:root")
    words = ["--env", 'calculator:{"max_digits": 2}', "--env", "reverse_text", "-k", "4", "--problems", "7", "--json"]
    own, taught = launched(rollyard("eval", model, "endpoint:teacher", *words, "--max-turns", "6"))
    assert (own.kind, own.parsed.model.path, own.parsed.inference.replicas) == ("eval", model, 1)
    assert (taught.parsed.model.endpoint, taught.parsed.inference.replicas) == ("teacher", 0)
    for run in (own, taught):
        plan = run.parsed.evaluation
        assert plan is not None
        assert (plan.problems, plan.rollouts_per_problem, plan.split, run.parsed.sampling.max_turns) == (
            7,
            4,
            "eval",
            6,
        )
        assert [ref.args for ref in run.parsed.environments] == [{"max_digits": 2}, {}]


@pytest.mark.parametrize("command", ["eval", "synthesize"])
def test_relative_places_start_where_the_command_was_given(
    rollyard: Rollyard, model: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rows.jsonl").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(follow, "follow", lambda key, show: 1)  # nobody plays it
    more = ["-o", "good.jsonl"] if command == "synthesize" else ["--follow"]
    rollyard(command, os.path.relpath(model), "--env", 'gsm8k:{"data": "rows.jsonl"}', "--env", "reverse_text", *more)
    config = Run.objects.get().parsed
    assert config.model.path == model
    assert [ref.args for ref in config.environments] == [{"data": str(tmp_path / "rows.jsonl")}, {}]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["no-such-model", "--env", "reverse_text"], "has no model no-such-model"),
        (["endpoint:nobody", "--env", "reverse_text"], "has no endpoint nobody"),
        (["MODEL"], "at least one environment"),
        (["MODEL", "--env", "reverse_tex"], "reverse_text"),
        (["MODEL", "--env", "calculator:[1]"], "NAME:JSON"),
        (["MODEL", "MODEL", "--name", "one", "--env", "reverse_text"], "several targets"),
    ],
)
def test_what_cannot_be_measured_is_one_sentence(rollyard: Rollyard, model: str, words: list[str], told: str) -> None:
    done = rollyard("eval", *(model if word == "MODEL" else word for word in words))
    assert done.returncode != 0
    assert told in " ".join(done.stderr.split())
    assert not Run.objects.exists()


def test_figures_are_shown_and_two_runs_are_compared(rollyard: Rollyard, model: str) -> None:
    first, second = launched(
        rollyard("eval", model, model, "--env", "reverse_text", "-k", "2", "--problems", "5", "--json")
    )
    played(first, [1.0, 0.0])
    played(second, [1.0, 1.0])
    shown = rollyard("evaluations", "show", first.key)
    assert "pass@2" in shown.stdout
    listed = rollyard("evaluations", "list").stdout.splitlines()
    assert [(row.split()[1], row.split()[-1]) for row in listed] == [(second.key, "1.000"), (first.key, "0.500")]
    numbers = [str(Evaluation.objects.get(run=run).pk) for run in (first, second)]
    told: dict[str, Any] = json.loads(rollyard("evaluations", "compare", *numbers, "--json").stdout)
    assert (told["difference"]["value"], told["pairs"], told["better"]) == (0.5, 5, 5)


@pytest.mark.parametrize("file", ["solved.jsonl", "solved.jsonl.gz", "solved.parquet"])
def test_a_synthesis_that_was_interrupted_is_gone_on_with_by_its_key(
    rollyard: Rollyard, model: str, tmp_path: Path, file: str
) -> None:
    [run] = launched(
        rollyard(
            "eval",
            model,
            "--env",
            "reverse_text",
            "-k",
            "3",
            "--problems",
            "4",
            "--set",
            "evaluation.split=train",
            "--json",
        )
    )
    played(run, [0.0, 1.0, 0.5])
    path = tmp_path / file
    done = rollyard("synthesize", run.key, "-o", path, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert {key: told[key] for key in ("problems", "rollouts", "failed", "truncated", "too_low", "examples")} == {
        "problems": 4,
        "rollouts": 12,
        "failed": 0,
        "truncated": 0,
        "too_low": 8,
        "examples": 4,
    }
    lines = path.read_bytes().splitlines() if file.endswith("jsonl") else list(read_lines(path))
    is_table = file.endswith("parquet")
    sources = pq.read_table(path).to_pylist() if is_table else [json.loads(line) for line in lines]
    assert {(each["run"], each["teacher"], each["reward"]) for each in sources} == {(run.key, model, 1.0)}
    assert len({each["problem_key"] for each in sources}) == 4
    for line in lines:
        parse_example(line, "line", ["assistant"])
    for option, value in (("--env", "calculator"), ("--samples", "4"), ("--temperature", "1.0"), ("--max-tokens", "9")):
        refused = rollyard("synthesize", run.key, "-o", path, option, value)
        assert (refused.returncode, f"'{option}'" in refused.stderr) == (2, True)
    for best, examples, surplus in (("1", 4, 4), ("0", 8, 0)):
        more = rollyard("synthesize", run.key, "-o", path, "--min-reward", "0.5", "--best", best, "--json")
        told = json.loads(more.stdout)
        assert (told["examples"], told["surplus"]) == (examples, surplus)
    none = rollyard("synthesize", run.key, "-o", path, "--min-reward", "1.5")
    assert (none.returncode, "earned 1.5; --min-reward asks for less" in none.stderr) == (1, True)


def test_only_what_plays_training_problems_is_a_synthesis(rollyard: Rollyard, model: str, tmp_path: Path) -> None:
    [run] = launched(rollyard("eval", model, "--env", "reverse_text", "--json"))
    done = rollyard("synthesize", run.key, "-o", tmp_path / "x.jsonl")
    assert done.returncode == 1
    assert f"rollyard export-sft {run.key}" in done.stderr
    assert not (tmp_path / "x.jsonl").exists()


def test_nothing_is_played_for_a_file_that_could_not_be_written(rollyard: Rollyard, model: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for output in (tmp_path / "no" / "x.jsonl", tmp_path / "file" / "x.jsonl", Path("/proc/x.jsonl")):
        done = rollyard("synthesize", model, "--env", "reverse_text", "-o", output)
        assert done.returncode == 1
        assert f"nothing can be written in {output.parent}: " in done.stderr
    assert not Run.objects.exists()
