"""A run with a tool over several turns: every token, mask, tool result and part of a reward is what it should be.

All of it is worked out again from what was stored: tokens from the messages, by the tokenizer; results from the calls;
rewards and their parts from the conversations; the engine's logprobs by the trainer, on the same tokens and weights.
"""

import json
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from environments import registry
from environments.types import FunctionCall, Message, Problem, Split
from tests.accounts import let_others_pass
from tests.e2e.calling_model import write_calling_model
from tests.e2e.yard import Yard, until
from tests.lanes import amount
from trainers.model.tiny_tools import MARKS, tool_tokenizer
from trainers.wire import MaskReason

pytestmark = [pytest.mark.e2e, pytest.mark.vllm, pytest.mark.timeout(amount(1200, 3600))]

STEPS = amount(5, 50)
GROUP, BATCH = 4, 32
WITHIN_S = amount(420, 3300)
QUESTIONS = 200
TOOLS = {"calculator": registry.load("calculator").problem(Split.TRAIN, 0).tools, "dataset": None}
NOISE = 1e-2
"""Difference of two logprobs of one token, engine and trainer, far above rounding and below any mistake in it."""


class Stored(NamedTuple):
    """A rollout as the store has it; arrays of T tokens."""

    environment: str
    key: str
    reward: float
    metrics: dict[str, float]
    messages: list[Message]
    ids: npt.NDArray[Any]
    mask: npt.NDArray[Any]
    engine: npt.NDArray[Any]
    trainer: npt.NDArray[Any]
    reasons: npt.NDArray[Any]


@pytest.fixture
def places(tmp_path: Path) -> Path:
    """A model that calls the tool, and a data set of sums."""
    let_others_pass(tmp_path)
    write_calling_model(tmp_path / "model")
    lines = [json.dumps({"question": f"{n} + {n + 1}", "answer": str(2 * n + 1)}) for n in range(QUESTIONS)]
    (tmp_path / "sums.jsonl").write_text("\n".join(lines))
    for path in tmp_path.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return tmp_path


def test_a_run_with_tools_is_stored_as_it_was_played_and_trained_as_it_was_sampled(yard: Yard, places: Path) -> None:
    data = {"data": str(places / "sums.jsonl"), "prompt": "question"}
    config = places / "run.toml"
    config.write_text(
        f"""
[[environments]]
name = "calculator"
weight = 3
args = {{ max_calls = 3 }}
[[environments]]
name = "dataset"
args = {{ data = "{data["data"]}", prompt = "question", rewards = [
  {{ name = "exact", args = {{ take = "number" }} }},
  {{ name = "length", weight = -0.5, args = {{ soft = 5, hard = 45 }} }},
  {{ name = "repetition", weight = -0.25, args = {{ n = 2 }} }},
] }}
"""
    )
    run: str = yard.rollyard(
        "launch",
        "calculator-rl",
        "--file",
        str(config),
        f"model.path={places / 'model'}",
        f"max_steps={STEPS}",
        "evaluation=null",
        f"batch.batch_size={BATCH}",
        f"sampling.group_size={GROUP}",
        "sampling.max_tokens=40",
        "algorithm.filter_zero_advantage=false",
        "algorithm.max_async_level=0",
        "algorithm.max_off_policy_steps=0",
        "batch.window=0",
        "tracking.token_values_share=1",
    )["run"]
    until(lambda: yard.state(run) in {"finished", "failed", "stopped"}, within_s=WITHIN_S, what="the end of the run")
    [(state, reason)] = yard.sql(
        "SELECT state, reason_code || reason_params::text FROM rollouts_run WHERE key = %s", run
    )
    assert state == "finished", reason
    rollouts = trained(yard, run)
    assert len(rollouts) == STEPS * BATCH
    problems = {"dataset": by_key(data)}
    seen: Counter[str] = Counter()
    for rollout in rollouts:
        replies = check_tokens(rollout)
        check_results(rollout)
        check_reward(rollout, problems.get(rollout.environment, {}))
        seen[f"turns {len(replies)}"] += 1
        seen["calls"] += sum(len(reply.tool_calls) for reply in replies)
        seen["sums"] += any(m.role == "tool" and m.text.isdecimal() for m in rollout.messages)
    ratios_K = np.concatenate([(each.trainer - each.engine)[each.mask == 1] for each in rollouts]).astype(float)
    largest = np.abs(ratios_K).max()
    print(f"\n{len(rollouts)} rollouts, {len(ratios_K)} sampled tokens, largest log ratio {largest:.2g}, {dict(seen)}")
    assert seen["sums"] > 0, "a tool was called, and its answer went on"
    assert sum(count for turns, count in seen.items() if turns.startswith("turns") and turns != "turns 1") > 0
    assert largest < NOISE, "the trainer agrees with the engine on every token that was sampled"


