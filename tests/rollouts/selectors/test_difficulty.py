"""How hard problems are, over policy versions."""

from collections.abc import Sequence

import pytest

from rollouts.models import Run
from rollouts.selectors.difficulty import SolveRate, difficulty_map, solve_rates
from tests.rollouts import story

pytestmark = pytest.mark.django_db


def play(run: Run, rewards: Sequence[float | None], *, version: int, problem: str = "cat") -> None:
    story.submit(
        run, [story.scored(None, rewards, version=version, problem_key=problem, environment="words")], actor="api:env"
    )


@pytest.fixture
def run() -> Run:
    """A run whose next step is 3, so that groups of the versions up to 4 are taken."""
    run, epoch = story.train(max_steps=10)
    for number in range(3):
        story.step(run, epoch, number)
    run.environments.create(name="words")
    return story.fresh(run)


def test_each_span_of_versions_says_how_many_groups_had_which_rate(run: Run) -> None:
    environment = run.environments.get(name="words")
    assert difficulty_map(environment) == []
    play(run, [0.0, 0.0, 0.0, 0.0], version=0)
    play(run, [1.0, 0.0, 0.0, 0.0], version=1)
    play(run, [1.0, 1.0, 1.0, 0.5], version=2)
    play(run, [1.0, None, 1.0, 1.0], version=3)
    play(run, [None, None], version=3)
    columns = difficulty_map(environment, columns=2)
    assert [(column.first_version, column.last_version) for column in columns] == [(0, 1), (2, 3)]
    assert [column.by_rate for column in columns] == [(1, 0, 1, 0, 0, 0), (0, 0, 0, 0, 1, 1)]
    assert [column.none_solved_share for column in columns] == [0.5, 0.0]
    assert [column.all_solved_share for column in columns] == [0.0, 0.5]
    assert [column.solve_rate for column in columns] == [1 / 8, 6 / 7]
    assert columns[1].reward_mean == pytest.approx(6.5 / 7)


def test_a_problem_has_a_rate_on_each_version_it_was_played_on(run: Run) -> None:
    environment = run.environments.get(name="words")
    play(run, [1.0, 0.0], version=1, problem="dog")
    play(run, [1.0, None], version=1, problem="dog")
    play(run, [1.0, 1.0], version=2, problem="dog")
    play(run, [0.0, 0.5], version=2, problem="cat")
    cat = SolveRate("cat", 2, None, scored=2, solved=0, reward_mean=0.25)
    dog = [
        SolveRate("dog", 1, None, scored=3, solved=2, reward_mean=pytest.approx(2 / 3)),
        SolveRate("dog", 2, None, scored=2, solved=2, reward_mean=1.0),
    ]
    assert solve_rates(environment) == [cat, *dog]
    assert solve_rates(environment, problems=1) == dog
    assert solve_rates(environment, problem_key="cat") == [cat]
    assert dog[0].rate == pytest.approx(2 / 3)
