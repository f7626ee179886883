"""`python -m environments list|play|solutions`: environments on their own, without a database or a trainer."""

import argparse
import asyncio
import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import msgspec

from environments import registry
from environments.chat import rendered
from environments.config import SamplingParams
from environments.env import Environment
from environments.errors import PolicyError, RegistryError
from environments.gateway.local import LocalGateway
from environments.policy import OpenAIPolicy
from environments.runner import play_group
from environments.solutions import NoSolutions, solved
from environments.types import PlayedGroup, PlayedRollout, Split


def main(argv: list[str] | None = None) -> int:
    """Run one command. Returns the exit status: 1 if an episode failed, 2 for a mistake in the command."""
    args = _parser().parse_args(argv)
    try:
        return int(args.run(args))
    except (PolicyError, RegistryError) as exc:
        print(exc, file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader (head, less) has enough. Nothing may be written to the closed pipe at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _list(args: argparse.Namespace) -> int:
    for name in registry.names():
        found = registry.find_class(name)
        print(f"{name}  (version {found.version})  {(found.__doc__ or '').strip().splitlines()[0]}")
        schema = msgspec.json.schema_components([found.args_type])[1][found.args_type.__name__]
        for key, argument in schema["properties"].items():
            print(f"    {key} = {json.dumps(argument.get('default'))}  {argument.get('description', '')}")
    return 0


def _solutions(args: argparse.Namespace) -> int:
    try:
        for line in solved(args.name, args.args, args.n, split=args.split, echo=args.echo):
            print(json.dumps(line, ensure_ascii=False))
    except NoSolutions as exc:
        print(exc, file=sys.stderr)
        return 2
    return 0


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
    api_key = os.environ.get(args.api_key_env)
    gateway = LocalGateway()
    async with (
        OpenAIPolicy(args.base_url, args.model, api_key=api_key, timeout_s=args.deadline) as policy,
        contextlib.aclosing(gateway),
    ):
        chat = await rendered.find(policy, args.tokenizer) if args.tokenizer else None
        for offset in range(args.problems):
            problem = environment.problem(args.split, (args.index + offset) % environment.count(args.split))
            options: dict[str, Any] = {"deadline_s": args.deadline, "chat": chat, "gateway": gateway}
            rollouts = await play_group(environment, problem, policy, sampling, args.n, **options)
            failed = failed or any(rollout.error for rollout in rollouts)
            if args.json:
                group = PlayedGroup(
                    environment=args.name,
                    environment_version=environment.version,
                    problem_key=problem.key,
                    rollouts=rollouts,
                )
                print(msgspec.json.encode(group).decode(), flush=True)
            else:
                print(f"{problem.key}")
                for rollout in rollouts:
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m environments", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser("list", help="name every environment and its arguments")
    command.set_defaults(run=_list)

    chosen = argparse.ArgumentParser(add_help=False)
    chosen.add_argument("name", help="the environment")
    chosen.add_argument("--args", type=_json_object, default={}, help="its arguments, as a JSON object")
    chosen.add_argument("--split", type=Split, default=Split.TRAIN, choices=list(Split))

    command = commands.add_parser("play", parents=[chosen], help="play groups against an inference server")
    command.set_defaults(run=_play)
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
    command.set_defaults(run=_solutions)
    command.add_argument("--n", type=int, default=100, help="lines to write")
    command.add_argument(
        "--echo",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="share of lines that answer with the problem's own text: flawed examples leave RL something to mend",
    )
    return parser


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(f"not JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("not a JSON object")
    return value


if __name__ == "__main__":
    sys.exit(main())
