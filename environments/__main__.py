"""`python -m environments`: environments on their own, without a database or a trainer."""

import argparse
import asyncio
import faulthandler
import os
import sys
from pathlib import Path
from typing import Any

import msgspec

from environments import registry, solutions
from environments.cards import card
from environments.client.http import ClientError
from environments.config import SamplingParams
from environments.env import Environment
from environments.errors import PolicyError, RegistryError
from environments.kit import check
from environments.types import PlayedRollout, Split
from environments.verbs.commands import json_object, parse, register
from environments.verbs.playing import Mistake, PolicyServer, play


def main(argv: list[str] | None = None) -> int:
    """Run one command. Returns the exit status: 1 if an episode or a check failed, 2 for a mistake in the command."""
    parser, commands = _parser()
    try:
        args = parse(parser, commands, sys.argv[1:] if argv is None else argv)
        return int(args.act(args))
    except (ClientError, Mistake, PolicyError, RegistryError) as exc:
        print(exc, file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader (head, less) has enough. Nothing may be written to the closed pipe at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _list(args: argparse.Namespace) -> int:
    for name in registry.names():
        found = card(name)
        print(f"{name}  ({f'version {found.version}' if found.version else found.origin})  {found.summary}")
        for argument in found.arguments:
            print(f"    {argument.name} = {argument.default or '(to be given)'}  {argument.description}")
    return 0


def _check(args: argparse.Namespace) -> int:
    # Code that hangs in a pattern or a loop gives no exception its turn: show where it is, and end.
    faulthandler.dump_traceback_later(args.deadline, exit=True)
    try:
        environment = registry.load(args.name, args.args)
        report = check(environment, problems=args.problems, margin=args.margin, seconds=args.seconds)
    finally:
        faulthandler.cancel_dump_traceback_later()
    print(report)
    return int(not report.holds)


def _play(args: argparse.Namespace) -> int:
    try:
        sampling = msgspec.convert(
            {
                "temperature": args.temperature,
                "max_tokens": args.max_tokens,
                "max_turns": args.max_turns,
            },
            SamplingParams,
        )
    except msgspec.ValidationError as exc:
        print(exc, file=sys.stderr)
        return 2
    return asyncio.run(_play_all(args, registry.load(args.name, args.args), sampling))


async def _play_all(args: argparse.Namespace, environment: Environment[Any], sampling: SamplingParams) -> int:
    failed = False
    server = PolicyServer(
        base_url=args.base_url, model=args.model, api_key=os.environ.get(args.api_key_env), tokenizer=args.tokenizer
    )
    wanted = range(args.index, args.index + args.problems)
    options: dict[str, Any] = {"split": args.split, "samples": args.n, "at_once": 1, "deadline_s": args.deadline}
    async for group in play(environment, args.name, wanted, server, sampling, **options):
        failed = failed or any(rollout.error for rollout in group.rollouts)
        if args.json:
            print(msgspec.json.encode(group).decode(), flush=True)
        else:
            print(f"{group.problem_key}")
            for rollout in group.rollouts:
                print(f"  {_line(rollout)}", flush=True)
    return int(failed)


def _line(rollout: PlayedRollout) -> str:
    if rollout.error is not None:
        return f"failed   {rollout.error.kind}: {rollout.error.type}: {rollout.error.message}"
    sampled = sum(rollout.loss_mask)
    spoken = " | ".join(message.text for message in rollout.messages if message.role == "assistant")
    return (
        f"{rollout.reward:7.3f}  {rollout.stop_reason:6}  {sampled:5} tokens  {rollout.generation_s:6.2f} s  {spoken!r}"
    )


def _parser() -> "tuple[argparse.ArgumentParser, argparse._SubParsersAction[argparse.ArgumentParser]]":
    parser = argparse.ArgumentParser(prog="python -m environments", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    command = commands.add_parser("list", help="name every environment and its arguments")
    command.set_defaults(act=_list)

    named = argparse.ArgumentParser(add_help=False)
    named.add_argument("name", help="the environment")
    named.add_argument("--args", type=json_object, default={}, help="its arguments, as a JSON object")
    chosen = argparse.ArgumentParser(add_help=False, parents=[named])
    chosen.add_argument("--split", type=Split, default=Split.TRAIN, choices=list(Split))

    command = commands.add_parser("check", parents=[named], help="check what an environment promises, without a model")
    command.set_defaults(act=_check)
    command.add_argument("--problems", type=int, default=50, help="of each split")
    command.add_argument("--margin", type=float, default=0.05, help="reward by which solving has to beat guessing")
    command.add_argument("--seconds", type=float, default=2.0, help="for each episode of hostile replies")
    command.add_argument("--deadline", type=float, default=600.0, help="seconds for all; then it says where it hangs")

    command = commands.add_parser("play", parents=[chosen], help="play groups against an inference server")
    command.set_defaults(act=_play)
    command.add_argument("--base-url", default="http://127.0.0.1:8000/v1", help="default: %(default)s")
    command.add_argument("--model", default="policy", help="the served model's name; default: %(default)s")
    command.add_argument(
        "--api-key-env", default="OPENAI_API_KEY", help="variable that holds the key, if one is needed"
    )
    command.add_argument("--tokenizer", type=Path, help="directory of the model: without it calls of tools stay text")
    command.add_argument("--n", type=int, default=4, help="rollouts per problem")
    command.add_argument("--problems", type=int, default=1)
    command.add_argument("--index", type=int, default=0, help="the first problem")
    command.add_argument("--temperature", type=float, default=1.0)
    command.add_argument("--max-tokens", type=int, default=256, help="per turn")
    command.add_argument("--max-turns", type=int, default=8)
    command.add_argument("--deadline", type=float, default=120.0, help="seconds per group")
    command.add_argument("--json", action="store_true", help="one scored group per line, with its tokens")

    command = commands.add_parser("solutions", parents=[chosen], help="write solved problems as SFT data (JSON lines)")
    command.set_defaults(act=solutions.write)
    solutions.add_options(command)
    register(commands)
    return parser, commands


if __name__ == "__main__":
    sys.exit(main())
