"""Do examples learn? Warm-up and RL run of each for several seeds, in a home of their own: `examples/NAME/curve.*`.

    python -m benchmarks.examples blackjack --seeds 1 2 3

Each seed has a tiny model with weights of its own, the run of `sft.toml` that warms it up, and that of `rl.toml`. Kept
are the held-out reward by policy version, as the store has it, or what tells more of an environment (`_FIGURES`), and
the seconds of both runs. Seeds that are in `curve.json` and not asked for stay there.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.curves import write_svg
from controlplane.cli import lessons
from controlplane.cli.lessons import say
from controlplane.home import Home

EXAMPLES = Path(__file__).parents[1] / "examples"
_TINY = {"tiny-qwen3": False, "tiny-tools": True}
"""The models that examples warm up, and whether they know tools."""
_FIGURES = {"kuhn-poker": "exploitability"}
"""What is kept in place of the reward: of self-play the mean reward is 0, however well it plays."""
_READABLE = 0o755
"""Of what a home is in: the account of runs passes through."""


def main() -> int:
    """Run it; the exit status is 0 when every seed got through both runs."""
    arguments = _parser().parse_args()
    return _teach_all(arguments) if arguments.job else in_own_home("examples", keep=arguments.keep)


def in_own_home(name: str, *, keep: bool) -> int:
    """Run the module of benchmarks that was called again, as the job of a control plane in an empty home, with
    `--job` and a directory for its data; returns the exit status. `keep` leaves the home."""
    root = Path(tempfile.mkdtemp(prefix=f"rollyard-{name}-"))
    (root / "data").mkdir()
    for directory in (root, root / "data"):
        directory.chmod(_READABLE)
    os.environ["ROLLYARD_HOME"] = str(root / "home")
    argv = [f"benchmarks.{name}", *sys.argv[1:], "--job", str(root / "data")]
    try:
        return lessons.host(Home(root / "home"), name, argv, port=0)
    finally:
        if not keep:
            shutil.rmtree(root, ignore_errors=True)


def _parser() -> argparse.ArgumentParser:
    names = sorted(path.parent.name for path in EXAMPLES.glob("*/rl.toml"))
    parser = argparse.ArgumentParser(prog="python -m benchmarks.examples", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="+", choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument(
        "--venv", type=Path, help="virtual environment of a bridge; by default its recipe is installed in the home"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="as for `make demo`; such figures are not kept"
    )
    parser.add_argument("--keep", action="store_true", help="leave the home, with both runs and all rollouts in it")
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    return parser


def _teach_all(arguments: argparse.Namespace) -> int:
    import django

    django.setup()
    status = 0
    for seed in arguments.seeds:
        for name in arguments.names:
            try:
                taught = _teach(name, seed, arguments)
            except lessons.NotDone as reason:
                say(f"{name}, seed {seed}: {reason}")
                status = 1
                continue
            figure = _FIGURES.get(name, "reward")
            values = list(taught[figure].values())
            say(f"{name}, seed {seed}: {figure} {values[0]:.3f}, then {values[-1]:.3f}; {json.dumps(taught)}")
            if not arguments.set:
                _keep(name, seed, taught)
    return status


def _keep(name: str, seed: int, taught: dict[str, Any]) -> None:
    """Put what a seed gave into the example's curve, and draw it."""
    curve = EXAMPLES / name / "curve.json"
    known = json.loads(curve.read_text())["seeds"] if curve.exists() else {}
    seeds = dict(sorted({**known, str(seed): taught}.items()))
    figure = _FIGURES.get(name, "reward")
    told = {"example": name, "figure": figure, "cores": os.cpu_count(), "seeds": seeds}
    curve.write_text(json.dumps(told, indent=1) + "\n")
    write_svg(curve.with_suffix(".svg"), {key: each[figure] for key, each in seeds.items()}, figure)


