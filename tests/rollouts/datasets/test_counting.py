"""What a version has is counted once: figures, members that say the same, and overlap with what is measured."""

from collections.abc import Sequence
from typing import Any

import pytest

from environments.types import PlayedGroup
from rollouts.models import DatasetVersion, Run, ScoredGroup
from rollouts.services.datasets import counting
from rollouts.services.datasets.likeness import find_alike
from rollouts.services.datasets.statistics import MembersOf, Statistics, statistics_of
from tests import store
from tests.factories import make_evaluation, make_group
from tests.rollouts import story
from tests.rollouts.datasets.test_importing import read, told
from tests.rollouts.datasets.test_making import correct, make, played, say
from workers.counting import count_versions

pytestmark = pytest.mark.django_db

LONG = (
    "The quick brown fox jumps over the lazy dog, and then it runs back to where it came from at noon. "
    "Nobody asked why, because everybody had seen animals hurry when rain was about to fall upon their village. "
    "In the evening they sat together, told stories of older foxes, and went to bed."
)


@pytest.fixture
def run() -> Run:
    run = story.launch()
    story.submit(run, [played("a", [0.5, 1.0]), played("b", [0.0, 0.25])], actor="api:t")
    return run


def counted(version: DatasetVersion) -> Statistics:
    assert counting.count(version.pk)
    version.refresh_from_db()
    found = statistics_of(version)
    assert found is not None
    return found


def texts(*said: str) -> list[tuple[int, str]]:
    return list(enumerate(said))


def test_figures_are_of_all_members(run: Run) -> None:
    say("a", tags=["good"])
    correct("b", 0)
    found = counted(make(run, unwanted_below=0.3, validation_share=0.5))
    figures = found.figures
    assert (figures.train + figures.validation, figures.groups, figures.problems) == (4, 2, 2)
    assert (figures.unwanted, figures.corrected, figures.labelled) == (1, 1, 3)
    assert (figures.tokens, figures.trained_tokens, figures.most_tokens) == (16, 8, 4)
    assert (figures.reward_mean, figures.reward_min, figures.reward_max) == (0.4375, 0.0, 1.0)
    assert sum(found.rewards) == 4
    assert found.rewards[-1] == 1
    assert found.environments == [MembersOf("reverse_text", 4)]
    assert found.runs == [MembersOf(run.key, 4)]
    assert found.tags == [MembersOf("good", 2)]


def test_a_problem_that_several_runs_played_is_one_problem(run: Run) -> None:
    other = story.launch()
    story.submit(other, [played("b", [1.0]), played("c", [1.0])], actor="api:t")
    assert counted(make(run, runs=[run.key, other.key])).figures.problems == 3


def test_a_version_is_counted_once(run: Run) -> None:
    version = make(run)
    assert counting.uncounted() == [version.pk]
    counted(version)
    assert counting.uncounted() == []
    assert not counting.count(version.pk)


def test_rows_of_a_file_have_the_rewards_and_environments_that_they_say() -> None:
    rows = [told("a", reward=1, environment="e", problem_key="p"), told("b", reward="x"), told("c", reward=10**400)]
    found = counted(read(*rows, told("d", reward=0.5)))
    assert (found.figures.rewarded, found.figures.reward_mean, found.figures.tokens) == (2, 0.75, 0)
    assert found.environments == [MembersOf("e", 1)]
    assert found.runs == []


def test_rows_of_a_file_are_of_one_problem_where_environment_and_key_are_the_same() -> None:
    rows = [told(answer, environment=name, problem_key="p") for answer, name in ("ax", "bx", "cy")]
    assert counted(read(*rows)).figures.problems == 2


def test_members_that_say_the_same_are_found() -> None:
    found = counted(read(told("a"), told("b"), told("a"), told("a", reward=1), told("b"), told("c")))
    assert found.duplicates.exact == 3
    assert [(each.times, each.positions) for each in found.duplicates.exact_first] == [(3, [0, 2, 3]), (2, [1, 4])]
    assert found.duplicates.near == 0


