"""The environments of a run as its page shows them: where their time goes, and why one lets others go first."""

from dataclasses import dataclass

from frontend import numbers
from rollouts.models import Run, RunKind
from rollouts.selectors import environments
from rollouts.selectors.environments import InFlight, PlayedEnvironment, PlayedVersion
from rollouts.states import RUN_GENERATING
from trainers.run_config import EnvironmentRef


@dataclass(frozen=True)
class ShownVersion:
    """A version of an environment, and its time as a bar."""

    played: PlayedVersion
    parts: list[tuple[str, int]]
    """(css class, milliseconds) for the bar; empty where nothing was measured."""
    time: str
    """The shares in words."""


@dataclass(frozen=True)
class ShownEnvironment:
    """An environment of the run."""

    name: str
    room: str
    """Where it plays, as far as the config says so."""
    versions: list[ShownVersion]
    passed: str
    """Why it let others go first; empty if it did not."""

    @property
    def rows(self) -> int:
        """Lines of the table that are its own."""
        return len(self.versions) + sum(bool(version.played.faults) for version in self.versions) + bool(self.passed)


def of_run(run: Run) -> list[ShownEnvironment] | None:
    """Every environment of the run; None where none will ever be played. At most three queries."""
    if run.kind == RunKind.SFT and not run.config.get("evaluation"):
        return None
    refs = {ref.run_name: ref for ref in run.parsed.environments}
    return [_shown(played, refs.get(played.row.name)) for played in environments.of_run(run)]


def in_flight(run: Run) -> InFlight | None:
    """What the run's drivers are busy with; None where none is expected and none has reported. At most one query."""
    if run.is_over:
        return None
    found = environments.in_flight(run)
    is_played_here = run.kind == RunKind.RL and run.state in RUN_GENERATING
    return found if found.drivers or is_played_here else None


def _shown(played: PlayedEnvironment, ref: EnvironmentRef | None) -> ShownEnvironment:
    return ShownEnvironment(
        name=played.row.name,
        room=_room(ref) if ref else "",
        versions=[_version(version) for version in played.versions],
        passed=_passed(played),
    )


def _room(ref: EnvironmentRef) -> str:
    parts = [ref.name] if ref.label else []
    if ref.python:
        parts.append(f"in {ref.python}")
    elif ref.process:
        parts.append(ref.process)
    return ", ".join(parts)


def _version(played: PlayedVersion) -> ShownVersion:
    seconds = {"model": played.model_s, "tools": played.tools_s, "scoring": played.scoring_s}
    if not played.measured_s:
        return ShownVersion(played, [], "")
    said = {"model": "policy", "tools": "tools", "scoring": "scoring"}
    shares = [f"{said[kind]} {numbers.percent(each / played.measured_s)}" for kind, each in seconds.items() if each]
    return ShownVersion(played, [(kind, round(each * 1000)) for kind, each in seconds.items()], ", ".join(shares))


def _passed(played: PlayedEnvironment) -> str:
    turns = played.row.passed
    if not turns:
        return ""
    times = "Once" if turns == 1 else f"{numbers.count(turns)} times"
    if played.fails:
        return (
            f"{times} another environment went first: its groups fail, so each driver plays one at a time, and pauses."
        )
    return f"{times} another environment went first: drivers were playing as many of its groups as they would."
