"""instructions: every problem has a text that meets it, and what is no text meets none."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments import registry
from environments.env import Environment
from environments.errors import InvalidArguments
from environments.library.instructions.constraints import KINDS, LONGEST, Constraint, holds, is_text, told
from environments.library.instructions.environment import InstructionsArgs
from environments.types import FinishedRollout, Message, Problem, Split
from tests.environments.rewards.replying import HOSTILE, NO_LOOP_S


def instructions(**args: object) -> Environment[InstructionsArgs]:
    return registry.load("instructions", args)


def scored(problem: Problem, reply: str, thought: str | None = None) -> tuple[float, float]:
    """The reward, and whether all constraints are met."""
    messages = [*problem.messages, Message("assistant", reply, reasoning_content=thought)]
    rollout = FinishedRollout(token_ids=[], loss_mask=[], inference_logprobs=[], messages=messages)
    return instructions().reward(problem, rollout), rollout.metrics["all_met"]


def solution(environment: Environment[InstructionsArgs], problem: Problem) -> str:
    messages = environment.solution(problem)
    assert messages is not None
    assert messages[:-1] == problem.messages
    return messages[-1].text


@pytest.mark.parametrize("split", Split)
@pytest.mark.parametrize(
    "args",
    [{}, {"min_constraints": 6, "max_constraints": 6}, {"max_constraints": 1}, {"seed": 9, "max_constraints": 5}],
)
def test_no_constraint_of_a_problem_contradicts_another(args: dict[str, int], split: Split) -> None:
    environment = instructions(**args)
    for index in range(150):
        problem = environment.problem(split, index)
        assert scored(problem, solution(environment, problem)) == (1.0, 1.0), problem.messages[0].text


@given(
    kinds=st.lists(st.sampled_from(list(KINDS)), unique=True),
    counts=st.tuples(st.integers(1, 6), st.integers(1, 6)).map(sorted),
    seed=st.integers(-(2**40), 2**40),
    index=st.integers(0, 2**31),
)
def test_whatever_is_asked_for_can_be_met_or_is_refused(
    kinds: list[str], counts: list[int], seed: int, index: int
) -> None:
    fewest, most = counts
    try:
        environment = instructions(kinds=kinds, min_constraints=fewest, max_constraints=most, seed=seed)
    except InvalidArguments as refused:
        why = str(refused)
    else:
        why = ""
    if why:
        assert f"give no {fewest} constraints that go together" in why
        return
    problem = environment.problem(Split.TRAIN, index)
    found = [each["kind"] for each in problem.data["constraints"]]
    assert fewest <= len(found) <= most
    assert len(set(found)) == len(found)
    assert set(found) <= set(kinds or KINDS)
    assert scored(problem, solution(environment, problem)) == (1.0, 1.0)


@pytest.mark.parametrize("kind", KINDS)
def test_problems_of_each_kind_alone_can_be_solved_and_say_so_once(kind: str) -> None:
    environment = instructions(kinds=[kind], max_constraints=1)
    problem = environment.problem(Split.TRAIN, 0)
    [constraint] = problem.data["constraints"]
    assert constraint["kind"] == kind
    assert problem.messages[0].text.count("\n- ") == 1
    assert scored(problem, solution(environment, problem)) == (1.0, 1.0)


def test_a_problem_has_as_many_constraints_as_are_asked_for() -> None:
    environment = instructions(min_constraints=2, max_constraints=4)
    counts = {len(environment.problem(Split.TRAIN, index).data["constraints"]) for index in range(100)}
    assert counts == {2, 3, 4}


def test_problems_are_the_same_in_every_process_and_version_and_splits_share_none() -> None:
    environment = instructions()
    keys = {split: [environment.problem(split, index).key for index in range(256)] for split in Split}
    assert keys[Split.TRAIN][:2] == ["6e53ddecf51b08e3", "b6621df7198804de"]
    assert set(keys[Split.TRAIN]).isdisjoint(keys[Split.EVAL])
    assert len(set(keys[Split.TRAIN])) > 240
    assert environment.problem(Split.EVAL, 3) == instructions().problem(Split.EVAL, 3)


@pytest.mark.parametrize("reply", HOSTILE.values(), ids=HOSTILE.keys())
def test_nonsense_meets_nothing_and_takes_no_time(reply: str) -> None:
    environment = instructions(max_constraints=6)
    found = [environment.problem(Split.EVAL, index) for index in range(20)]
    began = time.monotonic()
    assert {scored(problem, reply) for problem in found} == {(0.0, 0.0)}
    assert time.monotonic() - began < NO_LOOP_S


def test_repeating_the_task_or_thinking_of_a_solution_meets_nothing() -> None:
    environment = instructions()
    for index in range(100):
        problem = environment.problem(Split.TRAIN, index)
        right = solution(environment, problem)
        assert scored(problem, problem.messages[0].text) == (0.0, 0.0)
        assert scored(problem, problem.messages[0].text.upper()) == (0.0, 0.0)
        assert scored(problem, f"<think>{right}</think>") == (0.0, 0.0)
        assert scored(problem, "", thought=right) == (0.0, 0.0)


def test_the_reward_is_the_share_that_is_met() -> None:
    constraints = [
        {"kind": "sentences", "number": 2},
        {"kind": "no_commas"},
        {"kind": "starts", "text": "long ago"},
        {"kind": "ends", "text": "in the end"},
    ]
    problem = Problem(
        key="k", messages=[Message("user", "Write.")], data={"topic": "rivers", "constraints": constraints}
    )
    assert scored(problem, "Long ago it rained. All was well in the end.") == (1.0, 1.0)
    assert scored(problem, "Long ago it rained, and all was well in the end.") == (0.5, 0.0)
    assert scored(problem, "It rained, then it did not.") == (0.0, 0.0)


def constraint(kind: str, number: int = 0, text: str = "", relation: str = "exactly") -> Constraint:
    return Constraint(kind=kind, number=number, text=text, relation=relation)


@pytest.mark.parametrize(
    ("asked", "meets", "fails"),
    [
        (constraint("words", 4), "It's a well-known fact.", "It is a well known fact."),
        (constraint("words", 3, relation="at least"), "один два три", "one two"),
        (constraint("few_words", 3, relation="at most"), "one - two, three", "one two three four"),
        (constraint("sentences", 2), 'He said: "No!" Then he left.', "One point 3.5 here. And e.g. there. More."),
        (constraint("sentences", 1), "No end here. but", "No end here"),
        (constraint("paragraphs", 2), "One\ntwo.\n\n \nThree.", "One.\nTwo."),
        (constraint("bullets", 2), "List:\n- one\n* two", "- one\n-two\n- "),
        (constraint("include", 2, "signal"), "Signal, no signal.", "signal signals"),
        (constraint("exclude", text="the"), "Then theatre", "This is THE end"),
        (constraint("starts", text="long ago"), '"Long, ago" it was', "Not long ago"),
        (constraint("ends", text="in the end"), "so it was, In The End.", "in the end, yes"),
        (constraint("nth_word", 3, "copper"), "some old Copper pot", "copper some old pot"),
        (constraint("lower_case"), "no capitals 123 ß", "One capital"),
        (constraint("upper_case"), "NO SMALL 123", "NO SMALl"),
        (constraint("no_commas"), "one; two", "one,two"),
        (Constraint(kind="json", keys=["a", "b"]), '{"a": "x y", "b": "z"}', '{"b": "x", "a": "y"}'),
        (Constraint(kind="json", keys=["a"]), ' {"a": "x"}\n', '```json\n{"a": "x"}\n```'),
        (Constraint(kind="json", keys=["a"]), '{"a": "x"}', '{"a": "", "a": " "}'),
    ],
)
def test_what_meets_a_constraint_and_what_does_not(asked: Constraint, meets: str, fails: str) -> None:
    assert holds(asked, meets)
    assert not holds(asked, fails)
    assert told(asked).endswith(".")


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("three words here", True),
        ("two words", False),
        ("... --- !!!", False),
        ("fine " * 40, False),
        ("fine day " * 20, False),
        ("the sun and the moon and the stars", True),
        ("word " * (LONGEST // 5 + 1), False),
    ],
)
def test_what_is_a_text(text: str, is_one: bool) -> None:
    assert is_text(text) == is_one


@pytest.mark.parametrize(
    ("args", "told_of"),
    [
        ({"min_constraints": 4}, "min_constraints 4 is above max_constraints 3"),
        ({"kinds": ["rhyme"]}, "kinds: rhyme is none of words"),
        (
            {"kinds": ["json", "bullets"], "min_constraints": 2},
            "kinds: bullets, json give no 2 constraints that go together",
        ),
        ({"max_constraints": 7}, "max_constraints"),
    ],
)
def test_arguments_that_cannot_be_met_are_refused(args: dict[str, object], told_of: str) -> None:
    with pytest.raises(InvalidArguments, match=told_of):
        instructions(**args)
