"""Environments of one run that differ: in their groups, in how these are compared, and in weights that change."""

from collections import Counter
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.types import Claim
from rollouts.errors import Invalid
from rollouts.models import BatchItem, Purpose, Run, RunEnvironment, ScoredGroup
from rollouts.services.batches import forming, replays
from rollouts.services.batches.mixture import rescaled
from rollouts.services.groups import leases
from rollouts.services.runs import life
from rollouts.storable import MAX_GROUP_SIZE
from tests.factories import make_project, somebody
from tests.rollouts import story
from trainers.advantages import group_advantages
from trainers.config import resolve

pytestmark = pytest.mark.django_db

STEPS = 20
GROUPS = 10
"""Groups of two rollouts in a batch of a run whose weights change."""


def ref(label: str, **own: Any) -> dict[str, Any]:
    return {"name": "reverse_text", "label": label, **own}


def of_purpose(claims: list[Claim], purpose: Purpose) -> list[Claim]:
    keys = set(ScoredGroup.objects.filter(purpose=purpose).values_list("key", flat=True))
    return [claim for claim in claims if claim.group in keys]


def test_groups_of_each_environment_have_its_size_and_fill_a_batch_together() -> None:
    pair, four = ref("pair"), ref("four", group_size=4)
    run, epoch = story.train(environments=[pair, four], batch__batch_size=8, algorithm__max_async_level=0)
    claims = story.claim(run)
    sizes = {"pair": 2, "four": 4}
    assert {claim.environment for claim in claims} == set(sizes)
    assert all(claim.group_size == sizes[claim.environment] for claim in claims)
    assert 8 <= sum(claim.group_size for claim in claims) < 8 + 4
    assert story.claim(run) == []
    [four_claim, *_] = [claim for claim in claims if claim.environment == "four"]
    with pytest.raises(Invalid) as refused:
        story.settle(four_claim, [1.0, 0.0])
    assert "asks for 4, these are 2" in refused.value.fields["rollouts"]
    for claim in claims:
        story.settle(claim)
    assert forming.fetch(run, epoch=epoch, step=0) is not None
    items = BatchItem.objects.filter(batch__run=run)
    assert sum(len(item.advantages) for item in items) == 8


def test_an_episode_may_be_as_long_as_its_environment_says_also_when_it_is_evaluated() -> None:
    run = story.launch(
        environments=[ref("own", max_tokens=33, max_turns=5, group_size=4), ref("plain")],
        evaluation={"problems": 1, "rollouts_per_problem": 3, "temperature": 0.0},
    )
    sampling, claims = run.parsed.sampling, story.claim(run)
    for purpose, sizes, temperature in (
        (Purpose.TRAIN, {"own": 4, "plain": 2}, sampling.temperature),
        (Purpose.EVAL, {"own": 3, "plain": 3}, 0.0),
    ):
        found = {
            each.environment: (each.max_tokens, each.max_turns, each.group_size, each.temperature)
            for each in of_purpose(claims, purpose)
        }
        assert found == {
            "own": (33, 5, sizes["own"], temperature),
            "plain": (sampling.max_tokens, sampling.max_turns, sizes["plain"], temperature),
        }


def test_stored_advantages_are_by_the_method_of_each_environment() -> None:
    methods = {"of run": None, "others": "leave_one_out", "tokens": "length_weighted", "itself": "none"}
    environments = [ref(label, advantage=method) for label, method in methods.items()]
    run, epoch = story.train(
        environments=environments, batch__batch_size=16, sampling__group_size=4, algorithm__max_async_level=0
    )
    rewards = [0.25, 1.0, 0.0, 0.5]
    claims = story.claim(run)
    assert len(claims) == len(methods)
    for claim in claims:
        story.settle(claim, rewards)
    story.submit(run, [story.scored("outside", rewards, environment="unknown")], actor="api:x")
    assert forming.fetch(run, epoch=epoch, step=0) is not None
    algorithm = run.parsed.algorithm
    for item in BatchItem.objects.filter(batch__run=run).select_related("group__environment"):
        method = methods.get(item.group.environment.name) or algorithm.advantage_method
        wanted = group_advantages(rewards, method, algorithm.std_epsilon, algorithm.std_ddof, [2] * 4)
        assert item.advantages == pytest.approx(wanted)
    assert BatchItem.objects.filter(batch__run=run).count() == len(methods)