def test_members_that_say_nearly_the_same_are_found() -> None:
    rows = [told(LONG, "1"), told(LONG.replace("noon", "night"), "2"), told(LONG[::-1], "3"), told(LONG, "1")]
    duplicates = counted(read(*rows)).duplicates
    assert (duplicates.exact, duplicates.near, duplicates.compared) == (1, 1, 4)
    assert [each.positions for each in duplicates.near_first] == [[0, 1]]


def test_of_many_members_a_sample_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "MOST_COMPARED", 3)
    found = counted(read(*[told(f"{LONG} {number}") for number in range(7)]))
    assert found.duplicates.compared == 3
    assert [each.positions for each in found.duplicates.near_first] == [[0, 3, 6]]


def test_short_texts_are_like_none() -> None:
    assert find_alike(texts("yes", "yes", "yes!")) == []


@pytest.mark.parametrize(
    ("other", "is_alike"),
    [
        (LONG.upper(), True),
        (LONG.replace(" ", "\n  "), True),
        (LONG + "!", True),
        (LONG.replace("fox ", "cat "), True),
        (LONG.replace("o", "0"), False),
        ("".join(reversed(LONG)), False),
    ],
)
def test_texts_are_alike_by_what_they_have_in_common(other: str, is_alike: bool) -> None:
    assert [each.positions for each in find_alike(texts(LONG, other))] == ([[0, 1]] if is_alike else [])


def test_rollouts_of_which_only_tokens_are_known_are_no_duplicates() -> None:
    run = story.launch()
    story.submit(run, [story.scored("a", rewards=[1.0, 1.0, 0.5])], actor="api:t")
    duplicates = counted(make(run)).duplicates
    assert (duplicates.exact, duplicates.near) == (0, 0)


def evaluate(run: Run, keys: Sequence[str], prompt: str = "Measured") -> None:
    evaluation = make_evaluation(run, 0)
    for key in keys:
        make_group(run, state="evaluated", evaluation=evaluation, problem_key=key, prompt=prompt)


def test_members_of_problems_that_evaluations_played_are_found(run: Run) -> None:
    assert counted(make(run)).overlap.members == 0
    evaluate(story.launch(), ["a", "z"])
    overlap = counted(make(run)).overlap
    assert (overlap.problems, overlap.members, overlap.by_key, overlap.by_prompt) == (2, 2, 2, 0)
    assert overlap.positions == [0, 1]


def test_members_that_ask_what_an_evaluation_asked_are_found(run: Run) -> None:
    evaluate(story.launch(), ["z"], prompt="Say b")
    overlap = counted(make(run)).overlap
    assert (overlap.members, overlap.by_key, overlap.by_prompt, overlap.positions) == (2, 0, 2, [2, 3])


@pytest.mark.parametrize(
    ("row", "form"),
    [
        ({"prompt": "Say b", "completion": "b"}, "examples"),
        ({"prompt": "Say b", "chosen": "b", "rejected": "c"}, "pairs"),
        (told("b", "Say b"), "examples"),
        ({"messages": None, "prompt": "Say b", "completion": "b"}, "examples"),
    ],
)
def test_rows_of_a_file_are_compared_by_what_they_ask(row: dict[str, Any], form: str) -> None:
    evaluate(story.launch(), ["z"], prompt="Say b")
    assert counted(read(row, form=form)).overlap.by_prompt == 1


SHOWN = [{"role": "user", "content": "2+2"}, {"role": "assistant", "content": LONG}]


def shown(key: str, question: str, *answers: str) -> PlayedGroup:
    """A group whose prompt shows an assistant before it asks."""
    asked = [*SHOWN, {"role": "user", "content": question}]
    rollouts = [story.rollout(1.0, messages=[*asked, {"role": "assistant", "content": each}]) for each in answers]
    return PlayedGroup(key=key, environment="reverse_text", problem_key=key, rollouts=rollouts)


