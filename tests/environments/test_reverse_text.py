"""reverse_text: the same texts for ever, and nothing held out is ever trained on."""

import pytest

from environments import registry
from environments.env import Environment
from environments.library.reverse_text import ReverseTextArgs
from environments.types import Message, PlayedRollout, Problem, Split


def reverse_text(**args: object) -> Environment[ReverseTextArgs]:
    return registry.load("reverse_text", args)


def keys(environment: Environment[ReverseTextArgs], split: Split) -> set[str]:
    return {environment.problem(split, index).key for index in range(environment.count(split))}


def scored(problem: Problem, reply: str) -> PlayedRollout:
    messages = [*problem.messages, Message("assistant", reply)]
    return PlayedRollout(token_ids=[], loss_mask=[], inference_logprobs=[], messages=messages)


def test_problems_are_the_same_in_every_process_and_version() -> None:
    environment = reverse_text(max_length=8)
    found = [environment.problem(Split.TRAIN, index).messages[1].content for index in (0, 1, 2, 9_999)]
    assert found == ["jeko", "kai", "gledrai", "glemb"]
    assert environment.problem(Split.EVAL, 0) == reverse_text(max_length=8).problem(Split.EVAL, 0)


@pytest.mark.parametrize("args", [{}, {"min_length": 2, "max_length": 3}, {"words": 3}, {"seed": 5}])
def test_no_held_out_text_is_trained_on(args: dict[str, object]) -> None:
    environment = reverse_text(**args, train_count=4_000)
    assert not keys(environment, Split.TRAIN) & keys(environment, Split.EVAL)
    assert len(keys(environment, Split.EVAL)) > 30


def test_no_text_held_out_under_one_seed_is_trained_on_under_another() -> None:
    trained = keys(reverse_text(seed=1), Split.TRAIN)
    assert not trained & keys(reverse_text(seed=2), Split.EVAL)


def test_words_have_the_lengths_asked_for() -> None:
    environment = reverse_text(min_length=4, max_length=6, words=3)
    lengths = set()
    for index in range(200):
        words = environment.problem(Split.TRAIN, index).messages[1].content.split(" ")
        assert len(words) == 3
        lengths |= {len(word) for word in words}
    assert lengths == {4, 5, 6}


def test_a_long_text_still_has_a_short_key_of_its_own() -> None:
    environment = reverse_text(words=40)
    found = [environment.problem(Split.TRAIN, index).key for index in range(50)]
    assert len(set(found)) == 50
    assert max(map(len, found)) <= 64


@pytest.mark.parametrize(
    ("reply", "reward", "exact"),
    [
        ("cba", 1.0, 1.0),
        ("  cba\n", 1.0, 1.0),
        ("<reversed_text>cba</reversed_text>", 1.0, 1.0),
        ("let me see <reversed_text>\ncba\n</reversed_text> there", 1.0, 1.0),
        ("<reversed_text>cba", 1.0, 1.0),
        # ratio() is 2 * matches / total length: "cb" matches of "cba" and "cbz".
        ("cbz", 4 / 6, 0.0),
        ("abc", 2 / 6, 0.0),
        ("", 0.0, 0.0),
        ("<think>abc is cba</think>cba", 1.0, 1.0),
        ("<think>cba</think>", 0.0, 0.0),
        ("<think>cba", 0.0, 0.0),
        ("<think><reversed_text>cba</reversed_text>", 0.0, 0.0),
    ],
)
def test_the_reward_is_the_similarity_of_the_reversed_text(reply: str, reward: float, exact: float) -> None:
    problem = Problem(key="abc", messages=[Message("user", "abc")], data={"answer": "cba"})
    rollout = scored(problem, reply)
    assert reverse_text().reward(problem, rollout) == pytest.approx(reward)
    assert rollout.metrics == {"exact_match": exact}


def test_long_texts_are_worth_what_is_right_of_them() -> None:
    environment = reverse_text(words=120)
    problem = environment.problem(Split.TRAIN, 0)
    answer = problem.data["answer"]
    assert len(answer) > 500

    def reward(reply: str) -> float:
        return environment.reward(problem, scored(problem, reply))

    assert reward(answer) == 1.0
    assert reward(answer[: len(answer) // 2]) == pytest.approx(2 / 3, abs=0.01)
    assert reward(answer.replace(" ", "-")) == pytest.approx(1 - 119 / len(answer))
    assert reward(answer[4:]) > 0.95  # of what stands elsewhere by a little, most counts
    assert reward(problem.messages[-1].text) < 0.25
    assert reward("a" * 2**20) < 0.01


def test_its_own_solution_earns_the_full_reward() -> None:
    environment = reverse_text(words=4)
    problem = environment.problem(Split.TRAIN, 3)
    solution = environment.solution(problem)
    assert solution is not None
    assert solution[:-1] == problem.messages
    assert environment.reward(problem, scored(problem, solution[-1].content)) == 1.0