def test_problems_of_pools_rest_by_the_groups_of_their_own_environment() -> None:
    run = story.launch(
        environments=[ref("own", group_size=4, problems=100, pools={})],
        batch__batch_size=8,
        algorithm__max_async_level=1,
    )
    seen = [claim.problem_index for claim in story.claim(run)]
    assert seen == [0, 1, 2, 3]


def lags_of(run: Run) -> dict[str, list[int]]:
    """By how many versions the groups of each environment had been overtaken when they were batched."""
    items = BatchItem.objects.filter(batch__run=run).values_list(
        "group__environment__name", "batch__step", "group__min_policy_version"
    )
    found: dict[str, list[int]] = {}
    for name, step, version in items:
        assert version is not None
        found.setdefault(name, []).append(step - version)
    return found


def train_steps(run: Run, epoch: int, steps: int, *, unsolved: str = "") -> None:
    """Play on and on while a trainer takes its steps; of one environment every second group tells nothing."""
    played = Counter[str]()
    for number in range(steps):
        while claims := story.claim(run):
            for claim in claims:
                played[claim.environment] += 1
                is_equal = claim.environment == unsolved and played[unsolved] % 2
                story.settle(claim, [1.0] * claim.group_size if is_equal else None)
        delivery = forming.fetch(run, epoch=epoch, step=number)
        assert delivery is not None
        story.ack(run, epoch, number, delivery.sha256)
        story.announce(run, epoch, number + 1)
        story.publish(run)


@pytest.mark.parametrize(
    ("light", "unsolved"),
    [({"group_size": 4}, ""), ({}, "heavy")],
    ids=["whose groups are larger", "whose groups are kept where others are dropped"],
)
def test_no_environment_grows_stale_for_what_others_bring(light: dict[str, int], unsolved: str) -> None:
    run, epoch = story.train(
        environments=[ref("heavy", weight=3.0), ref("light", weight=1.0) | light],
        batch__batch_size=16,
        max_steps=STEPS,
        optimizer__warmup_steps=0,
        algorithm__max_async_level=2,
        algorithm__max_off_policy_steps=100,
        algorithm__filter_zero_advantage=True,
    )
    train_steps(run, epoch, STEPS, unsolved=unsolved)
    lags = lags_of(run)
    assert abs(fmean(lags["light"]) - fmean(lags["heavy"])) < 1.6
    of_light = BatchItem.objects.filter(batch__run=run, group__environment__name="light")
    rollouts = sum(len(item.advantages) for item in of_light)
    assert rollouts / (STEPS * 16) == pytest.approx(0.25, abs=0.04)


def test_what_comes_from_outside_keeps_nobody_from_playing() -> None:
    run = story.launch(environments=[ref("own")], batch__batch_size=8, algorithm__max_async_level=1, max_steps=9)
    story.submit(run, [story.scored(f"group-{at}", environment="outside") for at in range(40)], actor="api:x")
    assert len(story.claim(run)) == 4, "its half of the two batches that may be ahead"
    assert story.claim(run) == []


def moving(*points: tuple[int, float, float]) -> list[dict[str, Any]]:
    """Two environments by their weights at steps."""
    first = [{"step": step, "weight": weight} for step, weight, _ in points]
    second = [{"step": step, "weight": weight} for step, _, weight in points]
    return [ref("first", schedule=first), ref("second", schedule=second)]


SCHEDULES = {
    "slowly": moving((0, 9.0, 1.0), (8, 1.0, 9.0)),
    "at once": moving((4, 9.0, 1.0), (5, 1.0, 9.0)),
    "from next to nothing": moving((4, 1.0, 0.001), (5, 0.001, 1.0), (6, 1.0, 1.0)),
    "together": moving((4, 1.0, 3.0), (5, 1000.0, 1000.0)),
}


def share(run: Run, step: int) -> float:
    """Of the first environment, in groups of a batch, if they could be divided."""
    first, second = (each.weight_at(step) for each in run.parsed.environments)
    return GROUPS * first / (first + second)


