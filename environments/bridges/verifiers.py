"""verifiers: tasksets and environments of verifiers 0.4 (its `v1`), played by verifiers' own episodes.

    problem ─▶ task ─▶ verifiers' episode ─▶ one of its clients ─▶ the session's address
                            └─▶ its rewards and metrics, noted ─▶ score_group

verifiers scores an episode when it has played it, while its runtime is still there, and none by another: what a group
is given are those rewards. The chat loop and the client run in this process, tool servers as its children.
"""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from environments.env import Environment, PolicySession
from environments.isolated.frames import TOKENIZER
from environments.library.splits import is_held_out
from environments.types import FinishedRollout, JsonObject, Problem, Split


class VerifiersSplit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What makes a split of a taskset, which has none itself."""

    taskset: Annotated[JsonObject, Meta(description="Settings of the taskset in this split.")] = {}
    select: Annotated[
        JsonObject, Meta(description="Which tasks: include, exclude, skip, limit, as verifiers has it.")
    ] = {}


class VerifiersSplits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Both splits."""

    train: VerifiersSplit
    eval: VerifiersSplit


class VerifiersArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of verifiers."""

    id: Annotated[str, Meta(min_length=1, description="The taskset: an installed module, or a directory with one.")]
    args: Annotated[JsonObject, Meta(description="The env block of a verifiers config: taskset, seats, id.")] = {}
    splits: Annotated[
        VerifiersSplits | None, Meta(description="What is trained on and what is held out; by default an eighth is.")
    ] = None
    client: Annotated[
        Literal["chat", "train"],
        Meta(description="chat: the gateway makes tokens of messages. train: verifiers does, and keeps them."),
    ] = "chat"
    tokenizer: Annotated[
        str,
        Meta(description="For client train: a directory beside the taskset's. Empty: that of the run's model."),
    ] = ""
    renderer: Annotated[str, Meta(description="For client train: the model's format, as renderers names it.")] = ""
    seats: Annotated[
        Literal["one", "shared"],
        Meta(description="shared: the policy plays all seats of an environment, and their mean reward trains each."),
    ] = "one"
    elsewhere: Annotated[
        bool, Meta(description="Let it start programs and containers, and ask other models, where the room can.")
    ] = False
    max_concurrency: Annotated[int, Meta(ge=1, description="Episodes at a time, of each split, in each process.")] = 32


class Verifiers(Environment[VerifiersArgs]):
    """A taskset of verifiers.

    Of an environment with several seats, the policy plays those without a model of their own, all at one address: they
    are branches of one rollout, which has one reward. So such an environment is refused unless `seats` is `shared`;
    then every seat trains with the mean of their rewards, which is right for seats that work together and of no use
    where one wins what another loses. A seat that verifiers holds fixed (a judge, a simulated user) is refused while
    the policy would have to play it: whatever is sampled at an address trains.
    """

    name = "verifiers"
    args_type = VerifiersArgs

    def __init__(self, args: VerifiersArgs) -> None:
        super().__init__(args)
        tokenizer = args.tokenizer or os.environ.get(TOKENIZER, "")
        if args.client == "train" and not (tokenizer and args.renderer):
            raise ValueError(
                "client train makes tokens itself: it needs a tokenizer (a directory) and a renderer (a name)"
            )
        # Here, for only the virtual environment of verifiers has it; the arguments are checked elsewhere too.
        from environments.bridges import verifiers_episodes, verifiers_seats

        self._episodes = verifiers_episodes
        self._asking = verifiers_episodes.Asking(args.client, Path(args.id, tokenizer), args.renderer)
        module = verifiers_seats.module_of(args.id)
        self.version = verifiers_seats.version_of(args.id)  # type: ignore[misc]  # the taskset's
        self._splits: dict[Split, Any] = {}
        composed: dict[bytes, verifiers_seats.Composition] = {}
        for split in Split:
            part = VerifiersSplit() if args.splits is None else getattr(args.splits, split)
            config = args.args | {"taskset": args.args.get("taskset", {}) | part.taskset}
            known = msgspec.json.encode(config, order="deterministic")
            if known not in composed:
                composed[known] = verifiers_seats.Composition(
                    module, config, elsewhere=args.elsewhere, shared=args.seats == "shared"
                )
            self._splits[split] = verifiers_episodes.SplitTasks(
                composed[known],
                split,
                part.select,
                elsewhere=args.elsewhere,
                belongs=partial(_belongs, None if args.splits is not None else split),
                max_concurrency=args.max_concurrency,
            )

    def count(self, split: Split) -> int:
        return len(self._splits[split].tasks)

    def problem(self, split: Split, index: int) -> Problem:
        problem: Problem = self._splits[split].problem(index)
        return problem

    async def play(self, problem: Problem, session: PolicySession) -> None:
        """Have verifiers play an episode, and note its rewards.

        Raises VerifiersFault for what verifiers recorded; of the policy and of tools PolicyError and ToolError.
        """
        asking = self._asking.at(await session.address())
        session.note(await self._splits[Split(problem.data["split"])].play(problem, asking))

    async def score_group(self, problem: Problem, rollouts: Sequence[FinishedRollout]) -> Sequence[float | Exception]:
        """The rewards that verifiers gave, and what broke its scoring."""
        for rollout in rollouts:
            rollout.metrics.update(rollout.notes.get("metrics", {}))
        return [
            self._episodes.classed(**rollout.notes["fault"]) if "fault" in rollout.notes else rollout.notes["reward"]
            for rollout in rollouts
        ]


def _belongs(split: Split | None, key: str) -> bool:
    """Whether a task is of a split: of no split in particular, each is."""
    return split is None or is_held_out(key) == (split is Split.EVAL)
