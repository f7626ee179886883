"""`rollyard launch`: what is wrong is told at once, a dry run starts nothing, the shell completes."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from controlplane.cli import main
from controlplane.cli.terminal import config_line
from rollouts.models import Run
from rollouts.services.runs import projects
from tests.factories import make_run

pytestmark = pytest.mark.django_db


def rollyard(*words: str, **environ: str) -> Result:
    projects.ensure_admin()
    return CliRunner().invoke(main.app, list(words), env=environ)


def complete(line: str) -> list[str]:
    """What bash would be offered behind a line; it takes a `=` for a word of its own."""
    words = line.replace("=", " = ").split()
    at = len(words) if line.endswith(" ") else len(words) - 1
    asked = {"_ROLLYARD_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(at)}
    return CliRunner().invoke(main.app, prog_name="rollyard", env=asked).stdout.split()


def test_every_fault_of_a_launch_is_printed_with_what_was_meant(tmp_path: Path) -> None:
    words = ["reverse-txt-rl", "optimizer.lr", "1e-4", "optimizer.shedule=linear", "batch.batch_size=9", "seed=x"]
    more = ["--file", str(tmp_path / "missing.toml"), "--project", "defualt", "--fork-optimizer"]
    refused = rollyard("launch", *words, *more)
    assert refused.exit_code == 1
    for key, hint in {
        "preset": "Did you mean reverse-text-rl?",
        "optimizer.lr": "Did you mean optimizer.lr=VALUE?",
        "1e-4": "KEY=VALUE",
        "optimizer.shedule": "Did you mean optimizer.schedule?",
        "batch.batch_size": "Use 8 or 16",
        "seed": "valid integer",
        "file": "missing.toml",
        "--project": "Did you mean default?",
        "--fork-optimizer": "--fork-from",
    }.items():
        line = next(line for line in refused.stderr.splitlines() if f"{key}: " in line)
        assert hint in line
    told = json.loads(rollyard("launch", *words, *more, "--json").stdout)["problems"]
    assert len(told) == 9
    assert {each["key"]: each["suggestion"] for each in told}["optimizer.shedule"] == "optimizer.schedule"
    assert not Run.objects.exists()


def test_a_key_without_a_value_is_no_preset() -> None:
    refused = rollyard("launch", "optimizer.lr", "--json")
    problems = {each["key"]: each["suggestion"] for each in json.loads(refused.stdout)["problems"]}
    assert problems["optimizer.lr"] == "optimizer.lr=VALUE"
    assert "preset" not in problems


def test_a_fork_of_an_unknown_run_names_the_one_that_was_meant() -> None:
    key = make_run().key
    refused = rollyard("launch", "reverse-text-rl", "max_stpes=3", "--fork-from", key[:-1], "--json")
    problems = {each["key"]: each["suggestion"] for each in json.loads(refused.stdout)["problems"]}
    assert problems == {"--fork-from": key, "max_stpes": "max_steps"}
    assert f"Did you mean {key}?" in rollyard("runs", "show", key[:-1]).stderr


def test_a_launch_without_a_word_names_the_presets() -> None:
    refused = rollyard("launch")
    assert refused.exit_code == 2
    assert "reverse-text-rl" in refused.stderr


def dry_run(*words: str) -> Any:
    done = rollyard("launch", *words, "--dry-run", "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_a_dry_run_prints_the_config_with_origins_and_starts_nothing() -> None:
    printed = dry_run("reverse-text-rl", "max_steps=3", "inference.replicas=2", "trainer.world_size=4")
    assert printed["config"]["max_steps"] == 3
    assert (printed["origins"]["max_steps"], printed["origins"]["seed"]) == ("command line", "default")
    assert [each["name"] for each in printed["commands"]] == ["inference-0", "inference-1", "trainer-0"]
    assert not Run.objects.exists()
    plain = rollyard("launch", "reverse-text-rl", "max_steps=3", "--dry-run").stdout
    assert [line.split() for line in plain.splitlines() if line.startswith("max_steps ")] == [
        ["max_steps", "3", "command", "line"]
    ]
    assert "--served-model-name policy" in plain
    assert "Nothing was started" in plain


def test_a_file_is_named_like_a_preset_and_the_command_line_wins_over_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('kind = "rl"\nmax_steps = 7\nseed = 3\nenvironments = [{ name = "reverse_text" }]\n')
    printed = dry_run(str(file), "seed=4", f"model.path={tmp_path}")
    assert (printed["config"]["max_steps"], printed["config"]["seed"]) == (7, 4)
    assert printed["origins"]["max_steps"] == f"file {file}"
    over = dry_run("reverse-text-rl", str(file), "max_steps=2")
    assert (over["config"]["max_steps"], over["config"]["seed"], over["config"]["batch"]["batch_size"]) == (2, 3, 128)
    missing = rollyard("launch", str(tmp_path / "none.toml"), "--dry-run")
    assert "none.toml: No such file or directory" in missing.stderr


def test_a_value_under_a_key_with_a_dot_is_printed_like_any_other() -> None:
    config = {"environments": [{"args": {"judges": {"gpt-4.1": 0.5}}}], "seed": 3}
    assert "0.5" in config_line(config, "environments.0.args.judges.gpt-4.1", "file")
    assert config_line(config, "seed", "file").split() == ["seed", "3", "file"]


def test_a_dry_run_needs_no_database(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise AssertionError("it connected")

    monkeypatch.setattr(main, "connect", refuse)
    assert dry_run("external-trainer")["commands"] == []


def test_a_dry_run_refuses_what_a_launch_refuses() -> None:
    refused = rollyard("launch", "reverse-text-rl", "optimizer.kind=adam", "--dry-run")
    assert refused.exit_code == 1
    assert "Did you mean adamw?" in refused.stderr


def test_a_dry_run_shows_adapters_and_where_they_would_lie(tmp_path: Path) -> None:
    printed = dry_run("reverse-text-rl", "model.lora.rank=8", f"model.path={tmp_path}")
    argv = printed["commands"][0]["argv"]
    assert argv[argv.index("--model") + 1] == str(tmp_path)
    assert argv[argv.index("--lora-modules") + 1].endswith("/runs/RUN/replicas/inference-0/idle_adapter")
    trainer = printed["commands"][-1]
    assert trainer["argv"][-1] == "trainers.rl"
    assert trainer["environ"]["ROLLYARD_TOKEN"] == "SECRET"


def test_a_dry_run_shows_the_servers_of_frozen_policies(tmp_path: Path) -> None:
    policies = '[{name = "rival", model = "start", replicas = 2}, {name = "judge", model = "./judge"}]'
    printed = dry_run("reverse-text-rl", f"model.path={tmp_path}", f"policies={policies}")
    found = {each["name"]: each for each in printed["commands"]}
    assert list(found) == ["inference-0", "inference-rival-0", "inference-rival-1", "inference-judge-0", "trainer-0"]
    served = [each["argv"][each["argv"].index("--model") + 1] for each in list(found.values())[:-1]]
    assert served == [str(tmp_path)] * 3 + ["./judge"]
    assert ["--generation-config" in each["argv"] for each in found.values()] == [False, True, True, True, False]


def test_a_dry_run_starts_servers_for_a_supervised_run_only_to_evaluate_it() -> None:
    assert [each["name"] for each in dry_run("reverse-text-sft")["commands"]] == ["trainer-0"]
    evaluated = dry_run("reverse-text-sft", "evaluation.problems=4")
    assert [each["name"] for each in evaluated["commands"]] == ["inference-0", "trainer-0"]


def test_an_unknown_command_names_the_one_that_was_meant(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for word, meant in {"lanch": "launch", "migarte": "migrate", "qqq": ""}.items():
        monkeypatch.setattr(sys, "argv", ["rollyard", word])
        with pytest.raises(SystemExit, match="2"):
            main.main()
        assert capsys.readouterr().err == f"error: no command {word!r}.{f' Did you mean {meant}?' if meant else ''}\n"


def test_the_shell_completes_presets_keys_and_values() -> None:
    assert complete("rollyard lau") == ["launch"]
    assert complete("rollyard launch rev") == ["reverse-text-rl", "reverse-text-sft"]
    assert complete("rollyard launch reverse-text-rl optimizer.l") == ["optimizer.lr=", "optimizer.lr_floor="]
    assert complete("rollyard launch reverse-text-rl rev") == []
    assert complete("rollyard launch reverse-text-rl optimizer.schedule=") == ["constant", "linear", "cosine"]
    assert complete("rollyard launch reverse-text-rl optimizer.schedule=co") == ["constant", "cosine"]
    assert complete("rollyard launch optimizer.schedule=") == ["constant", "linear", "cosine"]
    assert "--dry-run" in complete("rollyard launch --")


def test_the_shell_completes_runs() -> None:
    keys = [make_run().key for _ in range(2)]
    assert set(complete("rollyard runs show ")) == set(keys)
    assert complete(f"rollyard checkpoints list {keys[0][:-1]}") == [keys[0]]
