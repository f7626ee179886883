"""`python -m environments process|evaluate|synthesize|serve`: an environment where there is no control plane.

Their options may stand in a TOML or YAML file (`--config`); the command line wins over it.
"""

import argparse
import asyncio
import itertools
import json
import os
import sys
import tomllib
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec

from environments import registry
from environments.client.group_client import GroupClient
from environments.client.http import Refused
from environments.config import SamplingParams
from environments.env import Environment
from environments.figures import of_group, summarise
from environments.types import PlayedGroup, Split
from environments.verbs.files import Conditions, GroupFile
from environments.verbs.page import page
from environments.verbs.playing import Mistake, PolicyServer, play
from environments.verbs.synthesis import write

_PATIENCE_S = 300.0
"""For which `serve`, which goes on for days, waits for a server that is away and sends its run no failures; then it
does, and so hears that the run is over."""


def register(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the four to a program."""
    command = _command(commands, "process", _process, "play groups into a file, and a page to look at")
    command.add_argument("--out", type=Path, help="JSON lines; what is in it is not played again")
    command.add_argument("--html", type=Path, help="a page of the same that needs nothing else")
    command.add_argument("--split", type=Split, default=Split.TRAIN, choices=list(Split))
    command.add_argument("--problems", type=int, default=100)
    command.add_argument("--samples", type=int, default=4, help="rollouts of each problem")

    command = _command(commands, "evaluate", _evaluate, "avg@n, pass@k and pass^k on held-out problems")
    command.add_argument("--out", type=Path, help="keep the groups as JSON lines, and go on with what is there")
    command.add_argument("--html", type=Path, help="a page of them")
    command.add_argument("--split", type=Split, default=Split.EVAL, choices=list(Split))
    command.add_argument("--problems", type=int, default=0, help="how many; 0: all")
    command.add_argument("--samples", type=int, default=4, help="rollouts of each problem")
    command.add_argument("--threshold", type=float, default=1.0, help="from which reward a rollout is right")

    command = _command(commands, "synthesize", _synthesize, "the best of what a teacher plays, as SFT data")
    command.add_argument("--out", type=Path, help="JSON lines: messages, tools, and where each is from")
    command.add_argument("--groups", type=Path, help="all that was played; what is in it is not played again")
    command.add_argument("--split", type=Split, default=Split.TRAIN, choices=list(Split))
    command.add_argument("--problems", type=int, default=100)
    command.add_argument("--samples", type=int, default=4, help="rollouts of each problem")
    command.add_argument("--min-reward", type=float, default=1.0, help="of a line")
    command.add_argument("--best", type=int, default=1, help="lines of each problem at most")

    command = _command(commands, "serve", _serve, "play groups into a run, until it is over")
    command.add_argument("--url", default=os.environ.get("ROLLYARD_URL"), help="of the control plane (ROLLYARD_URL)")
    command.add_argument("--run", default=os.environ.get("ROLLYARD_RUN"), help="the run's key (ROLLYARD_RUN)")
    command.add_argument("--token-env", default="ROLLYARD_TOKEN", help="variable that holds a token of scope submit")
    command.add_argument("--spool", type=Path, help="directory for what cannot be sent now")
    command.add_argument("--split", type=Split, default=Split.TRAIN, choices=list(Split))
    command.add_argument("--problems", type=int, default=0, help="how many; 0: until the run is over")
    command.add_argument("--samples", type=int, default=8, help="rollouts of each problem: the group")


def parse(
    parser: argparse.ArgumentParser, commands: "argparse._SubParsersAction[argparse.ArgumentParser]", argv: list[str]
) -> argparse.Namespace:
    """Read the command line, over the file that it names. Raises Mistake."""
    args = parser.parse_args(argv)
    if (path := getattr(args, "config", None)) is None:
        return args
    values = _read(path)
    known = vars(args).keys() - {"act", "command", "config", "name"}
    if unknown := values.keys() - known:
        raise Mistake(f"{path}: {', '.join(sorted(unknown))} is no option. Known: {', '.join(sorted(known))}.")
    commands.choices[args.command].set_defaults(**values)
    return parser.parse_args(argv)


def _command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, act: Any, told: str
) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=told)
    command.set_defaults(act=act)
    command.add_argument("name", help="the environment")
    command.add_argument("--config", type=Path, help="TOML or YAML with any of these options")
    command.add_argument("--args", type=json_object, default={}, help="its arguments, as a JSON object")
    command.add_argument("--base-url", default="http://127.0.0.1:8000/v1", help="default: %(default)s")
    command.add_argument("--model", default="policy", help="the served model's name; default: %(default)s")
    command.add_argument("--api-key-env", default="OPENAI_API_KEY", help="variable that holds the server's key")
    command.add_argument("--tokenizer", type=Path, help="directory of the model: without it calls of tools stay text")
    command.add_argument("--index", type=int, default=0, help="the first problem")
    command.add_argument("--at-once", type=int, default=16, help="problems that are played at a time")
    command.add_argument("--temperature", type=float, default=1.0)
    command.add_argument("--max-tokens", type=int, default=256, help="per turn")
    command.add_argument("--max-turns", type=int, default=8)
    command.add_argument("--deadline", type=float, default=600.0, help="seconds per group")
    return command


def _process(args: argparse.Namespace) -> int:
    if args.out is None:
        raise Mistake("process needs --out: the file for the groups.")
    environment = registry.load(args.name, args.args)
    with _opened(args.out, environment, args) as file:
        failed = asyncio.run(_into(file, environment, args))
        _write_page(args, file.groups())
    return int(failed)


def _evaluate(args: argparse.Namespace) -> int:
    for key, message in registry.unmeasured(args.name, args.args).items():
        raise Mistake(f"--args: {key}: {message}")
    environment = registry.load(args.name, args.args)
    if args.out is None:
        groups: list[PlayedGroup] = []
        asyncio.run(_collect(groups, environment, args))
        found = summarise(map(of_group, groups), threshold=args.threshold)
        _write_page(args, groups)
    else:
        with _opened(args.out, environment, args) as file:
            asyncio.run(_into(file, environment, args))
            found = summarise(map(of_group, file.asked()), threshold=args.threshold)
            _write_page(args, file.asked())
    print(json.dumps(found, indent=2))
    return int(found["failed"] > 0)


def _synthesize(args: argparse.Namespace) -> int:
    if args.out is None or args.groups is None:
        raise Mistake("synthesize needs --out, the file for the lines, and --groups, the one for all that was played.")
    environment = registry.load(args.name, args.args)
    with _opened(args.groups, environment, args) as file:
        asyncio.run(_into(file, environment, args))
        kept = write(args.out, file.asked(), teacher=args.model, min_reward=args.min_reward, best=args.best)
    print(json.dumps(msgspec.to_builtins(kept), indent=2))
    return int(kept.lines == 0)


def _serve(args: argparse.Namespace) -> int:
    token = os.environ.get(args.token_env)
    if not (args.url and args.run and token):
        raise Mistake(f"serve needs --url, --run and a token in {args.token_env}: `rollyard token create` makes one.")
    environment = registry.load(args.name, args.args)
    with GroupClient(args.url, token, args.run, args.spool) as client:
        try:
            asyncio.run(_send(client, environment, args))
        except Refused as refused:
            if refused.code != "run_over":
                raise
            print(refused, file=sys.stderr)
    return 0


async def _send(client: GroupClient, environment: Environment[Any], args: argparse.Namespace) -> None:
    async for group in _groups(environment, args):
        await asyncio.to_thread(client.submit, [group])


async def _into(file: GroupFile, environment: Environment[Any], args: argparse.Namespace) -> bool:
    """Play what is not in the file. Returns whether a rollout failed."""
    failed = False
    async for group in _groups(environment, args, file):
        file.add(group)
        failed = failed or any(rollout.error for rollout in group.rollouts)
    return failed


async def _collect(groups: list[PlayedGroup], environment: Environment[Any], args: argparse.Namespace) -> None:
    async for group in _groups(environment, args):
        groups.append(group)


async def _groups(
    environment: Environment[Any], args: argparse.Namespace, file: GroupFile | None = None
) -> AsyncGenerator[PlayedGroup, None]:
    """What is to be played, as it ends; for a file what that lacks."""
    count = environment.count(args.split)
    wanted: Iterable[int] = itertools.count(args.index)
    if args.problems or args.act is not _serve:
        wanted = range(args.index, args.index + min(args.problems or count, count))
    if file is not None:
        places = (index % count for index in wanted)
        wanted = file.lacking(args.split, ((index, environment.problem(args.split, index)) for index in places))
    server = PolicyServer(
        base_url=args.base_url, model=args.model, api_key=os.environ.get(args.api_key_env), tokenizer=args.tokenizer
    )
    options: dict[str, Any] = {"split": args.split, "samples": args.samples, "at_once": args.at_once}
    options |= {"deadline_s": args.deadline, "are_keyed": file is not None}
    if args.act is _serve:
        options["patience_s"] = _PATIENCE_S
    async with aclosing(play(environment, args.name, wanted, server, _sampling(args), **options)) as groups:
        async for group in groups:
            yield group


def _sampling(args: argparse.Namespace) -> SamplingParams:
    try:
        limits = {"temperature": args.temperature, "max_tokens": args.max_tokens, "max_turns": args.max_turns}
        return msgspec.convert(limits, SamplingParams)
    except msgspec.ValidationError as error:
        raise Mistake(str(error)) from None


def _opened(path: Path, environment: Environment[Any], args: argparse.Namespace) -> GroupFile:
    """The file for what is asked for, which may have some of it."""
    sampling = _sampling(args)
    played = Conditions(
        environment=args.name,
        version=environment.version,
        args=args.args,
        model=args.model,
        temperature=sampling.temperature,
        max_tokens=sampling.max_tokens,
        max_turns=sampling.max_turns,
        samples=args.samples,
    )
    try:
        return GroupFile(path, played)
    except (OSError, ValueError) as error:
        raise Mistake(str(error)) from None


def _write_page(args: argparse.Namespace, groups: Iterable[PlayedGroup]) -> None:
    if args.html is None:
        return
    with args.html.open("w", encoding="utf-8") as file:
        file.writelines(page(f"{args.name}, {args.model}", groups))


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text()
        values = _parsed_yaml(text) if path.suffix in {".yaml", ".yml"} else tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise Mistake(f"{path}: {error}") from None
    if not isinstance(values, dict):
        raise Mistake(f"{path} holds no table of options.")
    return {str(key).replace("-", "_"): value for key, value in values.items()}


def _parsed_yaml(text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


def json_object(text: str) -> dict[str, Any]:
    """An argument of a command line that is an object."""
    try:
        value = json.loads(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(f"not JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("not a JSON object")
    return value
