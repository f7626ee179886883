"""judge: replies that another model compares or scores (RLAIF)."""

import asyncio
from collections.abc import Sequence
from itertools import combinations
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from environments.env import Environment
from environments.errors import EndpointError, EpisodeError, UnreadableVerdict
from environments.library.data.dataset import AnyDataSet, DatasetArgs
from environments.library.draws import Draws, of_split
from environments.library.splits import digest
from environments.rewards import judging, replies
from environments.rewards.judge import (
    GOOD,
    Asked,
    Fallback,
    Guidance,
    MaxTokens,
    Seed,
    Temperature,
    Tries,
    weighed,
)
from environments.rewards.judging import Criterion, Judge, JudgedPair
from environments.types import FinishedRollout, Message, Problem, Split

_WORDS = ["apple", "bread", "cloud", "dream", "eagle", "flame", "grass", "house", "island", "jewel", "knife", "lemon",
    "mountain", "night", "ocean", "paper", "queen", "river", "stone", "tiger", "uncle", "violet", "water", "yellow",
    "zebra"]  # fmt: skip
_ASKED = "Write these words in alphabetical order, one after the other with a space between them:"


class JudgeArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of judge."""

    mode: Annotated[
        Literal["pairwise", "rubric"],
        Meta(description="Replies of a group against each other or a reference, or each by criteria."),
    ] = "pairwise"
    policy: Asked = "judge"
    against: Annotated[
        Literal["group", "answer"],
        Meta(description="What a reply is compared with: the others of its group, or the problem's answer."),
    ] = "group"
    opponents: Annotated[
        int, Meta(ge=0, le=64, description="Others of its group that a reply is compared with; 0 for all.")
    ] = 0
    criteria: Annotated[
        tuple[Criterion, ...],
        Meta(min_length=1, max_length=16, description="What is scored by: names, texts, weights."),
    ] = (GOOD,)
    guidance: Guidance = ""
    max_tokens: MaxTokens = 512
    temperature: Temperature = 0.0
    tries: Tries = 2
    fallback: Fallback = None
    data: Annotated[str, Meta(description="A data set of prompts, as for dataset; by default words to be sorted.")] = ""
    prompt: Annotated[str, Meta(description="Of a data set: as for dataset.")] = "prompt"
    answer: Annotated[str, Meta(description="Column of a data set with answers to compare with; empty for none.")] = ""
    words: Annotated[int, Meta(ge=2, le=12, description="Words to be sorted, without a data set.")] = 4
    train_count: Annotated[int, Meta(ge=1, description="Problems to train on, without a data set.")] = 10_000
    eval_count: Annotated[int, Meta(ge=1, description="Held-out problems, without a data set.")] = 256
    seed: Seed = 0


class JudgeEnvironment(Environment[JudgeArgs]):
    """Please a judge: reinforcement learning from a model's preferences (RLAIF).

    Task: what a data set asks, or to put a few words into alphabetical order; one reply.
    Data: any data set of prompts (`data`, `prompt`, `answer`, as those of `dataset`), whose licence is its own; else
    words drawn by the seed from 25, an eighth of all problems held out. Licence: ours.
    Arguments: `mode`, `policy`, `against`, `opponents`, `criteria`, `guidance`, `max_tokens`, `temperature`, `tries`,
    `fallback`; `data`, `prompt`, `answer`; `words`, `train_count`, `eval_count`; `seed`.
    Reward: pairwise the share of comparisons won (a tie is half, and so is a pair whose orders disagree), rubric the
    weighed mean of the criteria's scores. Of each other the replies of any policy win half: `against = "group"` is for
    no evaluation. A judge that fails gives none: the rollout fails, or gets the fallback.
    Metrics: `judge_disagreed` and `judge_first` (pairs whose orders disagree; wins of whoever is shown first, .5
    without a bias), `judge_failed` (share of what it was asked of a reply and gave no word of), `judge/NAME` of each
    criterion; `right` where words are sorted.
    Checked: with a judge that knows the right order a solution wins every comparison it can; one that prefers whoever
    is shown first gives every reply .5; judges that fail, lie and babble give no reward.
    """

    name = "judge"
    version = "2"
    args_type = JudgeArgs

    def __init__(self, args: JudgeArgs) -> None:
        super().__init__(args)
        if args.against == "answer" and args.data and not args.answer:
            raise ValueError("answer: name the column with what replies are compared with")
        self._judge = Judge(
            policy=args.policy,
            guidance=args.guidance,
            max_tokens=args.max_tokens,
            temperature=args.temperature,
            seed=args.seed,
            tries=args.tries,
        )
        self._prompts: AnyDataSet | None = None
        if args.data:
            asked = DatasetArgs(data=args.data, prompt=args.prompt, answer=args.answer, seed=args.seed, rewards=[])
            self._prompts = AnyDataSet(asked)
        else:
            for split in Split:
                self.problem(split, 0)

    def count(self, split: Split) -> int:
        if self._prompts is not None:
            return self._prompts.count(split)
        return self.args.train_count if split is Split.TRAIN else self.args.eval_count

    def problem(self, split: Split, index: int) -> Problem:
        if self._prompts is not None:
            return self._prompts.problem(split, index)
        words = of_split(split, f"judge/{self.args.seed}/{split}/{index}", self._draw, " ".join)
        text = " ".join(words)
        return Problem(
            key=digest(text)[:16],
            messages=[Message("user", f"{_ASKED} {text}")],
            data={"answer": " ".join(sorted(words))},
        )

    def solution(self, problem: Problem) -> list[Message] | None:
        if self._prompts is not None:
            return self._prompts.solution(problem)
        return [*problem.messages, Message("assistant", problem.data["answer"])]

    async def score_group(self, problem: Problem, rollouts: Sequence[FinishedRollout]) -> Sequence[float | Exception]:
        said = [replies.answer(problem, rollout) for rollout in rollouts]
        if self._prompts is None:
            for rollout, text in zip(rollouts, said, strict=True):
                rollout.metrics["right"] = float(text.split() == problem.data["answer"].split())
        if self.args.mode == "rubric":
            return await asyncio.gather(*(self._rated(problem, *each) for each in zip(rollouts, said, strict=True)))
        return await self._compared(problem, rollouts, said)

    async def _rated(self, problem: Problem, rollout: FinishedRollout, said: str) -> float | Exception:
        try:
            scores = await judging.rate(self._judge, problem, said, self.args.criteria)
        except EpisodeError as error:
            return self._failed(rollout, error)
        rollout.metrics |= {"judge_failed": 0.0} | {f"judge/{name}": value for name, value in scores.items()}
        return weighed(scores, self.args.criteria)

    async def _compared(
        self, problem: Problem, rollouts: Sequence[FinishedRollout], said: Sequence[str]
    ) -> list[float | Exception]:
        """The share of its comparisons that each reply won, of those of which the judge said something."""
        everybody = list(said)
        if self.args.against == "answer":
            everybody.append(replies.wanted_texts(problem, "answer")[0])
            pairs = [(number, len(said)) for number in range(len(said))]
        else:
            pairs = _pairs(len(said), self.args.opponents)
        found = await asyncio.gather(
            *(judging.compare(self._judge, problem, everybody[one], everybody[other]) for one, other in pairs),
            return_exceptions=True,
        )
        scores: list[list[float]] = [[] for _ in everybody]
        told: list[list[JudgedPair]] = [[] for _ in everybody]
        faults: list[list[Exception]] = [[] for _ in everybody]
        for (one, other), preference in zip(pairs, found, strict=True):
            if isinstance(preference, JudgedPair):
                scores[one].append(preference.score)
                scores[other].append(1 - preference.score)
                told[one].append(preference)
                told[other].append(preference)
            elif isinstance(preference, EpisodeError):
                faults[one].append(preference)
                faults[other].append(preference)
            else:
                raise preference
        return [
            self._share(rollout, scores[number], told[number], faults[number])
            for number, rollout in enumerate(rollouts)
        ]

    def _share(
        self, rollout: FinishedRollout, scores: list[float], told: list[JudgedPair], faults: list[Exception]
    ) -> float | Exception:
        if fault := next((each for each in faults if not _is_of_judge(each)), None):
            return fault  # not asked at all: what was asked before says who came first, not who is better
        if not scores:
            # Alone in its group: nobody to be better than.
            return self._failed(rollout, faults[-1]) if faults else 0.5
        rollout.metrics["judge_failed"] = len(faults) / (len(faults) + len(scores))
        rollout.metrics["judge_disagreed"] = sum(each.disagreed for each in told) / len(told)
        if firsts := [each.firsts for each in told if each.firsts is not None]:
            rollout.metrics["judge_first"] = sum(firsts) / len(firsts)
        return sum(scores) / len(scores)

    def _failed(self, rollout: FinishedRollout, fault: Exception) -> float | Exception:
        if self.args.fallback is None or not _is_of_judge(fault):
            return fault
        rollout.metrics["judge_failed"] = 1.0
        return self.args.fallback

    def _draw(self, draws: Draws) -> list[str]:
        words = draws.sample(_WORDS, self.args.words)
        return words if words != sorted(words) else words[::-1]


def _is_of_judge(fault: Exception) -> bool:
    """Whether it is the judge that failed, and not whoever asked it."""
    return isinstance(fault, EndpointError | UnreadableVerdict)


def _pairs(count: int, opponents: int) -> list[tuple[int, int]]:
    """Who meets whom: everybody, or each the so many that follow it around the circle."""
    if not opponents or opponents >= count // 2:
        return list(combinations(range(count), 2))
    return [(one, (one + step) % count) for one in range(count) for step in range(1, opponents + 1)]
