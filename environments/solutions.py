"""Problems with the solutions that their environment gives: conversations to imitate, as lines of SFT data."""

import random
from collections.abc import Iterator
from typing import Any

import msgspec

from environments import registry
from environments.types import JsonObject, Message, Split


class NoSolutions(Exception):
    """The environment can pose problems, but not solve them."""


def solved(
    name: str, args: dict[str, Any], count: int, *, split: Split = Split.TRAIN, echo: float = 0.0
) -> Iterator[JsonObject]:
    """The first ``count`` problems of an environment, solved: `messages`, and `tools` where a problem has any.

    After the last problem comes the first again.

    In a share ``echo`` of them, the same ones each time, the policy only repeats the problem's own text. Raises
    NoSolutions, RegistryError.
    """
    environment = registry.load(name, args)
    for index in range(count):
        problem = environment.problem(split, index % environment.count(split))
        messages = environment.solution(problem)
        if messages is None:
            raise NoSolutions(f"{name} has no solutions to give.")
        if random.Random(f"{problem.key}/{index}").random() < echo:
            messages = [*problem.messages, Message("assistant", problem.messages[-1].text)]
        line: JsonObject = {"messages": msgspec.to_builtins(messages)}
        yield line | {"tools": problem.tools} if problem.tools else line