def trained(yard: Yard, run: str) -> list[Stored]:
    """Every rollout that a step trained on."""
    groups = yard.sql(
        "SELECT grp.id, environment.name, grp.problem_key, tokens.lengths, token_ids, loss_mask, inference_logprobs"
        " FROM rollouts_scoredgroup AS grp JOIN rollouts_run AS run ON run.id = grp.run_id"
        " JOIN rollouts_runenvironment AS environment ON environment.id = grp.environment_id"
        " JOIN rollouts_grouptokens AS tokens ON tokens.group_id = grp.id"
        " WHERE run.key = %s AND grp.state = 'trained'",
        run,
    )
    found = []
    for group, name, key, lengths, *arrays in groups:
        ends = np.cumsum(np.frombuffer(lengths, "<u4"))[:-1]
        parts = [np.split(np.frombuffer(a, k), ends) for a, k in zip(arrays, ("<u4", "u1", "<f4"), strict=True)]
        rows = yard.sql(
            "SELECT reward, metrics, messages, seen.trainer_logprobs, seen.mask_reasons"
            " FROM rollouts_rollout AS r"
            " JOIN rollouts_tokenvalues AS seen ON seen.rollout_id = r.id WHERE r.group_id = %s ORDER BY r.index",
            group,
        )
        for (reward, metrics, messages, values, reasons), *own in zip(rows, *parts, strict=True):
            said = msgspec.convert(messages, list[Message])
            last = (np.frombuffer(values, "<f4"), np.frombuffer(reasons, "u1"))
            found.append(Stored(name, key, reward, metrics, said, *own, *last))
    return found


def check_tokens(rollout: Stored) -> list[Message]:
    """Its tokens are the prompt, and by turns what was sampled and what the tools said; returns the replies."""
    tokenizer = tool_tokenizer()
    ends = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    replies = [message for message in rollout.messages if message.role == "assistant"]
    begins = np.flatnonzero(np.diff(np.concatenate([[0], rollout.mask, [0]])) != 0).reshape(-1, 2)
    assert len(begins) == len(replies)
    prompt = rollout.messages[: rollout.messages.index(replies[0])]
    asked = tokenizer.apply_chat_template(
        [msgspec.to_builtins(message) for message in prompt],
        tools=TOOLS[rollout.environment],  # as they were asked; the store has their keys in an order of its own
        add_generation_prompt=True,
        tokenize=False,
    )
    assert tokenizer.decode(rollout.ids[: begins[0][0]].tolist()) == asked
    assert begins[-1][1] == len(rollout.mask) or not rollout.mask[begins[-1][1] :].any()
    assert (rollout.reasons[rollout.mask == 1] == MaskReason.TRAINED).all()
    assert (rollout.engine[rollout.mask == 0] == 0).all()
    assert (rollout.engine <= 0).all()
    for number, (reply, (start, end)) in enumerate(zip(replies, begins, strict=True)):
        said = str(tokenizer.decode(rollout.ids[start:end].tolist(), skip_special_tokens=True))
        calls = [{"name": c.function.name, "arguments": json.loads(c.function.arguments)} for c in reply.tool_calls]
        if calls:
            assert calls == [_called(call) for call in re.findall(r"<tool_call>(.*?)</tool_call>", said, re.DOTALL)]
        elif not any(mark in said for mark in MARKS):
            # Of a control token that ends no turn nothing is hidden: it stands in the reply as text.
            sampled = [token for token in rollout.ids[start:end].tolist() if token not in ends]
            assert reply.text.strip() == str(tokenizer.decode(sampled)).strip()
        following = rollout.ids[end : begins[number + 1][0]] if number + 1 < len(begins) else rollout.ids[end:]
        told = str(tokenizer.decode(following.tolist()))
        at = rollout.messages.index(reply) + 1
        results = []
        while number + 1 < len(begins) and rollout.messages[at].role == "tool":
            results.append(rollout.messages[at].text)
            at += 1
        assert re.findall(r"<tool_response>\n(.*?)\n</tool_response>", told, re.DOTALL) == results
    return replies


