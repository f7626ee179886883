"""What one driver counts while it plays, by policy version, until it is added to the run's metrics."""

import time
from collections import defaultdict
from collections.abc import Sequence

from environments.figures import sampled_tokens
from environments.types import PlayedRollout
from rollouts.models import Run
from rollouts.services import metrics
from rollouts.services.groups import next_groups
from workers.database import in_database


class Counts:
    """Belongs to one event loop."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._values: defaultdict[tuple[int, str], float] = defaultdict(float)
        """(policy version, metric key) -> what was not reported yet."""
        self._waiting_since: tuple[float, int] | None = None
        """(monotonic time, live version) since nothing may be claimed and nothing is in flight."""

    def add(self, version: int, key: str, value: float) -> None:
        """Count something of what is played with this version."""
        self._values[version, key] += value

    def add_sampled(self, version: int, rollouts: Sequence[PlayedRollout]) -> None:
        """Count what the policy said in rollouts that did not fail."""
        sampled = [rollout for rollout in rollouts if rollout.error is None]
        self.add(version, "generation/rollouts", len(sampled))
        self.add(version, "generation/tokens", sum(map(sampled_tokens, sampled)))

    async def note_waiting(self, *, is_waiting: bool, drivers: int) -> None:
        """Count how long nothing could be claimed because the policy has to get on; at its live version.

        ``drivers``: how many the run has. Each adds its share: the points are read beside the time of one trainer.
        """
        if not is_waiting:
            self._count_waiting(drivers)
            self._waiting_since = None
        elif self._waiting_since is None:
            version = (await in_database(next_groups.capacity, self._run)).live_version
            self._waiting_since = (time.monotonic(), max(version, 0))

    async def report(self, *, drivers: int) -> None:
        """Add it to the metrics, each version at its own step. Raises what the database raises."""
        self._count_waiting(drivers)
        due, self._values = self._values, defaultdict(float)
        for version in sorted({version for version, _ in due}):
            values = {key: value for (at, key), value in due.items() if at == version and value}
            await in_database(metrics.accumulate, self._run, step=version, values=values)

    def _count_waiting(self, drivers: int) -> None:
        if self._waiting_since is not None:
            since, version = self._waiting_since
            now = time.monotonic()
            self.add(version, "time/wait_for_policy", (now - since) / drivers)
            self._waiting_since = (now, version)
