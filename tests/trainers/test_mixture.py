"""What an environment of the mixture says of itself, in place of the run: refusals, fallbacks and schedules."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainers.config import ConfigError, RunConfig, resolve
from trainers.objective.step import rl_objective
from trainers.run_config import WeightPoint
from trainers.run_config.schedule import weight_at

TWO = [{"name": "reverse_text", "label": "short"}, {"name": "reverse_text", "label": "long"}]
ALONE = {"sampling__group_size": 1, "algorithm__advantage": "none"}
FILTERED = {"algorithm__filter_zero_advantage": True}


def rows(*own: dict[str, Any]) -> list[dict[str, Any]]:
    return [row | said for row, said in zip(TWO, own, strict=False)]


def config_of(*own: dict[str, Any], **overrides: Any) -> RunConfig:
    values = {"environments": rows(*own), "evaluation": None}
    values |= {key.replace("__", "."): value for key, value in overrides.items()}
    return resolve("reverse-text-rl", overrides=values).config


def problems_of(*own: dict[str, Any], **overrides: Any) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        config_of(*own, **overrides)
    return {problem.path: problem.message for problem in caught.value.problems}


def points(*pairs: tuple[int, float]) -> list[dict[str, float]]:
    return [{"step": step, "weight": weight} for step, weight in pairs]


@pytest.mark.parametrize(
    ("own", "overrides", "path", "hint"),
    [
        ({"group_size": 1}, {}, "environments.0.group_size", "at least 2"),
        ({"advantage": "mean"}, ALONE, "sampling.group_size", "the advantage 'mean' nothing"),
        ({"group_size": 12}, {"batch__batch_size": 64}, "batch.batch_size", "of each environment (24). Use 48 or 72."),
        ({"max_tokens": 4096}, {"trainer__seq_len": 8192}, "environments.0.max_tokens", "no room for a prompt"),
        ({"max_tokens": 200}, {"trainer__seq_len": 200}, "trainer.seq_len", "environments.0.max_tokens (200)"),
        ({"advantage": "none"}, FILTERED, "environments.0.advantage", "choose another"),
        ({"advantage": "mean"}, {"algorithm__loss__type": "distill"}, "environments.0.advantage", "Remove it"),
        ({"weight": 2.0, "schedule": points((0, 1.0))}, {}, "environments.0.weight", "Leave one of them out"),
        ({"schedule": points((5, 1.0), (5, 2.0))}, {}, "environments.0.schedule", "higher step"),
        ({"schedule": points((0, 0.0))}, {}, "environments.0.schedule.0.weight", "greater than 0"),
        ({"schedule": points((-1, 1.0))}, {}, "environments.0.schedule.0.step", "greater than or equal to 0"),
        ({"advantage": "mean_sdt"}, {}, "environments.0.advantage", "mean_std"),
    ],
)  # fmt: skip
def test_contradictions_of_an_environment_are_told_at_its_key(
    own: dict[str, Any], overrides: dict[str, Any], path: str, hint: str
) -> None:
    found = problems_of(own, {}, **overrides)
    assert list(found) == [path]
    assert hint in found[path]


def test_lone_rollouts_are_a_fault_only_where_they_are_compared() -> None:
    config = config_of({"group_size": 1, "advantage": "none"}, {"group_size": 4})
    assert config.group_rollouts == {"short": 1, "long": 4}
    assert config_of({"group_size": 2}, {"group_size": 4}, sampling__group_size=1).smallest_group == 2


def test_what_an_environment_does_not_say_is_as_the_run_has_it() -> None:
    config = config_of({"group_size": 4, "max_turns": 3, "advantage": "max_rl"}, {"max_tokens": 7})
    run, short, long = config.sampling, config.sampling_of("short"), config.sampling_of("long")
    assert (short.group_size, short.max_tokens, short.max_turns) == (4, run.max_tokens, 3)
    assert (long.group_size, long.max_tokens, long.max_turns) == (run.group_size, 7, run.max_turns)
    assert short.temperature == long.temperature == run.temperature
    assert config.sampling_of("from outside") == run
    assert config.algorithm_of("short").advantage_method == "max_rl"
    assert config.algorithm_of("long") == config.algorithm_of("from outside") == config.algorithm


def test_the_constant_normaliser_divides_by_the_longest_episode_of_any_environment() -> None:
    config = config_of({"max_tokens": 40, "max_turns": 5}, {}, algorithm__loss={"type": "dr_grpo"})
    assert config.episode_tokens == 200
    assert rl_objective(config).constant_length == 200


@pytest.mark.parametrize(
    ("step", "weight"), [(0, 4.0), (10, 4.0), (15, 3.0), (20, 2.0), (21, 2.2), (30, 4.0), (10**9, 4.0)]
)
def test_a_weight_moves_in_straight_lines_between_its_points(step: int, weight: float) -> None:
    [ref] = config_of({"schedule": points((10, 4.0), (20, 2.0), (30, 4.0))}).environments
    assert ref.weight_at(step) == pytest.approx(weight)


@given(st.dictionaries(st.integers(0, 1000), st.floats(1e-6, 1e6), min_size=1, max_size=6), st.integers(0, 1000))
def test_a_weight_is_never_beyond_the_points_around_it(given: dict[int, float], step: int) -> None:
    found = weight_at([WeightPoint(step=at, weight=given[at]) for at in sorted(given)], step)
    before = [at for at in given if at <= step] or [min(given)]
    after = [at for at in given if at >= step] or [max(given)]
    around = given[max(before)], given[min(after)]
    assert min(around) * (1 - 1e-9) <= found <= max(around) * (1 + 1e-9)


def test_without_a_schedule_the_weight_stays() -> None:
    [ref] = config_of({"weight": 2.5}).environments
    assert {ref.weight_at(step) for step in (0, 7, 10**6)} == {2.5}