def _called(call: str) -> dict[str, Any]:
    """What a sampled call asks for. As the chat format has it, a key of another name says nothing."""
    asked = json.loads(call)
    return {"name": asked["name"], "arguments": asked.get("arguments", {})}


def check_results(rollout: Stored) -> None:
    """Every tool result answers its own call, with the sum of its numbers."""
    calls = {call.id: call.function for message in rollout.messages for call in message.tool_calls}
    for message in rollout.messages:
        if message.role != "tool":
            continue
        call = calls[message.tool_call_id or ""]
        given = json.loads(call.arguments)
        is_sum = is_valid(call)
        assert message.text == str(given["a"] + given["b"]) if is_sum else message.text.startswith("error:")


def is_valid(call: FunctionCall) -> bool:
    """Whether the tool can run it."""
    given = json.loads(call.arguments)
    return call.name == "add" and given.keys() == {"a", "b"} and all(type(value) is int for value in given.values())


def check_reward(rollout: Stored, problems: dict[str, Problem]) -> None:
    """The reward and each part of it, worked out again; of the calculator by hand, of the data set by its rewards."""
    if rollout.environment == "calculator":
        a, b = map(int, rollout.key.split("+"))
        calls = [call.function for message in rollout.messages for call in message.tool_calls]
        valid = [json.loads(call.arguments) for call in calls if is_valid(call)]
        called = {"a": a, "b": b} in valid
        said = next(message.text for message in reversed(rollout.messages) if message.role == "assistant")
        right = called and re.findall(r"-?\d+", said)[-1:] == [str(a + b)]
        if re.search(r"[.,eE−]", said):  # what is a number there takes more than this to say
            right = called and bool(rollout.metrics["right"])
        assert rollout.reward == (1.0 if right else 0.3 if called else 0.1 if valid else 0.0)
        assert (rollout.metrics["right"], rollout.metrics["calls"]) == (float(right), float(len(calls)))
        return
    said = rollout.messages[-1].text
    numbers = re.findall(r"-?\d+", said)
    exact = float(bool(numbers) and numbers[-1] == problems[rollout.key].data["answer"])
    sampled = rollout.ids[rollout.mask == 1].tolist()
    length = min(1.0, max(0.0, (len(sampled) - 5) / 40))
    pairs = list(pairwise(sampled))
    repetition = 1 - len(set(pairs)) / len(pairs) if pairs else 0.0
    parts = {"reward/length": length, "reward/repetition": repetition}
    assert {name: rollout.metrics[name] for name in parts} == pytest.approx(parts)
    if not re.search(r"[.,eE−]", said):  # else what is a number takes more than this to say
        assert rollout.metrics["reward/exact"] == exact
    total = rollout.metrics["reward/exact"] - 0.5 * length - 0.25 * repetition
    assert rollout.reward == pytest.approx(total)


def by_key(args: dict[str, Any]) -> dict[str, Problem]:
    environment = registry.load("dataset", args)
    found = [environment.problem(Split.TRAIN, index) for index in range(environment.count(Split.TRAIN))]
    return {problem.key: problem for problem in found}