def measure(run: Run, group: PlayedGroup) -> None:
    """Let an evaluation of the run have played a group."""
    [key] = story.submit(run, [group], actor="api:t")
    with store.beyond_rights():
        columns = {"purpose": "eval", "state": "evaluated", "problem_index": 0}
        ScoredGroup.objects.filter(run=run, key=key).update(evaluation=make_evaluation(run, 0), **columns)


def test_all_of_the_prompt_of_a_row_of_a_file_is_compared_examples_too() -> None:
    run, asked = story.launch(), [*SHOWN, {"role": "user", "content": "3+3"}]
    measure(run, shown("z", "3+3", "7"))
    said = [{"role": "assistant", "content": "6"}]
    rows = [{"prompt": each, "completion": said} for each in (asked, asked[:1], [*SHOWN, asked[0]])]
    assert counted(read(*rows)).overlap.positions == [0]


def test_members_ask_the_same_if_they_do_behind_what_examples_ask(run: Run) -> None:
    played_run = story.launch()
    story.submit(played_run, [shown("x", "3+3", "6"), shown("y", "4+4", "8")], actor="api:t")
    measure(run, shown("z", "3+3", "7"))
    version = make(run, runs=[played_run.key])
    overlap = counted(version).overlap
    assert (overlap.problems, overlap.by_key, overlap.by_prompt, overlap.positions) == (1, 0, 1, [0])


def test_of_a_rollout_with_branches_the_first_one_tells_what_was_asked(run: Run) -> None:
    evaluate(story.launch(), ["z"], prompt="Say it")
    first = [{"role": "user", "content": "Say it"}, {"role": "assistant", "content": "no"}]
    later = [*first, {"role": "user", "content": "again"}, {"role": "assistant", "content": "yes"}]
    branched: dict[str, Any] = {"loss_mask": [0, 1, 0, 1], "branch_lengths": [2, 2], "earlier_branches": [first]}
    group = played("q", [1.0])
    group.rollouts = [story.rollout(1.0, messages=later, **branched)]
    story.submit(run, [group], actor="api:t")
    assert counted(make(run, groups=["q"])).overlap.by_prompt == 1


def test_examples_in_a_prompt_make_no_near_duplicates(run: Run) -> None:
    story.submit(run, [shown("x", "3+3", "6"), shown("y", "4+4", "8")], actor="api:t")
    assert counted(make(run)).duplicates.near == 0
    alike = [LONG.replace("noon", "night"), LONG.replace("noon", "dawn")]
    story.submit(run, [shown("v", "5+5", *alike)], actor="api:t")
    assert counted(make(run)).duplicates.near == 1


def test_of_pairs_what_both_say_behind_examples_is_compared(run: Run) -> None:
    better, worse = shown("x", "3+3", "6"), shown("x", "3+3", "7")
    worse.rollouts[0].reward = 0.0
    better.rollouts += worse.rollouts
    story.submit(run, [better], actor="api:t")
    version = make(run, form="pairs", groups=["x"])
    [(_, text)] = counting._sample(version, 1)
    assert text == "6\n7"


def test_what_a_teacher_played_is_no_evaluation(run: Run) -> None:
    teacher = story.launch()
    evaluate(teacher, ["a"])
    assert counted(make(run)).overlap.members == 2
    with store.beyond_rights():
        config = teacher.config | {"evaluation": {"split": "train"}}
        Run.objects.filter(pk=teacher.pk).update(kind="eval", config=config)
    assert counted(make(run)).overlap.members == 0


def test_a_worker_counts_what_is_not_counted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.database.connection.close", lambda: None)
    stumbling, good = make(run), make(run)
    inner = counting.count

    def count(version_id: int) -> bool:
        if version_id == stumbling.pk:
            raise ValueError("no")
        return inner(version_id)

    monkeypatch.setattr(counting, "count", count)
    rounds = iter([False] * 4)
    count_versions(lambda: next(rounds, True), pause_s=0)
    assert counting.uncounted() == [stumbling.pk]
    good.refresh_from_db()
    assert statistics_of(good) is not None
