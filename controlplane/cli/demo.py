"""`make demo`: teach a tiny model to reverse words before your eyes, with every real part and no download.

    up ─► tiny Qwen3 ─► run `reverse-text-sft` (half right), a model now ─► run `reverse-text-rl` (nearly always)

The process a person starts is `rollyard up`; what is written here runs below it as its job (`--job`).
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from controlplane.home import OWNER_ONLY, Home
from controlplane.safety import UnsafeSettings

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
    parser.add_argument("--port", default="", help="a number, or auto")
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    return parser


def _host(arguments: argparse.Namespace) -> int:
    """Be the supervisor; the demo itself is its job."""
    from controlplane.up import start
    from controlplane.up.processes import Program
    from controlplane.up.supervisor import StartError

    os.umask(OWNER_ONLY)
    home = Home.from_environ()
    directory = home.path / "demo" / time.strftime("%Y%m%d-%H%M%S")
    directory.mkdir(parents=True)
    argv = [sys.executable, "-m", "controlplane.cli.demo", "--job", str(directory), "--seed", str(arguments.seed)]
    argv += ["--exit-when-done"] * arguments.exit_when_done
    argv += [word for override in arguments.set for word in ("--set", override)]
    port = arguments.port
    options = start.Options(
        port=None if not port else 0 if port == "auto" else int(port),
        concurrency=4,
        quiet=True,
        job=Program("demo", tuple(argv), environ={"ROLLYARD_DEMO_BEGAN": str(time.time())}),
        on_job_line=_print,
        stays=not arguments.exit_when_done,
    )
    try:
        status = start.run(home, options)
    except (start.AlreadyUp, StartError, UnsafeSettings) as error:
        _print(f"error: {error}")
        return 1
    result = directory / "result.json"
    if result.exists() and arguments.json:
        _print(result.read_text())
    return status


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
        from rollouts.models import Model, Run
        from rollouts.selectors import summary

        model = self._directory / "model"
        seed = f"seed={self._arguments.seed}"
        overrides = [word for word in self._arguments.set if not word.startswith("sft.")]
        sft_overrides = [word.removeprefix("sft.") for word in self._arguments.set if word.startswith("sft.")]
        try:
            with self._phase("model", "making a tiny Qwen3 with random weights"):
                self._module("trainers.model.tiny", str(model), "--seed", str(self._arguments.seed))
            with self._phase("sft", "supervised warm-up: the model learns the format and about half of the task"):
                warmed = self._launch(self._resolve("reverse-text-sft", [f"model.path={model}", seed, *sft_overrides]))
                result = Model.objects.filter(run__key=warmed).first()
                if result is None:
                    raise _NotDone(f"run {warmed} left no model")
            rl = self._resolve("reverse-text-rl", [f"model.path={result.name}", seed, *overrides])
            with self._phase("rl", "reinforcement learning: the model is rewarded for every letter in its place"):
                self._launch(rl, keep=True)
        except _NotDone as reason:
            _print(f"demo: {reason}")
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
            _print(f"demo: the model {verdict}: reward on held-out problems {before:.3f} before, {after:.3f} after")
        if not self._arguments.exit_when_done:
            _print("demo: everything stays up for you to look at; Ctrl-C stops it")
        return 0 if learned else 1

    @contextmanager
    def _phase(self, name: str, description: str) -> Iterator[None]:
        _print(f"demo: {description}")
        began = time.monotonic()
        try:
            yield
        finally:
            self._phase_s[name] = round(time.monotonic() - began, 1)

    def _module(self, name: str, *words: str) -> None:
        """Run a module of ours to its end, as a person would from a shell."""
        done = subprocess.run([sys.executable, "-m", name, *words], capture_output=True, check=False)
        if done.returncode:
            raise _NotDone(f"python -m {name} failed: {done.stderr.decode(errors='replace')[-2000:]}")

    @staticmethod
    def _resolve(preset: str, overrides: Sequence[str]) -> Any:
        from trainers.config import ConfigError, resolve

        try:
            return resolve(preset, overrides=overrides, environ=os.environ)
        except ConfigError as error:
            raise _NotDone(f"the config of {preset} makes no sense: {error}") from error

    def _launch(self, resolved: Any, *, keep: bool = False) -> str:
        """Launch a run, follow it to its end and return its key; `keep` makes it the run of the result."""
        from controlplane.cli import follow
        from rollouts.errors import ControlPlaneError
        from rollouts.models import Run
        from rollouts.services.runs import launches, projects

        try:
            run = launches.launch(
                project=projects.ensure_default(),
                user=projects.ensure_admin(),
                resolved=resolved,
                actor="demo",
                forkable=Run.objects.all(),
            )
        except ControlPlaneError as error:
            raise _NotDone("; ".join([error.message, *error.fields.values()])) from error
        if keep:
            self._result["run"] = run.key
        _print(f"demo: run {run.key} is at {os.environ['ROLLYARD_URL']}/runs/{run.key}")
        if follow.follow(run.key, _print):
            run.refresh_from_db()
            raise _NotDone(f"run {run.key} {run.state}: {run.state_reason}")
        return run.key


class _NotDone(Exception):
    """The demo cannot go on; the message says why."""


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
