"""Run configs: precedence, origins, refusals and the frozen surface."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from trainers.config import ConfigError, Layer, RunConfig, load_preset, parse_override, preset_names, resolve
from trainers.origins import REQUEST, Origin, OriginKind
from trainers.run_config import AlgorithmConfig, GrpoLoss

GOLDEN = Path(__file__).parents[1] / "snapshots" / "run_config.schema.json"
MINIMAL: dict[str, Any] = {"max_steps": 4, "model": {"path": "m"}, "environments": [{"name": "reverse_text"}]}


def problems_of(**overrides: Any) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        resolve(inline=MINIMAL, overrides={key.replace("__", "."): value for key, value in overrides.items()})
    return {problem.path: problem.message for problem in caught.value.problems}


def test_schema_equals_the_golden_file() -> None:
    """Run with ROLLYARD_UPDATE_SNAPSHOTS=1 after a wanted change, so that the change shows up in review."""
    schema = json.dumps(RunConfig.model_json_schema(), indent=1, sort_keys=True) + "\n"
    if os.environ.get("ROLLYARD_UPDATE_SNAPSHOTS"):
        GOLDEN.write_text(schema, encoding="utf-8")
    assert schema == GOLDEN.read_text(encoding="utf-8")


def test_every_field_has_help_text() -> None:
    schema = RunConfig.model_json_schema()
    for name, section in schema["$defs"].items():
        assert section["description"], name
        for field, value in section["properties"].items():
            assert value.get("description"), f"{name}.{field}"


def test_every_source_overrides_the_one_before_it(tmp_path: Path) -> None:
    first, second = tmp_path / "first.toml", tmp_path / "second.toml"
    first.write_text("seed = 2\n[optimizer]\nlr = 0.2\neps = 0.2\n")
    second.write_text("[optimizer]\nlr = 0.3\n[trainer]\nseq_len = 4096\n")
    environ = {"ROLLYARD__SEED": "1", "ROLLYARD__OPTIMIZER__LR": "0.1", "ROLLYARD__WORKERS__CONCURRENCY": "3", "X": "y"}
    resolved = resolve(
        "reverse-text-rl",
        [first, second],
        ["trainer.seq_len=8192", "environments.0.args.words=2"],
        environ,
        inline={"name": "inline"},
    )
    config, origins = resolved.config, resolved.origins
    assert (config.seed, config.optimizer.lr, config.optimizer.eps) == (2, 0.3, 0.2)
    assert (config.trainer.seq_len, config.workers.concurrency, config.name) == (8192, 3, "inline")
    assert config.environments[0].args["words"] == 2
    assert str(origins["seed"]) == f"file {first}"
    assert str(origins["optimizer.lr"]) == f"file {second}"
    assert str(origins["trainer.seq_len"]) == "command line"
    assert str(origins["workers.concurrency"]) == "environment ROLLYARD__WORKERS__CONCURRENCY"
    assert str(origins["environments.0.args.words"]) == "command line"
    assert str(origins["environments.0.name"]) == "preset reverse-text-rl"
    assert str(origins["name"]) == "REST request"
    assert str(origins["launcher.type"]) == "default"


def test_resolved_config_survives_json() -> None:
    config = resolve("reverse-text-rl").config
    assert RunConfig.model_validate(json.loads(config.model_dump_json())) == config


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_is_valid(name: str) -> None:
    assert resolve(name).config.kind == load_preset(name)["kind"]


def test_config_is_frozen() -> None:
    with pytest.raises(ValidationError):
        resolve(inline=MINIMAL).config.seed = 1


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a.b=1e-3", 1e-3),
        ("a=true", True),
        ("a=[1, 2]", [1, 2]),
        ('a="1"', "1"),
        ("a=run-7", "run-7"),
        ("a=null", None),
    ],
)
def test_override_values_are_toml_or_plain_strings(text: str, value: Any) -> None:
    assert parse_override(text)[1] == value


@pytest.mark.parametrize(
    ("overrides", "path", "hint"),
    [
        (
            {"environments": [], "data.solutions": False, "data.path": "mine.jsonl"},
            "environments",
            "an SFT run is evaluated",
        ),
        ({"inference.replicas": 0}, "inference.replicas", "at least 1"),
        ({"sampling.max_tokens": 512}, "sampling.max_tokens", "no room for a prompt"),
    ],
)
def test_an_evaluation_of_a_supervised_run_that_nobody_could_play_is_refused(
    overrides: dict[str, Any], path: str, hint: str
) -> None:
    overrides = {"data.solutions": False, "data.path": "x.jsonl"} | overrides
    with pytest.raises(ConfigError) as caught:
        resolve("reverse-text-sft", overrides=overrides | {"evaluation.problems": 4})
    assert hint in {problem.path: problem.message for problem in caught.value.problems}[path]
    assert not resolve("reverse-text-sft", overrides=overrides).config.is_played


def test_the_number_of_rollouts_means_nothing_in_a_batch_of_tokens() -> None:
    problem = {"batch.batch_size": 7}
    with pytest.raises(ConfigError):
        resolve("reverse-text-rl", overrides=problem)
    assert resolve("reverse-text-rl", overrides=problem | {"batch.token_batch_size": 999}).config


def test_null_override_removes_an_optional_section() -> None:
    assert resolve("reverse-text-rl", overrides=["evaluation=null"]).config.evaluation is None


@pytest.mark.parametrize(
    ("overrides", "path", "hint"),
    [
        ({"batch__batch_size": 20}, "batch.batch_size", "16 or 24"),
        ({"batch__batch_size": 7}, "batch.batch_size", "(8). Use 8."),
        ({"kind": "external", "batch__max_queued_rollouts": 9}, "batch.max_queued_rollouts", "batch.batch_size (128)"),
        ({"sampling__group_size": 1}, "sampling.group_size", "at least 2"),
        ({"algorithm__advantage": "leave_one_out", "sampling__group_size": 1}, "sampling.group_size", "at least 2"),
        ({"algorithm__loss__clip_low": 3}, "algorithm.loss.clip_low", "less than 1"),
        ({"algorithm__loss__type": "nothing"}, "algorithm.loss", "expected tags"),
        ({"algorithm__loss__type": "distill", "algorithm__advantage": "mean"}, "algorithm.advantage", "'auto'"),
        (
            {"algorithm__filter_zero_advantage": True, "algorithm__advantage": "none"},
            "algorithm.filter_zero_advantage",
            "another advantage",
        ),
        (
            {"algorithm__filter_zero_advantage": True, "algorithm__loss__type": "dppo"},
            "algorithm.filter_zero_advantage",
            "set algorithm.loss.kl_tau to 0",
        ),
        (
            {"algorithm__filter_zero_advantage": True, "algorithm__loss": {"type": "custom", "path": "a.b"}},
            "algorithm.filter_zero_advantage",
            "another loss",
        ),
        (
            {"algorithm__filter_zero_advantage": True, "algorithm__terms__reference_kl": 0.1},
            "algorithm.filter_zero_advantage",
            "set algorithm.terms.reference_kl to 0",
        ),
        ({"algorithm__loss": {"type": "aipo", "delta": 0.5}}, "algorithm.loss.delta", "at least 1"),
        ({"algorithm__loss": {"type": "distill", "delta": 0.99}}, "algorithm.loss.delta", "at least 1"),
        ({"algorithm__corrections__token_cap": 2}, "algorithm.corrections.token_cap", "ratio_against to 'old'"),
        ({"algorithm__corrections__sequence_cap": 2}, "algorithm.corrections.sequence_cap", "ratio_against to 'old'"),
        (
            {
                "algorithm__corrections": {"token_cap": 2, "sequence_cap": 2},
                "algorithm__ratio_against": "old",
            },
            "algorithm.corrections.sequence_cap",
            "Keep one",
        ),
        (
            {"algorithm__loss__type": "distill", "algorithm__terms__distillation": 1},
            "algorithm.terms.distillation",
            "another loss",
        ),
        (
            {"algorithm__loss__type": "dppo", "algorithm__ratio_against": "old"},
            "algorithm.ratio_against",
            "Use 'inference'",
        ),
        ({"algorithm__constant_length": 9}, "algorithm.constant_length", "'constant'"),
        ({"algorithm__loss": {"type": "custom", "path": "loss"}}, "algorithm.loss.path", "pattern"),
        ({"sampling__max_tokens": 2048, "trainer__seq_len": 9000}, "sampling.max_tokens", "max_model_len (2048)"),
        ({"trainer__seq_len": 512}, "trainer.seq_len", "more than sampling.max_tokens"),
        ({"sampling__top_p": 0.9}, "sampling.top_p", "ratios would be wrong"),
        ({"environments": []}, "environments", "at least one"),
        ({"environments": [{"name": "a"}, {"name": "a"}]}, "environments", "twice"),
        ({"data__path": "x"}, "data", "kind to 'sft'"),
        ({"policies": [{"name": "a"}]}, "policies.0.model", "or endpoint has to say who answers as 'a'"),
        ({"policies": [{"name": "a", "model": "start", "endpoint": "b"}]}, "policies.0.model", "Leave one of them out"),
        ({"policies": [{"name": "a", "endpoint": "b", "replicas": 2}]}, "policies.0.replicas", "an endpoint answers"),
        ({"policies": [{"name": "a", "model": "start", "replicas": 0}]}, "policies.0.replicas", "greater than"),
        (
            {"kind": "eval", "model__path": "", "model__endpoint": "b", "policies": [{"name": "a", "model": "start"}]},
            "policies.0.model",
            "Name a model",
        ),
        ({"kind": "sft"}, "data.path", "JSONL"),
        ({"kind": "sft", "data__batch_size": 4}, "data.path", "or `data.solutions`"),
        ({"kind": "sft", "environments": [], "data__solutions": True}, "data.solutions", "Name one"),
        (
            {"kind": "sft", "data__solutions": True, "data__preference__beta": 0.1},
            "data.solutions",
            "file of pairs",
        ),
        ({"kind": "external", "register_as": "mine"}, "register_as", "written elsewhere"),
        ({"model__lora__rank": 8, "register_as": "mine"}, "register_as", "an adapter"),
        ({"register_as": "a@1"}, "register_as", "pattern"),
        ({"optimizer__schedule": "linear", "optimizer__warmup_steps": 4}, "optimizer.warmup_steps", "max_steps (4)"),
        ({"trainer__world_size": 3, "trainer__tensor_parallel": 2}, "trainer.world_size", "Use 4, or lower"),
        (
            {"trainer__world_size": 2, "trainer__context_parallel": 2, "trainer__seq_len": 4097},
            "trainer.seq_len",
            "4096",
        ),
        (
            {"trainer__world_size": 4, "trainer__pipeline_parallel": 2, "trainer__tensor_parallel": 2},
            "trainer.pipeline_parallel",
            "Set it to 1",
        ),
        (
            {"trainer__world_size": 2, "trainer__pipeline_parallel": 2, "trainer__cpu_offload": True},
            "trainer.pipeline_parallel",
            "leave trainer.cpu_offload out",
        ),
        ({"trainer__activation_offload": True}, "trainer.activation_offload", "Set trainer.activation_checkpointing"),
        ({"trainer__pipeline_parallel": 2}, "trainer.world_size", "Use 2, or lower"),
        ({"evaluation__problems": 0}, "evaluation.problems", "leave the section evaluation out"),
        ({"optimizer__schedule": "cosine", "optimizer__decay_steps": 5}, "optimizer.decay_steps", "max_steps (4)"),
        ({"optimizer__decay_steps": 2}, "optimizer.decay_steps", "'linear' or 'cosine'"),
        ({"optimizer__lr_floor": 0.1}, "optimizer.lr_floor", "'linear' or 'cosine'"),
        ({"optimizer__lr": float("nan")}, "optimizer.lr", "finite"),
        ({"optimzer__lr": 1.0}, "optimzer", "spelling"),
        ({"max_steps__x": 1}, "max_steps", "no key below"),
        ({"environments__3__name": "a"}, "environments.3.name", "no index"),
        ({"inference__arguments": {"tensor-parallel-size": 2}}, "inference.arguments", "use inference.tensor_parallel"),
        ({"inference__arguments": {"uds": "/tmp/x"}}, "inference.arguments", "set for every server"),
        ({"inference__arguments": {"worker-extension": "x"}}, "inference.arguments", "short for worker-extension-cls"),
        ({"inference__arguments": {"--host": "x"}}, "inference.arguments", "without dashes before it"),
        ({"inference__arguments": {"block-size": "1\n2"}}, "inference.arguments", "one line"),
    ],
)
def test_nonsense_is_refused_with_key_and_fix(overrides: dict[str, Any], path: str, hint: str) -> None:
    assert hint in problems_of(**overrides)[path]


def test_validation_needs_one_source_and_preference_a_beta() -> None:
    sft: dict[str, Any] = {"kind": "sft", "data__path": "x"}
    assert "either a path or a share" in problems_of(**sft, data__validation__every=5)["data.validation.share"]
    both = {"data__validation__path": "y", "data__validation__share": 0.1}
    assert "either a path or a share" in problems_of(**sft, **both)["data.validation.share"]
    assert "data.preference.beta" in problems_of(**sft, data__preference={})
    assert "whole answers" in problems_of(**sft, data__preference__beta=0.1, data__turns="each")["data.turns"]
    assert "data.roles" in problems_of(**sft, data__roles=[])


def test_every_fault_of_a_launch_is_told_at_once_with_what_was_meant(tmp_path: Path) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text("lr = ")
    words = ["optimzer.lr=1", "optimizer.shedule=linear", "optimizer.kind=adam", "group_size=4", "lr", "max_steps=many"]
    words += ["environments.0.name=reverse_txt", "batch.batch_size=9", "algorithm.loss.type=grop"]
    with pytest.raises(ConfigError) as caught:
        resolve("reverse-txt-rl", [broken, tmp_path / "missing.toml"], words, {"ROLLYARD__SEDE": "1"})
    found = {problem.path: problem.suggestion for problem in caught.value.problems}
    assert found == {
        "preset": "reverse-text-rl",
        "file": "",
        "lr": "optimizer.lr=VALUE",
        "optimzer": "optimizer",
        "optimizer.shedule": "optimizer.schedule",
        "optimizer.kind": "adamw",
        "group_size": "sampling.group_size",
        "max_steps": "",
        "environments.0.name": "reverse_text",
        "batch.batch_size": "",
        "algorithm.loss": "grpo",
        "sede": "seed",
    }
    files = [problem.message for problem in caught.value.problems if problem.path == "file"]
    assert ["broken.toml is not TOML" in files[0], "missing.toml" in files[1]] == [True, True]
    assert "max_steps: " in str(caught.value)
    assert "Did you mean adamw?" in str(caught.value)


@pytest.mark.parametrize(
    ("args", "problems"),
    [
        ({"wrods": 2}, {"environments.0.args.wrods": "words"}),
        (
            {"words": "two", "min_lenght": 1},
            {"environments.0.args.words": "", "environments.0.args.min_lenght": "min_length"},
        ),
    ],
)
def test_arguments_of_an_environment_are_checked_at_launch(args: dict[str, Any], problems: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(inline=MINIMAL, overrides={"environments": [{"name": "reverse_text", "args": args}]})
    assert {problem.path: problem.suggestion for problem in caught.value.problems} == problems


def test_arguments_that_contradict_each_other_are_no_launch() -> None:
    found = problems_of(environments=[{"name": "reverse_text", "args": {"min_length": 9, "max_length": 3}}])
    assert found == {"environments.0.args": "min_length 9 is above max_length 3."}


def judged_by(*others: str, **args: Any) -> dict[str, Any]:
    environments = [{"name": "judge", "args": args}, *({"name": name} for name in others)]
    return {"environments": environments, "policies": [{"name": "judge", "endpoint": "j"}]}


@pytest.mark.parametrize(
    ("kind", "evaluation", "fix"),
    [
        ("rl", {}, "or mode to 'rubric'. Or leave the section evaluation out."),
        ("rl", {"rollouts_per_problem": 4}, "or mode to 'rubric'. Or leave the section evaluation out."),
        ("eval", {"rollouts_per_problem": 4}, "or mode to 'rubric'."),
        ("eval", {"split": "train"}, "or mode to 'rubric'."),
    ],
)
def test_an_evaluation_by_replies_of_one_policy_among_each_other_is_refused(
    kind: str, evaluation: dict[str, Any], fix: str
) -> None:
    asked = {"kind": kind, "evaluation": evaluation}
    found = problems_of(**asked, **judged_by())
    assert found.keys() == {"environments.0.args.against"}
    assert found["environments.0.args.against"].endswith(f"gives every policy .5. Set it to 'answer', {fix}")
    assert problems_of(**asked, **judged_by(mode="pairwise", against="group")) == found
    for measured in ({"against": "answer"}, {"mode": "rubric"}):
        config = resolve(inline=MINIMAL, overrides=asked | judged_by(**measured)).config
        assert config.measured == {"judge"}
    assert resolve(inline=MINIMAL, overrides=asked | judged_by("reverse_text")).config.measured == {"reverse_text"}


def test_replies_of_one_policy_are_compared_where_nothing_is_measured() -> None:
    resolve(inline=MINIMAL, overrides=judged_by())
    for evaluation in ({"problems": 0}, {"split": "train", "rollouts_per_problem": 4}):
        config = resolve(inline=MINIMAL, overrides={"kind": "eval", "evaluation": evaluation} | judged_by()).config
        assert config.measured == {"judge"}


@pytest.mark.parametrize(
    ("parts", "at", "words"),
    [
        ([{"name": "exakt"}], "0.name", "No reward is named 'exakt'. Known: choice, exact, "),
        (
            [{"name": "exact", "args": {"feild": "x"}}],
            "0.args",
            "Reward 'exact': Object contains unknown field `feild`",
        ),
        ([{"name": "matches", "args": {"pattern": "("}}], "0.args", "Reward 'matches': pattern: RE2 refuses it: "),
        ([{"name": "json_schema", "args": {"schema": {"type": 3}}}], "0.args", "Reward 'json_schema': schema: "),
        (
            [{"name": "exact"}, {"name": "length", "args": {"soft": 9, "hard": 9}}],
            "1.args",
            "Reward 'length': hard: 9 has to be above soft, 9.",
        ),
        ([{"name": "tagged", "args": {"tag": []}}], "0.args", "Reward 'tagged': tag: name at least one"),
        ([{"name": "exact"}, {"name": "exact"}], "", "Several rewards are called exact: give each a label."),
    ],
)
def test_what_is_wrong_with_rewards_is_said_at_launch(parts: list[dict[str, Any]], at: str, words: str) -> None:
    found = problems_of(environments=[{"name": "gsm8k", "args": {"data": "org/rows", "rewards": parts}}])
    assert found.keys() == {f"environments.0.args.rewards.{at}".rstrip(".")}
    assert next(iter(found.values())).startswith(words)


def test_rewards_of_another_python_are_known_to_that_alone() -> None:
    row = {"name": "gsm8k", "args": {"data": "org/rows", "rewards": [{"name": "theirs"}]}}
    assert problems_of(environments=[row]).keys() == {"environments.0.args.rewards.0.name"}
    resolve(inline=MINIMAL, overrides={"environments": [row | {"python": "theirs"}]})


@pytest.mark.parametrize(
    "args", [{"data": "org/rows"}, {"data": "/rows.jsonl"}, {"data": "org/rows", "rewards": [{"name": "theirs"}]}]
)
def test_nobodys_files_or_code_are_opened_beside_the_control_plane(args: dict[str, Any]) -> None:
    found = problems_of(environments=[{"name": "gsm8k", "process": "inline", "args": args}])
    assert "environments.0.process" in found


def test_environments_of_an_external_run_are_anybodys() -> None:
    resolve("external-trainer", overrides={"environments": [{"name": "theirs", "args": {"x": 1}}]})


def test_what_follows_from_a_fault_is_not_told_as_another() -> None:
    assert problems_of(data__pth="x", kind="sft", environments=[]).keys() == {"data.pth"}
    assert problems_of(environments__0__name=5).keys() == {"environments.0.name"}
    with pytest.raises(ConfigError) as caught:
        resolve(inline={**MINIMAL, "max_stpes": 3, "max_steps": "x"}, overrides=["optimizer.betas=[0.9, 2]"])
    assert {problem.path for problem in caught.value.problems} == {"max_stpes", "max_steps", "optimizer.betas.1"}
    with pytest.raises(ConfigError) as caught:
        resolve("nothing", overrides=["optimizer.lr=x"])
    assert [problem.path for problem in caught.value.problems] == ["preset", "optimizer.lr"]


def test_a_key_of_another_variant_is_not_suggested() -> None:
    aipo = {"algorithm__loss": {"type": "aipo", "clip_lo": 0.1}}
    with pytest.raises(ConfigError) as caught:
        resolve(inline=MINIMAL, overrides={key.replace("__", "."): value for key, value in aipo.items()})
    assert [problem.suggestion for problem in caught.value.problems] == [""]


def test_whoever_gave_a_value_is_named_as_its_origin() -> None:
    form = Origin(OriginKind.FORM)
    run = Origin(OriginKind.RUN, "abc")
    over = resolve("reverse-text-rl", inline={"seed": 1}, overrides={"max_steps": 2}, overrides_from=REQUEST).origins
    assert (over["seed"], over["max_steps"]) == (REQUEST, REQUEST)
    layered = resolve(
        layers=[Layer(run, MINIMAL)], inline={"seed": 1}, inline_from=form, overrides={"name": "n"}
    ).origins
    assert [str(layered[key]) for key in ("max_steps", "seed", "name")] == ["run abc", "launch form", "command line"]
    assert str(REQUEST) == "REST request"


def test_all_contradictions_are_reported_at_once() -> None:
    assert problems_of(batch__batch_size=20, trainer__seq_len=512).keys() == {"batch.batch_size", "trainer.seq_len"}


def test_another_type_replaces_the_whole_variant(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[algorithm.loss]\ntype = "other"\ndelta = 1\n')
    resolved = resolve(inline=MINIMAL, files=[file], overrides=["algorithm.loss={type='grpo', clip_low=0.1}"])
    assert resolved.config.algorithm.loss == GrpoLoss(clip_low=0.1)
    assert str(resolved.origins["algorithm.loss.clip_high"]) == "default"


def test_a_loss_without_type_is_grpo() -> None:
    assert resolve(inline=MINIMAL, overrides=["algorithm.loss.clip_low=0.1"]).config.algorithm.loss == GrpoLoss(
        clip_low=0.1
    )


@pytest.mark.parametrize(
    ("name", "advantage"),
    [
        ("aipo", "mean"),
        ("cispo", "mean_std"),
        ("dr_grpo", "mean"),
        ("grpo", "mean_std"),
        ("gspo", "mean_std"),
        ("opo", "length_weighted"),
        ("rloo", "leave_one_out"),
        ("distill", "none"),
    ],
)
def test_a_loss_brings_the_advantage_it_is_meant_to_go_with(name: str, advantage: str) -> None:
    overrides = [f"algorithm.loss.type={name}"]
    assert resolve(inline=MINIMAL, overrides=overrides).config.algorithm.advantage_method == advantage
    if name != "distill":
        config = resolve(inline=MINIMAL, overrides=[*overrides, "algorithm.advantage=max_rl"]).config
        assert config.algorithm.advantage_method == "max_rl"


@pytest.mark.parametrize(
    ("values", "reads"),
    [
        ({}, True),
        ({"ratio_against": "old"}, False),
        ({"ratio_against": "old", "corrections": {"geometric_low": 0.0}}, True),
        ({"ratio_against": "old", "loss": {"type": "custom", "path": "a.b"}}, True),
        ({"loss": {"type": "distill"}}, True),
        ({"loss": {"type": "distill", "ratio": "none"}}, False),
        ({"loss": {"type": "cross_entropy"}, "corrections": {"mask_overlong": True}}, False),
        ({"loss": {"type": "cross_entropy"}, "terms": {"distillation": 0.1}}, True),
    ],
)
def test_it_is_known_whether_anything_compares_with_what_the_engine_reported(
    values: dict[str, Any], reads: bool
) -> None:
    assert AlgorithmConfig.model_validate(values).reads_inference_logprobs is reads


def test_a_single_rollout_per_problem_needs_an_advantage_without_baseline() -> None:
    config = resolve(inline=MINIMAL, overrides=["sampling.group_size=1", "algorithm.advantage=none"]).config
    assert config.algorithm.advantage_method == "none"


def test_unknown_preset_and_unreadable_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="reverse-text-rl"):
        resolve("nothing")
    with pytest.raises(ConfigError, match=r"missing\.toml"):
        resolve(files=[tmp_path / "missing.toml"])


def test_light_modules_do_not_import_torch() -> None:
    code = "import sys, trainers.config, trainers.wire; print({'torch', 'transformers', 'django'} & set(sys.modules))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "set()"
