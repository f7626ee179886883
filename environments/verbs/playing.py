"""Play an environment's problems against a server, many at a time, without a control plane."""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from environments.chat import rendered
from environments.config import SamplingParams
from environments.env import Environment
from environments.errors import PolicyUnavailable
from environments.gateway.local import LocalGateway
from environments.policy import OpenAIPolicy
from environments.runner import play_group
from environments.types import ErrorKind, PlayedGroup, PlayedRollout, RolloutError, Split
from environments.verbs.files import key_of

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0


class Mistake(Exception):
    """In what the command was given."""


class PolicyServer(msgspec.Struct, frozen=True, kw_only=True):
    """Who is asked."""

    base_url: str
    model: str
    api_key: str | None
    tokenizer: Path | None
    """Directory of the model: without it calls of tools stay text."""


def _why_nobody_answered(rollouts: Sequence[PlayedRollout]) -> str:
    """What kept the server from answering, if nobody had an answer; else nothing, as of what it refused for good."""
    told = {rollout.error.message for rollout in rollouts if rollout.error is not None and _is_away(rollout.error)}
    return min(told) if all(each.error is not None and _is_away(each.error) for each in rollouts) and told else ""


def _is_away(error: RolloutError) -> bool:
    return error.kind is ErrorKind.POLICY and error.type == PolicyUnavailable.__name__


async def play(
    environment: Environment[Any],
    name: str,
    indices: Iterable[int],
    server: PolicyServer,
    sampling: SamplingParams,
    *,
    split: Split,
    samples: int,
    at_once: int,
    deadline_s: float,
    are_keyed: bool = False,
    patience_s: float = 0.0,
) -> AsyncGenerator[PlayedGroup, None]:
    """Groups as they end; `samples` rollouts of each problem, `at_once` problems at a time. Raises Mistake.

    `patience_s`: for so long a problem that nobody answered for is played again, ever less often: the server is away.
    `are_keyed`: a group's `key` is the one that files have; a run would store all that is played of a problem once.
    `indices` may go on for ever: none is taken before there is room for it. Close the iterator to end what is played.
    """
    gateway = LocalGateway()
    async with (
        OpenAIPolicy(server.base_url, server.model, api_key=server.api_key, timeout_s=deadline_s) as policy,
        contextlib.aclosing(gateway),
    ):
        chat = await rendered.find(policy, server.tokenizer) if server.tokenizer else None

        async def group(index: int) -> PlayedGroup:
            index %= environment.count(split)
            problem = environment.problem(split, index)
            if problem.tools and not server.tokenizer:
                raise Mistake(f"{name} has tools: give --tokenizer, the model's directory, or their calls stay text.")
            options: dict[str, Any] = {"deadline_s": deadline_s, "chat": chat, "gateway": gateway}
            begun, pause_s = time.monotonic(), _FIRST_PAUSE_S
            while True:
                rollouts = await play_group(environment, problem, policy, sampling, samples, **options)
                if not (error := _why_nobody_answered(rollouts)) or time.monotonic() - begun > patience_s:
                    break
                sys.stderr.write(f"{server.base_url}: {error}; again in {pause_s:.0f} s\n")
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            return PlayedGroup(
                environment=name,
                environment_version=environment.version,
                problem_key=problem.key,
                key=key_of(split, index) if are_keyed else None,
                rollouts=rollouts,
            )

        left, playing = iter(indices), set[asyncio.Task[PlayedGroup]]()
        try:
            while True:
                while len(playing) < at_once and (index := next(left, None)) is not None:
                    playing.add(asyncio.create_task(group(index)))
                if not playing:
                    return
                done, playing = await asyncio.wait(playing, return_when=asyncio.FIRST_COMPLETED)
                for each in done:
                    yield each.result()
        finally:
            for each in playing:
                each.cancel()
            await asyncio.gather(*playing, return_exceptions=True)
