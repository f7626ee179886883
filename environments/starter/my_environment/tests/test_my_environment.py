"""my_environment keeps what every environment promises, and scores what it should."""

from environments import registry
from environments.kit import check
from environments.types import FinishedRollout, Message, Split

PLACE = "my_environment.environment:MyEnvironment"


def test_it_keeps_what_environments_promise() -> None:
    report = check(registry.load(PLACE))
    assert report.holds, str(report)


def test_an_answer_that_is_no_better_than_the_question_earns_nothing() -> None:
    environment = registry.load(PLACE)
    problem = environment.problem(Split.TRAIN, 0)
    reply = Message("assistant", f"<answer>{problem.key}</answer>")
    rollout = FinishedRollout(token_ids=[], loss_mask=[], inference_logprobs=[], messages=[*problem.messages, reply])
    assert environment.reward(problem, rollout) == 0
