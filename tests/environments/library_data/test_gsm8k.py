"""gsm8k: rows as the hub has them, scored by the number."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from environments import registry, solutions
from environments.config import SamplingParams
from environments.errors import InvalidArguments
from environments.fakes import ScriptedPolicy
from environments.library.splits import is_held_out
from environments.runner import play_group
from environments.types import Split, StopReason
from tests.environments.library_data.tables import asked, loaded, problems, score, solved, write
from tests.environments.rewards.replying import HOSTILE


def row(number: int) -> dict[str, str]:
    worked = f"She sells {number}/2 = <<{number}/2={number // 2}>>{number // 2} of them.\nThat is {number * 1000}."
    return {"question": f"Nora has {number} clips. How many?", "answer": f"{worked}\n#### {number * 1000:,}"}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """As `openai/gsm8k` lies on the hub: two configs, two splits."""
    for config in ("main", "socratic"):
        write(tmp_path / config / "train-00000-of-00001.parquet", [row(number) for number in range(2, 50)])
        write(tmp_path / config / "test-00000-of-00001.parquet", [row(number) for number in range(100, 110)])
    return tmp_path


def test_a_problem_asks_the_question_and_its_answer_is_the_number(data: Path) -> None:
    environment = loaded("gsm8k", data)
    assert (environment.count(Split.TRAIN), environment.count(Split.EVAL)) == (48, 10)
    for problem in problems(environment, Split.EVAL):
        [message] = problem.messages
        number = int(message.text.split()[2])
        assert message.text.startswith(f"Nora has {number} clips. How many?\n\nReason step by step")
        assert problem.data["answer"] == str(number * 1000)


def test_its_own_solution_scores_one_and_shows_no_calculator(data: Path) -> None:
    environment = loaded("gsm8k", data)
    problem = environment.problem(Split.TRAIN, 3)
    assert solved(environment, problem) == 1.0
    solution = environment.solution(problem)
    assert solution is not None
    assert "<<" not in solution[-1].text
    assert "####" not in solution[-1].text


@pytest.mark.parametrize(
    ("reply", "reward"),
    [
        (r"So it is \boxed{ANSWER}.", 1.0),
        (r"\boxed{1} no, \boxed{ANSWER}", 1.0),
        ("She has ANSWER clips.", 1.0),
        (r"\boxed{ANSWER dollars}", 1.0),
        (r"\boxed{\$ANSWER per day.}", 1.0),
        ("ANSWER USD", 1.0),
        ("€ANSWER!", 1.0),
        (r"\boxed{ANSWER miles per hour}", 1.0),
        (r"\boxed{ANSWER cups of flour}", 1.0),
        (r"\boxed{ANSWER pieces of candy each}", 1.0),
        (r"\boxed{ANSWER dollars more}", 1.0),
        (r"\boxed{ANSWER days left over}", 1.0),
        (r"\boxed{\text{ANSWER dollars}}", 1.0),
        (r"\boxed{\text{ANSWER apples}}", 1.0),
        (r"\boxed{\textbf{ANSWER dollars}}", 1.0),
        (r"\boxed{\textbf{\text{ANSWER dollars}}}", 1.0),
        (r"\boxed{\mathrm{ANSWER\ dollars}}", 1.0),
        (r"\boxed{\mbox{ANSWER dollars}}", 1.0),
        (r"\boxed{ANSWER\ dollars}", 1.0),
        (r"\boxed{\$ANSWER\ dollars}", 1.0),
        (r"\boxed{ANSWER\;dollars}", 1.0),
        (r"\boxed{ANSWER\,\text{dollars}}", 1.0),
        (r"\boxed{\mathrm{ANSWER}\ \mathrm{dollars}}", 1.0),
        (r"\boxed{ANSWER}, and not \boxed{", 1.0),
        (r"\boxed{ANSWER}, as asked in \boxed{}", 1.0),
        (r"\boxed{\text{ANSWER thousand dollars}}", 0.0),
        (r"\boxed{\text{ANSWER bn dollars}}", 0.0),
        (r"\boxed{ANSWER\ million}", 0.0),
        (r"\boxed{ANSWER\;dozen\;eggs}", 0.0),
        (r"\boxed{ANSWER\,7}", 0.0),
        (r"\boxed{\text{ANSWER and a half hours}}", 0.0),
        (r"\boxed{\text{ANSWER dollars or 7 dollars}}", 0.0),
        (r"\boxed{\text{7 dollars or ANSWER dollars}}", 0.0),
        (r"\boxed{7\ of\ ANSWER}", 0.0),
        (r"\boxed{\text{not ANSWER}}", 0.0),
        (r"\boxed{\text{-ANSWER dollars}}", 0.0),
        (r"\boxed{7} \boxed{ANSWER", 0.0),
        (r"\boxed{ANSWER\ \text{months}}", 1.0),
        (r"\boxed{ANSWER kilos of flour}", 1.0),
        (r"\boxed{ANSWER\ \text{twelfths}}", 0.0),
        (r"\boxed{ANSWER\ \text{thousand dollars}}", 0.0),
        (r"\boxed{ANSWER elevenths}", 0.0),
        (r"\boxed{ANSWER thirteenths}", 0.0),
        (r"\boxed{ANSWER twentieths of it}", 0.0),
        (r"\boxed{ANSWER\text{ dollars minus five}}", 0.0),
        (r"\boxed{ANSWER dollars plus five}", 0.0),
        (r"\boxed{ANSWER dollars times two}", 0.0),
        (r"\boxed{ANSWER mil}", 0.0),
        (r"\boxed{ANSWER score}", 0.0),
        (r"\boxed{ANSWER\ kilo dollars}", 0.0),
        (r"\boxed{ANSWER thousand dollars}", 0.0),
        (r"\boxed{ANSWER times zero}", 0.0),
        (r"\boxed{ANSWER out of ten}", 0.0),
        (r"\boxed{ANSWER big hundreds}", 0.0),
        (r"\boxed{ANSWER and a half hours}", 0.0),
        (r"\boxed{ANSWER thirds}", 0.0),
        (r"\boxed{ANSWER thousandths}", 0.0),
        (r"\boxed{ANSWER half}", 0.0),
        (r"\boxed{ANSWER quarters}", 0.0),
        (r"\boxed{ANSWER squared}", 0.0),
        (r"\boxed{ANSWER less than zero}", 0.0),
        (r"\boxed{ANSWER degrees below zero}", 0.0),
        (r"\boxed{ANSWER to the tenth}", 0.0),
        (r"\boxed{ANSWER dollars/half hour}", 0.0),
        (r"\boxed{ANSWER dollars if they are lucky}", 0.0),
        (r"\boxed{ANSWER x}", 0.0),
        (r"\boxed{not ANSWER}", 0.0),
        (r"\boxed{ANSWER or 7 dollars}", 0.0),
        (r"\boxed{7 dollars}", 0.0),
        (r"\boxed{1}, though ANSWER", 0.0),
        (r"<think>\boxed{ANSWER}</think>", 0.0),
        ("7", 0.0),
    ],
)
def test_rewards(data: Path, reply: str, reward: float) -> None:
    environment = loaded("gsm8k", data)
    problem = environment.problem(Split.EVAL, 0)
    assert score(environment, problem, reply.replace("ANSWER", problem.data["answer"])) == reward


def test_what_was_thought_is_no_answer(data: Path) -> None:
    environment = loaded("gsm8k", data)
    problem = environment.problem(Split.EVAL, 0)
    assert score(environment, problem, "", thought=rf"\boxed{{{problem.data['answer']}}}") == 0.0


@pytest.mark.parametrize("reply", HOSTILE.values(), ids=HOSTILE.keys())
def test_nonsense_scores_nothing(data: Path, reply: str) -> None:
    environment = loaded("gsm8k", data)
    assert score(environment, environment.problem(Split.EVAL, 0), reply) == 0.0


def test_repeating_the_problem_scores_nothing(data: Path) -> None:
    environment = loaded("gsm8k", data)
    for problem in problems(environment, Split.EVAL):
        assert score(environment, problem, problem.messages[0].text) == 0.0


def test_other_rewards_can_be_added(data: Path) -> None:
    parts = [
        {"name": "exact", "args": {"take": "number"}},
        {"name": "tagged", "weight": 0.5, "args": {"tag": "answer"}},
    ]
    environment = loaded("gsm8k", data, rewards=parts)
    problem = environment.problem(Split.EVAL, 0)
    assert score(environment, problem, f"<answer>{problem.data['answer']}</answer>") == 1.5
    with pytest.raises(InvalidArguments, match="take"):
        loaded("gsm8k", data, rewards=[{"name": "exact", "args": {"take": "half"}}])


def test_instruction_and_system_message_are_arguments_and_the_key_does_not_depend_on_them(data: Path) -> None:
    plain, other = loaded("gsm8k", data), loaded("gsm8k", data, instruction="", system="Be brief.")
    first, second = (environment.problem(Split.TRAIN, 0) for environment in (plain, other))
    assert [(message.role, message.text) for message in second.messages] == [
        ("system", "Be brief."),
        ("user", first.messages[0].text.partition("\n\n")[0]),
    ]
    assert first.key == second.key


def test_the_order_is_mixed_by_the_seed_and_the_same_in_every_process(data: Path) -> None:
    found = {
        seed: [problem.key for problem in problems(loaded("gsm8k", data, seed=seed), Split.TRAIN)] for seed in (0, 1)
    }
    assert found[0] != found[1]
    assert sorted(found[0]) == sorted(found[1])
    assert found[0][:2] == ["b0d7a12a5d8b8287", "6a3b99a4f9961edc"]


def test_neither_the_files_nor_further_rows_change_keys_and_order(data: Path, tmp_path: Path) -> None:
    before = [problem.key for problem in problems(loaded("gsm8k", data), Split.TRAIN)]
    for shard in range(2):
        rows = [row(number) for number in range(60, 1, -1) if number % 2 == shard]
        write(tmp_path / "again" / f"train-0000{shard}-of-00002.jsonl", rows)
    write(tmp_path / "again" / "test.jsonl", [row(500)])
    after = [problem.key for problem in problems(loaded("gsm8k", tmp_path / "again"), Split.TRAIN)]
    assert len(after) == 59
    assert [key for key in after if key in before] == before


def test_an_eighth_is_held_out_where_there_is_one_split(tmp_path: Path) -> None:
    for path in (tmp_path / "one" / "train.jsonl", tmp_path / "file.jsonl"):
        write(path, [row(number) for number in range(400)])
        environment = loaded("gsm8k", path if path.name == "file.jsonl" else path.parent, instruction="")
        train, held_out = asked(environment, Split.TRAIN), asked(environment, Split.EVAL)
        assert not train & held_out
        assert len(train | held_out) == 400
        assert 25 <= len(held_out) <= 80
        assert all(map(is_held_out, held_out))


def test_a_question_that_is_held_out_is_not_trained_on(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", [row(number) for number in range(20)])
    write(tmp_path / "test.jsonl", [row(number) for number in range(15, 25)])
    environment = loaded("gsm8k", tmp_path)
    assert (environment.count(Split.TRAIN), environment.count(Split.EVAL)) == (15, 10)
    assert not asked(environment, Split.TRAIN) & asked(environment, Split.EVAL)


def test_a_split_can_be_chosen_and_one_with_no_questions_to_train_on_is_still_evaluated(tmp_path: Path) -> None:
    write(tmp_path / "test.jsonl", [row(number) for number in range(64)])
    environment = loaded("gsm8k", tmp_path)
    assert environment.count(Split.EVAL) == 64
    with pytest.raises(InvalidArguments, match="has nothing to train on, only test: evaluate on it, or"):
        environment.count(Split.TRAIN)
    divided = loaded("gsm8k", tmp_path, train_split="test")
    assert divided.count(Split.EVAL) > 0
    assert sum(divided.count(split) for split in Split) == 64
    with pytest.raises(InvalidArguments, match=r"train_split: .* has no split 'train'; it has test"):
        loaded("gsm8k", tmp_path, train_split="train")


def test_rows_without_what_is_needed_are_left_out_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bad = [
        {"question": "How many?", "answer": "no number"},
        {"question": "How many?", "answer": "#### many"},
        {"question": " ", "answer": "#### 3"},
        {"question": "How many?", "answer": None},
        row(1),
    ]
    write(tmp_path / "train.jsonl", [row(number) for number in range(20)] + bad)
    with caplog.at_level(logging.WARNING):
        environment = loaded("gsm8k", tmp_path)
    assert sum(environment.count(split) for split in Split) == 20
    assert "2 of 25 rows: answer has no number behind ####" in caplog.text
    assert "1 of 25 rows: asks what another does" in caplog.text


def test_another_kind_of_data_set_is_refused_with_what_it_has(tmp_path: Path) -> None:
    write(tmp_path / "columns.parquet", [{"prompt": "a", "answer": "#### 1"}])
    with pytest.raises(
        InvalidArguments, match=r"has no column question; it has prompt, answer: .*environment `dataset`"
    ):
        loaded("gsm8k", tmp_path / "columns.parquet")
    write(tmp_path / "answers.jsonl", [{"question": f"{number}?", "answer": "yes"} for number in range(9)])
    with pytest.raises(
        InvalidArguments, match=r"most rows .* are no problems of gsm8k: 9 of 9 rows: answer has no number"
    ):
        loaded("gsm8k", tmp_path / "answers.jsonl")


def test_a_data_set_has_to_be_named() -> None:
    with pytest.raises(InvalidArguments, match="`data`"):
        registry.load("gsm8k")


def test_an_episode_is_played_and_scored(data: Path) -> None:
    environment = loaded("gsm8k", data)
    problem = environment.problem(Split.EVAL, 0)
    policy = ScriptedPolicy([rf"So \boxed{{{problem.data['answer']}}}"])
    group = play_group(environment, problem, policy, SamplingParams(max_turns=1), 2, deadline_s=20)
    rollouts = asyncio.run(group)
    assert [(rollout.reward, rollout.error) for rollout in rollouts] == [(1.0, None)] * 2
    assert all(rollout.metrics["reward/math"] == 1.0 for rollout in rollouts)


@pytest.mark.parametrize(
    ("said", "reward"), [("so ANSWER", 0.0), ("so \\boxed{1}</think>ANSWER", 1.0), ("ANSWER</think>So there.", 0.0)]
)
def test_a_thought_that_the_template_opens_is_no_answer(data: Path, said: str, reward: float) -> None:
    class Thinking(ScriptedPolicy):
        async def render(self, *told: Any) -> list[int]:
            return [*await super().render(*told), *b"<think>\n"]

    environment = loaded("gsm8k", data)
    problem = environment.problem(Split.EVAL, 0)
    reply = said.replace("ANSWER", rf"\boxed{{{problem.data['answer']}}}")
    policy = Thinking([reply])
    group = play_group(environment, problem, policy, SamplingParams(max_tokens=len(reply)), 1, deadline_s=20)
    [rollout] = asyncio.run(group)
    assert (rollout.reward, rollout.stop_reason) == (reward, StopReason.LENGTH)


def test_its_solutions_are_lines_to_train_on(data: Path) -> None:
    lines = list(solutions.solved("gsm8k", {"data": str(data)}, 3))
    assert all([message["role"] for message in line["messages"]] == ["user", "assistant"] for line in lines)
    assert all("\\boxed{" in line["messages"][1]["content"] for line in lines)
