"""`make demo`: teach a tiny model to reverse words before your eyes, with every real part and no download.

    up ─► tiny Qwen3 ─► run `reverse-text-sft` (half right), a model now ─► run `reverse-text-rl` (nearly always)

The process a person starts is `rollyard up`; what is written here runs below it as its job (`--job`).
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from controlplane.cli import lessons
from controlplane.cli.lessons import say
from controlplane.cli.terminal import port_of
from controlplane.home import OWNER_ONLY, Home

_SFT, _RL = "reverse-text-sft", "reverse-text-rl"
_LEARNED = 0.1
"""Gain of the mean evaluation reward from which the demo counts as learned; noise of 64 problems is about .06."""


def main() -> int:
    """Run the demo; the exit status is 0 when it finished and the model learned."""
    arguments = _parser().parse_args()
    if arguments.job:
        return _Job(arguments).run()
    return _host(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make demo DEMO_ARGS='...'", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--exit-when-done", action="store_true", help="stop when training has ended")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object, as the last line")
    parser.add_argument("--seed", type=int, default=1, help="of the model's weights, the problems and the sampling")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a value of the RL run, such as max_steps=20; sft.KEY=VALUE overrides one of the supervised run",
    )
    parser.add_argument("--port", type=_port, help="a number, or auto")
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    return parser


def _port(given: str) -> int | None:
    try:
        return port_of(given)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _host(arguments: argparse.Namespace) -> int:
    """Be the supervisor; the demo itself is its job."""
    try:
        for preset in (_SFT, _RL):
            _resolved(arguments, preset, "a-model")
    except lessons.NotDone as reason:  # now, not when the first run has ended
        say(f"demo: {reason}")
        return 1
    os.umask(OWNER_ONLY)
    home = Home.from_environ()
    directory = home.path / "demo" / time.strftime("%Y%m%d-%H%M%S")
    directory.mkdir(parents=True)
    argv = ["controlplane.cli.demo", "--job", str(directory), "--seed", str(arguments.seed)]
    argv += ["--exit-when-done"] * arguments.exit_when_done
    argv += [word for override in arguments.set for word in ("--set", override)]
    stays = not arguments.exit_when_done
    status = lessons.host(home, "demo", argv, port=arguments.port, stays=stays, ROLLYARD_DEMO_BEGAN=str(time.time()))
    result = directory / "result.json"
    if result.exists() and arguments.json:
        say(result.read_text())
    return status


def _resolved(arguments: argparse.Namespace, preset: str, model: str) -> Any:
    """The config of one of the two runs, with what was asked for it. Raises NotDone."""
    asked = [word.removeprefix("sft.") for word in arguments.set if word.startswith("sft.") == (preset == _SFT)]
    return lessons.resolved(preset, [f"model.path={model}", f"seed={arguments.seed}", *asked])


class _Job:
    """The demo proper, in a process that `up` watches."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._directory: Path = arguments.job
        self._began = float(os.environ["ROLLYARD_DEMO_BEGAN"])
        self._phase_s: dict[str, float] = {"start": round(time.time() - self._began, 1)}
        self._result: dict[str, Any] = {"run": None, "seed": arguments.seed}

    def run(self) -> int:
        """Make the model and the data, train twice, judge."""
        import django

        django.setup()
        from rollouts.models import Run
        from rollouts.selectors import summary

        try:
            with self._phase("model", "making a tiny Qwen3 with random weights"):
                model = lessons.make_tiny(self._arguments.seed)
            with self._phase("sft", "supervised warm-up: the model learns the format and about half of the task"):
                warmed = lessons.launch(_resolved(self._arguments, _SFT, model), actor="demo")
                lessons.finish(warmed)
            rl = _resolved(self._arguments, _RL, lessons.result_of(warmed))
            with self._phase("rl", "reinforcement learning: the model is rewarded for every letter in its place"):
                run = lessons.launch(rl, actor="demo")
                self._result["run"] = run.key
                lessons.finish(run)
        except lessons.NotDone as reason:
            say(f"demo: {reason}")
            self._result["error"] = str(reason)
        run = Run.objects.filter(key=self._result["run"]).first()
        if run is not None:
            self._result |= asdict(summary.summarise(run))
        return self._judge()

    def _judge(self) -> int:
        before: Any = self._result.get("eval_reward_before")
        after: Any = self._result.get("eval_reward_after")
        evaluated = before is not None and after is not None
        learned = evaluated and "error" not in self._result and after - before >= _LEARNED
        self._result |= {"wall_s": round(time.time() - self._began, 1), "phase_s": self._phase_s}
        (self._directory / "result.json").write_text(json.dumps(self._result))
        if evaluated:
            verdict = "learned" if learned else "did not learn enough"
            say(f"demo: the model {verdict}: reward on held-out problems {before:.3f} before, {after:.3f} after")
        if not self._arguments.exit_when_done:
            say("demo: everything stays up for you to look at; Ctrl-C stops it")
        return 0 if learned else 1

    @contextmanager
    def _phase(self, name: str, description: str) -> Iterator[None]:
        say(f"demo: {description}")
        with lessons.timed(self._phase_s, name):
            yield


if __name__ == "__main__":
    sys.exit(main())
