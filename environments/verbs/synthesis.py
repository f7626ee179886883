"""The best of what a teacher played as lines of SFT data, each with where it is from."""

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any

import msgspec

from environments.figures import sampled_tokens
from environments.solutions import example
from environments.types import Message, PlayedGroup, PlayedRollout, StopReason

_encode = msgspec.json.Encoder().encode


class Kept(msgspec.Struct):
    """What became of a teacher's rollouts."""

    problems: int = 0
    lines: int = 0
    tokens: int = 0
    """Sampled, of all rollouts."""
    failed: int = 0
    truncated: int = 0
    too_low: int = 0
    """Scored lower than was asked for."""
    surplus: int = 0
    """Good enough, and not among the best of their problem."""


def write(path: Path, groups: Iterable[PlayedGroup], *, teacher: str, min_reward: float, best: int) -> Kept:
    """Write the best `best` rollouts of each problem, of a match those of each seat, with at least `min_reward`: a line
    for each branch.

    The file is whole or not there. What a token budget ended is left out: it teaches no end. Tool calls and reasoning
    stay in the messages.
    """
    kept = Kept()
    draft = path.with_name(f"{path.name}.part")
    with draft.open("wb") as file:
        for line in lines(groups, kept, teacher, min_reward, best):
            file.write(_encode(line) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    return kept


def lines(
    groups: Iterable[PlayedGroup], kept: Kept, teacher: str, min_reward: float, best: int
) -> Iterator[dict[str, Any]]:
    """What `write` writes; counts it in `kept`."""
    for group in groups:
        kept.problems += 1
        good: defaultdict[str, list[tuple[float, int, PlayedRollout]]] = defaultdict(list)
        for index, rollout in enumerate(group.rollouts):
            kept.tokens += sampled_tokens(rollout)
            if rollout.error is not None or rollout.reward is None:
                kept.failed += 1
            elif rollout.stop_reason is StopReason.LENGTH:
                kept.truncated += 1
            elif rollout.reward < min_reward:
                kept.too_low += 1
            else:
                good[rollout.seat].append((-rollout.reward, index, rollout))
        kept.surplus += sum(max(0, len(each) - best) for each in good.values())
        ranked = (sorted(each, key=lambda one: one[:2])[:best] for each in good.values())
        for _, index, rollout in chain.from_iterable(ranked):
            for messages, begin in _branches(rollout):
                kept.lines += 1
                yield {
                    **example(messages, begin),
                    **({"tools": rollout.tools} if rollout.tools else {}),
                    "environment": group.environment,
                    "environment_version": group.environment_version,
                    "problem_key": group.problem_key,
                    "rollout": index,
                    **({"seat": rollout.seat} if rollout.seat else {}),
                    "reward": rollout.reward,
                    "teacher": teacher,
                }


def _branches(rollout: PlayedRollout) -> Iterator[tuple[list[Message], int]]:
    """Each with the number of the first message that was sampled there: what came before is not the teacher's, or
    stands in an earlier branch."""
    told = [*rollout.earlier_branches, rollout.messages]
    parts = list(pairwise(accumulate(rollout.branch_lengths or [len(rollout.loss_mask)], initial=0)))
    for messages, (begin, end) in zip(told, parts[-len(told) :], strict=True):
        mask = [0, *rollout.loss_mask[begin:end]]
        turns = sum(own and not before for before, own in pairwise(mask))
        spoken = [at for at, message in enumerate(messages) if message.role == "assistant"]
        yield messages, spoken[-turns] if 0 < turns <= len(spoken) else 0