def _teach(name: str, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Warm a model up and train it: its figure by version, the seconds of both runs, the load of the machine.

    Raises NotDone.
    """
    seconds: dict[str, float] = {}
    given = [f"seed={seed}", *_bridge(name, arguments.venv)]
    words = [word.removeprefix("sft.") for word in arguments.set if word.startswith("sft.")]
    with lessons.timed(seconds, "warm_up_s"):
        warm_up(name, seed, [*given, *words], arguments.job)
    words = [word for word in arguments.set if not word.startswith("sft.")]
    with lessons.timed(seconds, "rl_s"):
        run = lessons.launch(lessons.resolved(EXAMPLES / name / "rl.toml", [*given, *words]), actor="examples")
        lessons.finish(run)
    figure = _FIGURES.get(name, "reward")
    values = {str(version): round(value, 4) for version, value in held_out(run, figure).items()}
    return {figure: values, **seconds, "load": round(os.getloadavg()[1], 1)}


def held_out(run: Any, figure: str = "reward") -> dict[int, float]:
    """A figure of the run's environment by version, its first and its last among them. Raises NotDone."""
    found = measured(run, figure)
    if missing := sorted({0, run.max_steps} - found.keys()):
        versions = " and ".join(map(str, missing))
        raise lessons.NotDone(f"run {run.key} is {run.state}, not evaluated on all problems at version {versions}")
    return found


def measured(run: Any, figure: str = "reward") -> dict[int, float]:
    """The same of what versions there are. Evaluations that did not play all of their problems count for nothing: the
    long episodes are missing in them."""
    from rollouts.models import Evaluation, MetricPoint
    from rollouts.states import EvaluationState

    name = run.parsed.environments[0].run_name
    whole = Evaluation.objects.filter(run=run, environment__name=name, state=EvaluationState.DONE).values("version")
    points = MetricPoint.objects.filter(run=run, key=f"eval/{name}/{figure}", step__in=whole)
    return dict(points.order_by("step").values_list("step", "value"))


def warm_up(name: str, seed: int, words: list[str], job: Path) -> None:
    """Make the model that an example's RL run starts from, with the weights of a seed. Raises NotDone."""
    from rollouts.models import Model

    directory = job / f"{name}-{seed}"
    directory.mkdir()
    directory.chmod(_READABLE)
    config = lessons.resolved(EXAMPLES / name / "sft.toml", words).config
    model = lessons.make_tiny(seed, tools=_TINY[config.model.path])
    # The same name for every seed: each run starts from what was registered last.
    Model.objects.filter(name=config.register_as).delete()
    words = [*words, f"model.path={model}", *_solutions(config, directory)]
    lessons.finish(lessons.launch(lessons.resolved(EXAMPLES / name / "sft.toml", words), actor="examples"))


def _bridge(name: str, venv: Path | None) -> list[str]:
    """Allow what the example plays of another library, and find its virtual environment: overrides of both runs."""
    from environments import registry, venvs
    from rollouts.errors import Conflict
    from rollouts.services import trust

    [played] = lessons.resolved(EXAMPLES / name / "rl.toml", []).config.environments
    foreign = registry.code_from_elsewhere(played.name, played.args)
    if foreign is None:
        return []
    for name in [foreign] if venv is None else [foreign, str(venv.resolve())]:
        with suppress(Conflict):  # by an earlier seed
            trust.allow("environment", name, actor="examples")
    if venv is not None:
        return [f"environments.0.python={venv.resolve()}"]
    venvs.install(Home.from_environ().path / venvs.DIRECTORY, played.python)
    return []


def _solutions(config: Any, directory: Path) -> list[str]:
    """Write the solutions of an environment of another library, which only its own Python can give."""
    from environments import venvs

    [played] = config.environments
    if not played.python:
        return []
    file = directory / "solutions.jsonl"
    python = venvs.find(Home.from_environ().path / venvs.DIRECTORY, played.python)
    count = config.max_steps * config.data.batch_size
    words = ["--args", json.dumps(played.args), "--n", str(count), "--echo", str(config.data.echo)]
    with file.open("wb") as lines:
        file.chmod(0o644)
        argv = [str(python), "-m", "environments.solutions", played.name, *words]
        done = subprocess.run(argv, stdout=lines, check=False)
    if done.returncode:
        raise lessons.NotDone(f"{' '.join(argv)} ended with status {done.returncode}")
    return [f"data.path={file}"]


if __name__ == "__main__":
    sys.exit(main())
