"""Which problems of an environment are handed out next, and what a scored group says of its problem.

    claim ─► pick (by pool, longest waiting first) ─► played ─► rate (solve rate moves, and with it the pool)

Without pools they come in order, and begin anew after the last.
"""

from django.db import connection

from rollouts.errors import Invalid
from rollouts.models import Purpose, Run, RunEnvironment, ScoredGroup
from rollouts.pools import Pool, wanted
from rollouts.sql import load
from trainers.run_config import EnvironmentRef, PoolsConfig, RunConfig

_REST = 64
"""Problems between two turns of the same one, where batches are full by their tokens."""


def note_count(run: Run, ref: EnvironmentRef, count: int) -> None:
    """Remember how many training problems an environment has, where the run comes back to them. Idempotent. Raises
    Invalid for none."""
    if count < 1:
        raise Invalid(f"{ref.run_name} has no problems to train on.")
    if ref.pools is not None or ref.problems is not None:
        problems = count if ref.problems is None else min(count, ref.problems)
        RunEnvironment.objects.filter(run=run, name=ref.run_name).update(problems=problems)


def pick(run: Run, environment: RunEnvironment, count: int) -> list[int]:
    """Indexes of the next problems, at most ``count``: fewer only where there are not so many. Moves the environment's
    cursor, for the caller to save, who has locked its row."""
    ref = run.parsed.environment(environment.name)
    first, limit = environment.cursor, environment.problems
    if ref is None or ref.pools is None:
        environment.cursor += count
        return [turn if limit is None else turn % limit for turn in range(first, first + count)]
    found = _pick_by_pool(run.parsed, environment, ref.pools, count)
    environment.cursor += len(found)
    environment.unseen += sum(index >= environment.unseen for index in found)
    return found


def rate(run: Run, group: ScoredGroup, *, scored: int, solved: int, reward_mean: float | None) -> None:
    """Take a training group into the solve rate of its problem, if the environment has pools. Locks the problem."""
    ref = run.parsed.environment(group.environment.name)
    if ref is None or ref.pools is None or reward_mean is None or group.purpose != Purpose.TRAIN:
        return
    said = min(max(reward_mean, 0.0), 1.0) if ref.pools.by == "reward" else solved / scored
    values = {"environment_id": group.environment_id, "problem_index": group.problem_index, "rate": said}
    values |= ref.pools.model_dump(include={"easy_from", "hard_to", "memory"})
    with connection.cursor() as cursor:
        cursor.execute(load("rate_problem"), values)


def _pick_by_pool(config: RunConfig, environment: RunEnvironment, pools: PoolsConfig, count: int) -> list[int]:
    turn, asked = environment.cursor, wanted(environment.cursor, count, pools)
    with connection.cursor() as cursor:
        cursor.execute(
            load("pick_problems"),
            {
                "environment_id": environment.pk,
                "pools": list(Pool),
                "wanted": [asked[pool] for pool in Pool],
                "count": count,
                "turn": turn,
                "rested": turn - _rest(config, environment.name, pools),
                "unseen": environment.unseen,
                "problems": environment.problems,
            },
        )
        return sorted(index for (index,) in cursor.fetchall())


def _rest(config: RunConfig, environment: str, pools: PoolsConfig) -> int:
    if pools.rest is not None:
        return pools.rest
    if config.batch.token_batch_size is not None:
        return _REST
    size = config.sampling_of(environment).group_size
    return (1 + config.algorithm.steps_ahead) * config.batch.batch_size // size
