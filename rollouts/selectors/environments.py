"""Reads of how the environments of a run are doing: what came of their newest groups, and what is in flight now."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db import connection
from django.db.models import Count, Sum, Value
from django.db.models.functions import Coalesce, Now

from environments.types import ErrorKind
from rollouts.models import DriverLoad, Run, RunEnvironment
from rollouts.sql import load
from rollouts.states import GroupState

NEWEST_GROUPS = 200
"""Of a run, of all its environments together: what its figures rest on."""
FRESH_S = 15.0
"""A driver that reported nothing for so long is not counted."""
_MOST_FAULTS = 40
_MOST_CHARACTERS = 400


@dataclass(frozen=True)
class EnvironmentFault:
    """Errors of one kind and type."""

    kind: str
    type: str
    rollouts: int
    groups: int
    newest_at: datetime
    run_key: str
    group_key: str
    """Of the newest group that has it."""
    index: int
    """Of the rollout in that group."""
    message: str
    """Of that rollout; its beginning."""


@dataclass(frozen=True)
class PlayedVersion:
    """What came of the newest groups of one version of an environment."""

    version: str
    """Empty: nobody said."""
    groups: int
    failed: int
    newest_at: datetime
    ends_in_failure: bool
    """Whether its newest group failed."""
    rollouts: int
    """Up to four of a group; the figures below are theirs."""
    truncated: int
    """Cut off at a token limit."""
    out_of_turns: int
    late: int
    """Failed because their time was up."""
    reward_mean: float | None
    episodes: int
    """Of which it is known where their time went."""
    median_s: float | None
    """From the beginning of an episode to its reward."""
    p95_s: float | None
    model_s: float
    """Added up over the episodes: waiting for the policy."""
    tools_s: float
    scoring_s: float
    faults: list[EnvironmentFault] = field(default_factory=list)

    @property
    def failed_share(self) -> float:
        return self.failed / self.groups

    @property
    def truncated_share(self) -> float | None:
        return self.truncated / self.rollouts if self.rollouts else None

    @property
    def out_of_turns_share(self) -> float | None:
        return self.out_of_turns / self.rollouts if self.rollouts else None

    @property
    def late_share(self) -> float | None:
        return self.late / self.rollouts if self.rollouts else None

    @property
    def measured_s(self) -> float:
        return self.model_s + self.tools_s + self.scoring_s


@dataclass(frozen=True)
class PlayedEnvironment:
    """An environment of a run, and its versions among the newest groups, newest first."""

    row: RunEnvironment
    versions: list[PlayedVersion]

    @property
    def fails(self) -> bool:
        """Whether its newest group failed, by a fault that drivers hold against it."""
        if not self.versions or not self.versions[0].ends_in_failure:
            return False
        return any(fault.kind != ErrorKind.POLICY for fault in self.versions[0].faults)


@dataclass(frozen=True)
class InFlight:
    """What the drivers of a run are busy with, by what they said within the last 15 seconds."""

    drivers: int
    sessions: int
    """Being played."""
    asking: int
    """Of those, waiting for the policy; the others are at their environment or tools, or belong to a queued request."""
    scoring: int
    """Over, and being scored."""
    queued: int
    """Requests that wait until fewer tokens are in flight."""
    tokens: int
    most_tokens: int
    """What the limits of these drivers add up to."""

    @property
    def tokens_share(self) -> float:
        """Of the limit; a single request may be larger than it."""
        return self.tokens / self.most_tokens if self.most_tokens else 0.0

    @property
    def elsewhere(self) -> int:
        """Sessions being played that do not wait for the policy."""
        return max(0, self.sessions - self.asking)


def of_run(run: Run) -> list[PlayedEnvironment]:
    """Every environment of the run, with the versions that are among its newest groups. Three queries."""
    rows = list(RunEnvironment.objects.filter(run=run).order_by("id"))
    versions = _versions({"run_ids": [run.pk], "environment_ids": None, "together": False, "groups": NEWEST_GROUPS})
    return [PlayedEnvironment(row, versions.get(row.pk, [])) for row in rows]


def of_environments(rows: Sequence[RunEnvironment]) -> list[PlayedVersion]:
    """The versions among the newest groups of these runs, of these environments of theirs, as if it were one. Two
    queries."""
    ids = {"run_ids": sorted({row.run_id for row in rows}), "environment_ids": [row.pk for row in rows]}
    return _versions({**ids, "together": True, "groups": NEWEST_GROUPS}).get(0, [])


def _versions(wanted: dict[str, Any]) -> dict[int, list[PlayedVersion]]:
    with connection.cursor() as cursor:
        cursor.execute(load("environment_groups"), wanted)
        counted = cursor.fetchall()
        cursor.execute(load("environment_faults"), {**wanted, "faults": _MOST_FAULTS, "characters": _MOST_CHARACTERS})
        faults = _by_version(cursor.fetchall())
    versions: dict[int, list[PlayedVersion]] = {}
    for environment, version, groups, failed, newest_at, state, *played, model_s, tools_s, scoring_s in counted:
        rollouts, truncated, out_of_turns, late, reward_mean, episodes, median_s, p95_s = played
        versions.setdefault(environment, []).append(
            PlayedVersion(
                version=version,
                groups=groups,
                failed=failed,
                newest_at=newest_at,
                ends_in_failure=state == GroupState.FAILED,
                rollouts=rollouts,
                truncated=truncated,
                out_of_turns=out_of_turns,
                late=late,
                reward_mean=reward_mean,
                episodes=episodes,
                median_s=median_s,
                p95_s=p95_s,
                model_s=model_s or 0.0,
                tools_s=tools_s or 0.0,
                scoring_s=scoring_s or 0.0,
                faults=faults.get((environment, version), []),
            )
        )
    return versions


def in_flight(run: Run) -> InFlight:
    """One query."""
    fresh = DriverLoad.objects.filter(run=run, reported_at__gt=Now() - Value(timedelta(seconds=FRESH_S)))
    sums = {name: Coalesce(Sum(name), 0) for name in ("sessions", "asking", "scoring", "queued", "tokens")}
    counts = fresh.aggregate(drivers=Count("pk"), **sums)
    return InFlight(**counts, most_tokens=counts["drivers"] * run.parsed.workers.max_tokens_in_flight)


def _by_version(rows: Iterable[tuple[Any, ...]]) -> dict[tuple[int, str], list[EnvironmentFault]]:
    found: dict[tuple[int, str], list[EnvironmentFault]] = {}
    for environment, version, *columns in rows:
        found.setdefault((environment, version), []).append(EnvironmentFault(*columns))
    return found
