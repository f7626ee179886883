"""Problems with the solutions that their environment gives: conversations to imitate, as lines of SFT data.

`python -m environments.solutions` needs nothing but msgspec: in the virtual environment of a bridge it is the command
`python -m environments solutions` of ours.
"""

import argparse
import json
import random
import sys
from collections.abc import Iterator, Sequence
from itertools import count as counting
from itertools import islice
from typing import Any

import msgspec

from environments import registry
from environments.env import Environment
from environments.types import JsonObject, Message, Problem, Split


class NoSolutions(Exception):
    """The environment can pose problems, but not solve them."""


def solved(
    name: str, args: dict[str, Any], count: int, *, split: Split = Split.TRAIN, echo: float = 0.0
) -> Iterator[JsonObject]:
    """``count`` conversations that solve problems of an environment, as `example` has them, and `tools` of a problem.

    One for each problem, or one for each seat of its match; after the last problem comes the first again.

    In a share ``echo`` of them, the same ones each time, the policy only repeats the problem's own text. Raises
    NoSolutions, RegistryError.
    """
    environment = registry.load(name, args)
    for number, (problem, messages) in enumerate(islice(_conversations(environment, split), count)):
        if random.Random(f"{problem.key}/{number}").random() < echo:
            messages = [*problem.messages, Message("assistant", problem.messages[-1].text)]
        asked = len(problem.messages)
        line = example(messages, asked if messages[:asked] == problem.messages else 0)
        yield line | {"tools": problem.tools} if problem.tools else line


def example(messages: Sequence[Message], begin: int) -> JsonObject:
    """A conversation as SFT data: `messages`; or `prompt` and `completion`, from message ``begin`` on, where an
    assistant speaks before: those words are nobody's, and are not trained."""
    parts: Any = msgspec.to_builtins(messages)
    if any(message.role == "assistant" for message in messages[:begin]):
        return {"prompt": parts[:begin], "completion": parts[begin:]}
    return {"messages": parts}


def of_problem(environment: Environment[Any], problem: Problem) -> dict[str, list[Message]]:
    """The conversations that solve a problem, by seat; that of an environment without seats is ``""``. None: empty."""
    if environment.seats:
        return dict(environment.match_solution(problem) or {})
    messages = environment.solution(problem)
    return {} if messages is None else {"": messages}


def _conversations(environment: Environment[Any], split: Split) -> Iterator[tuple[Problem, list[Message]]]:
    for index in counting():
        problem = environment.problem(split, index % environment.count(split))
        found = of_problem(environment, problem)
        if not found:
            raise NoSolutions(f"{environment.name} has no solutions to give.")
        yield from ((problem, messages) for messages in found.values())


def add_options(command: argparse.ArgumentParser) -> None:
    """What is asked for beside the environment."""
    command.add_argument("--n", type=int, default=100, help="lines to write")
    command.add_argument(
        "--echo",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="share of lines that answer with the problem's own text: flawed examples leave RL something to mend",
    )


def write(args: argparse.Namespace) -> int:
    """Print the lines; returns the exit status."""
    try:
        for line in solved(args.name, args.args, args.n, split=args.split, echo=args.echo):
            sys.stdout.write(json.dumps(line, ensure_ascii=False) + "\n")
    except NoSolutions as exc:
        sys.stderr.write(f"{exc}\n")
        return 2
    return 0


def _main() -> int:
    parser = argparse.ArgumentParser(prog="python -m environments.solutions")
    parser.add_argument("name", help="the environment")
    parser.add_argument("--args", type=json.loads, default={}, help="its arguments, as a JSON object")
    parser.add_argument("--split", type=Split, default=Split.TRAIN, choices=list(Split))
    add_options(parser)
    return write(parser.parse_args())


if __name__ == "__main__":
    sys.exit(_main())
