"""The environments of a run as its page shows them: where their time goes, and why one lets others go first."""

from dataclasses import dataclass

from frontend import numbers
from rollouts.models import Run, RunKind
from rollouts.pools import Pool
from rollouts.selectors import environments, pools
from rollouts.selectors.environments import InFlight, PlayedEnvironment, PlayedVersion
from rollouts.selectors.pools import PoolSizes
from rollouts.states import RUN_GENERATING
from trainers.run_config import EnvironmentRef, RunConfig

LIMITED_SHARE = 0.5
"""Of its episodes; from here on the page says that a limit ends them."""


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
    notes: list[str]
    """Sentences on the environment as a whole."""

    @property
    def rows(self) -> int:
        """Lines of the table that are its own."""
        return len(self.versions) + sum(bool(version.played.faults) for version in self.versions) + len(self.notes)


def of_run(run: Run) -> list[ShownEnvironment] | None:
    """Every environment of the run; None where none will ever be played. At most three queries, and two
    where problems are in pools."""
    if run.kind == RunKind.SFT and not run.config.get("evaluation"):
        return None
    refs = {ref.run_name: ref for ref in run.parsed.environments}
    sizes = pools.of_run(run)
    return [
        _shown(played, refs.get(played.row.name), sizes.get(played.row.name), run.parsed)
        for played in environments.of_run(run)
    ]


def in_flight(run: Run) -> InFlight | None:
    """What the run's drivers are busy with; None where none is expected and none has reported. At most one query."""
    if run.is_over:
        return None
    found = environments.in_flight(run)
    is_played_here = run.kind == RunKind.RL and run.state in RUN_GENERATING
    return found if found.drivers or is_played_here else None


def _shown(
    played: PlayedEnvironment, ref: EnvironmentRef | None, sizes: PoolSizes | None, config: RunConfig
) -> ShownEnvironment:
    notes = [
        _problems(sizes) if sizes else "",
        *_limited(played, config),
        _passed(played),
    ]
    return ShownEnvironment(
        name=played.row.name,
        room=_room(ref) if ref else "",
        versions=[_version(version) for version in played.versions],
        notes=list(filter(None, notes)),
    )


def _problems(sizes: PoolSizes) -> str:
    said = {Pool.EASY: "easy", Pool.NORMAL: "normal", Pool.HARD: "hard", Pool.NEW: "not scored yet"}
    parts = [f"{numbers.count(sizes.by_pool[pool])} {word}" for pool, word in said.items() if sizes.by_pool[pool]]
    if sizes.unseen is not None:
        parts.append(f"{numbers.count(sizes.unseen)} never played")
    return f"Problems: {', '.join(parts)}." if parts else ""


def _limited(played: PlayedEnvironment, config: RunConfig) -> list[str]:
    """Which limits end so many episodes that the rewards are theirs rather than the policy's."""
    if not played.versions or not config.has_players:
        return []
    newest, sampling = played.versions[0], config.sampling_of(played.row.name)
    ended = {
        f"ran out of turns: max_turns is {sampling.max_turns}": newest.out_of_turns_share,
        f"were cut off: max_tokens is {sampling.max_tokens}, and inference.max_model_len"
        f" {config.inference.max_model_len}": newest.truncated_share,
    }
    return [
        f"{numbers.percent(share)} of its newest episodes {words}."
        for words, share in ended.items()
        if share is not None and share >= LIMITED_SHARE
    ]


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