def launch_moving(schedule: str, **overrides: Any) -> tuple[Run, int]:
    return story.train(
        environments=SCHEDULES[schedule],
        batch__batch_size=2 * GROUPS,
        max_steps=10,
        optimizer__warmup_steps=0,
        **overrides,
    )


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_claims_and_batches_follow_a_schedule_and_nobody_catches_up(schedule: str) -> None:
    """Without running ahead what is claimed for a batch is claimed under the weights of its step."""
    run, epoch = launch_moving(schedule, algorithm__max_async_level=0)
    for number in range(10):
        claims = story.claim(run)
        had = Counter(claim.environment for claim in claims)
        assert had.total() == GROUPS
        assert abs(had["first"] - share(run, number)) < 2, "less than a turn more or less than before, and since"
        for claim in claims:
            story.settle(claim)
        story.step(run, epoch, number)
        batched = ScoredGroup.objects.filter(batch_items__batch__step=number, batch_items__batch__run=run)
        assert Counter(batched.values_list("environment__name", flat=True)) == had


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_batches_of_groups_that_wait_follow_a_schedule(schedule: str) -> None:
    run, epoch = launch_moving(schedule, algorithm__max_off_policy_steps=100)
    for name in ("first", "second"):
        waiting = [story.scored(f"{name}-{at}", environment=name) for at in range(10 * GROUPS)]
        story.submit(run, waiting, actor="api:x")
    for number in range(10):
        delivery = forming.fetch(run, epoch=epoch, step=number)
        assert delivery is not None
        names = delivery.batch.items.values_list("group__environment__name", flat=True)
        assert abs(Counter(names)["first"] - share(run, number)) < 2
        story.ack(run, epoch, number, delivery.sha256)
        story.announce(run, epoch, number + 1)
        story.publish(run)


def test_a_weight_holds_from_the_batch_before_and_also_while_batches_are_repeated() -> None:
    def weights(run: Run) -> list[float]:
        return list(RunEnvironment.objects.filter(run=run).order_by("id").values_list("weight", flat=True))

    source, source_epoch = launch_moving("slowly", algorithm__max_async_level=0)
    assert weights(source) == [9.0, 1.0]
    story.step(source, source_epoch, 0)
    assert weights(source) == [8.0, 2.0]
    run, epoch = launch_moving("slowly")
    replays.order(run, source=source, first_step=0, last_step=0, actor="user:ada")
    assert forming.fetch(run, epoch=epoch, step=0) is not None
    assert weights(run) == [8.0, 2.0]


def test_turns_that_could_not_be_had_pass_at_once_however_many_they_are() -> None:
    run = story.launch(
        environments=[ref("heavy", weight=1e6), ref("light", weight=1e-3)], batch__batch_size=64, max_steps=9
    )

    def claimed(**rooms: int) -> Counter[str]:
        told = leases.claim(run, holder="driver", limit=3, lease_s=30.0, rooms=rooms).claims
        return Counter(claim.environment for claim in told)

    assert claimed(heavy=0, light=3) == {"light": 3}
    assert RunEnvironment.objects.get(run=run, name="heavy").passed == 3e9
    assert claimed(heavy=9, light=9) == {"heavy": 3}


@given(st.lists(st.tuples(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.integers(1, 20)), min_size=1, max_size=10))
def test_of_two_environments_none_is_a_turn_from_its_share_whatever_the_weights_did(
    changes: list[tuple[float, float, int]],
) -> None:
    times, had, due = [0.0, 0.0], [0, 0], [0.0, 0.0]
    weights = changes[0][:2]
    for *after, turns in changes:
        clock = (times[0] * weights[0] + times[1] * weights[1]) / sum(weights)
        times = [rescaled(times[at], clock, weights[at], after[at]) for at in (0, 1)]
        weights = (after[0], after[1])
        for _ in range(turns):
            chosen = min((0, 1), key=lambda at: times[at] + 1 / weights[at])
            times[chosen] += 1 / weights[chosen]
            had[chosen] += 1
            due = [due[at] + weights[at] / sum(weights) for at in (0, 1)]
            assert abs(had[0] - due[0]) < 1 + 1e-6


@pytest.mark.parametrize(
    ("own", "field"),
    [
        ({"group_size": MAX_GROUP_SIZE + 1}, "environments.0.group_size"),
        ({"schedule": [{"step": 0, "weight": 1.0}, {"step": 9, "weight": 1e9}]}, "environments.0.schedule.1.weight"),
    ],
)
def test_what_the_store_cannot_hold_is_refused_at_its_key(own: dict[str, Any], field: str) -> None:
    wanted = {"environments": [ref("own", **own)], "batch.token_batch_size": 4096}
    resolved = resolve("reverse-text-rl", overrides=wanted)
    with pytest.raises(Invalid) as refused:
        life.create(project=make_project(), user=somebody(), resolved=resolved, actor="user:ada")
    assert list(refused.value.fields) == [field]
