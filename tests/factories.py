"""Rows for tests, as plain functions: each fills what the row needs to be consistent, and writes it directly.

For rows only. A test of what the store *does* calls the services instead.
"""

import math
from dataclasses import replace
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import User
from django.db.models import Avg, StdDev, Sum
from django.utils import timezone

from environments.types import StopReason
from rollouts.models import (
    Batch,
    BatchItem,
    Evaluation,
    Event,
    Membership,
    MetricPoint,
    PolicyVersion,
    Project,
    Purpose,
    Replica,
    ReplicaKind,
    Role,
    Rollout,
    Run,
    RunEnvironment,
    ScoredGroup,
    Trial,
)
from rollouts.reasons import Reason, ReasonCode
from rollouts.services.runs import addresses
from rollouts.services.transitions import stored
from rollouts.states import (
    EVALUATION_TERMINAL,
    REPLICA_TERMINAL,
    RUN_TERMINAL,
    BatchState,
    EvaluationState,
    GroupState,
    PolicyVersionState,
    ReplicaState,
    RunState,
)
from tests import store
from trainers.advantages import group_advantages
from trainers.config import Resolved, resolve
from trainers.run_config import EnvironmentRef


def _reasoned(columns: dict[str, Any]) -> dict[str, Any]:
    """Columns in which `state_reason` or `reason` may be a Reason, or a text."""
    columns = dict(columns)
    given = columns.pop("state_reason", None) or columns.pop("reason", None)
    if given is None:
        return columns
    code, params = stored(given if isinstance(given, Reason) else words(given))
    return {**columns, "reason_code": code, "reason_params": params}


def words(text: str) -> Reason:
    """A reason in somebody's own words."""
    return Reason(ReasonCode.TEXT, text=text)


def make_project(slug: str = "words") -> Project:
    """A project, made once per slug."""
    project, _ = Project.objects.get_or_create(slug=slug, defaults={"name": slug.capitalize()})
    return project


def make_user(name: str = "ada", *, role: Role | None = Role.OPERATOR, project: Project | None = None) -> User:
    """A user with password `secret` and a role in a project; with role None in no project at all."""
    user = User.objects.create_user(name, password="secret")
    if role is not None:
        Membership.objects.create(user=user, project=project or make_project(), role=role)
    return user


def somebody(name: str = "somebody") -> User:
    """A superuser who answers for what tests make in nobody's name; signs in nowhere."""
    user, _ = User.objects.get_or_create(username=name, defaults={"is_superuser": True, "password": "!"})
    return user


def with_environments(resolved: Resolved, rows: list[dict[str, Any]]) -> Resolved:
    """A config with environments that need not be installed here, as if they had been at its launch."""
    environments = [EnvironmentRef(**row) for row in rows]
    return replace(resolved, config=resolved.config.model_copy(update={"environments": environments}))


def make_run(
    *,
    state: str = RunState.RUNNING,
    preset: str = "reverse-text-rl",
    project: Project | None = None,
    user: User | None = None,
    next_step: int = 0,
    max_steps: int = 80,
    overrides: dict[str, Any] | None = None,
    **columns: Any,
) -> Run:
    """A run of a shipped preset with its environments, in any state."""
    # Not the preset's own number of steps, which is tuned from time to time.
    resolved = resolve(preset, overrides={"max_steps": max_steps, **(overrides or {})})
    config = resolved.config
    now = timezone.now()
    run = Run.objects.create(
        **{
            "project": project or make_project(),
            "created_by": user,
            "kind": config.kind,
            "name": config.name,
            "config": config.model_dump(mode="json"),
            "config_origins": resolved.origins,
            "max_steps": config.max_steps,
            "state": state,
            "next_step": next_step,
            "live_version": next_step if state != RunState.PENDING else -1,
            "epoch": 0 if state == RunState.PENDING else 1,
            "started_at": None if state == RunState.PENDING else now,
            "finished_at": now if state in RUN_TERMINAL else None,
            **_reasoned(columns),
        }
    )
    addresses.make(run, owner=user or somebody())
    RunEnvironment.objects.bulk_create(
        RunEnvironment(run=run, name=ref.name, args=ref.args, weight=ref.weight) for ref in config.environments
    )
    return run


def make_group(
    run: Run,
    *,
    rewards: list[float | None] | None = None,
    state: str = GroupState.READY,
    prompt: str = "Reverse: cat",
    completions: list[str] | None = None,
    stop_reasons: list[str] | None = None,
    version: int = 0,
    evaluation: Evaluation | None = None,
    **columns: Any,
) -> ScoredGroup:
    """A group with a rollout per reward; None is a failed rollout. A playing group has no rollouts."""
    rewards = [1.0, 0.0] if rewards is None else rewards
    is_playing = state == GroupState.PLAYING
    index = ScoredGroup.objects.filter(run=run).count()
    group = ScoredGroup.objects.create(
        **{
            "run": run,
            "environment": run.environments.get() if evaluation is None else evaluation.environment,
            "purpose": Purpose.TRAIN if evaluation is None else Purpose.EVAL,
            "evaluation": evaluation,
            "problem_index": index,
            "problem_key": "" if is_playing else f"train/{index}",
            "state": state,
            "settled_at": None if is_playing else timezone.now(),
            "rollout_count": 0 if is_playing else len(rewards),
            "min_policy_version": None if is_playing else version,
            "max_policy_version": None if is_playing else version,
            **_reasoned(columns),
        }
    )
    if not is_playing:
        _make_rollouts(group, rewards, prompt, completions, stop_reasons, version)
    return group


def _make_rollouts(
    group: ScoredGroup,
    rewards: list[float | None],
    prompt: str,
    completions: list[str] | None,
    stop_reasons: list[str] | None,
    version: int,
) -> None:
    for index, reward in enumerate(rewards):
        completion = completions[index] if completions else "tac"
        reason = stop_reasons[index] if stop_reasons else StopReason.STOP
        Rollout.objects.create(
            group=group,
            index=index,
            reward=reward,
            messages=[{"role": "user", "content": prompt}, {"role": "assistant", "content": completion}],
            stop_reason=StopReason.ERROR if reward is None else reason,
            error_kind="policy" if reward is None else "",
            error=None
            if reward is not None
            else {"kind": "policy", "type": "ReadTimeout", "message": "no answer in 60 s"},
            token_count=len(prompt) + len(completion),
            trained_token_count=0 if reward is None else len(completion) + 1,
            dispatch_policy_version=version,
            first_policy_version=version,
            last_policy_version=version,
            replica="inference-0-1",
            generation_s=0.4,
        )
    figures = group.rollouts.aggregate(
        reward_mean=Avg("reward"), reward_std=StdDev("reward"), token_count=Sum("token_count")
    )
    with store.beyond_rights():  # which keep the figures of a settled group
        ScoredGroup.objects.filter(pk=group.pk).update(**figures)
    group.refresh_from_db()


def make_batch(run: Run, step: int, groups: list[ScoredGroup], *, state: str = BatchState.TRAINED) -> Batch:
    """The batch of a step. The groups are moved to the state that belongs to it."""
    now = timezone.now()
    is_trained = state == BatchState.TRAINED
    batch = Batch.objects.create(
        run=run,
        step=step,
        state=state,
        sha256=f"{step:064x}",
        size_bytes=72_000,
        token_count=sum(group.token_count for group in groups),
        delivered_at=None if state == BatchState.FORMED else now,
        deliveries=1,
        trained_at=now if is_trained else None,
        epoch=1,
    )
    for position, group in enumerate(groups):
        rewards = [rollout.reward for rollout in group.rollouts.order_by("index")]
        BatchItem.objects.create(batch=batch, group=group, position=position, advantages=group_advantages(rewards))
    ScoredGroup.objects.filter(pk__in=[group.pk for group in groups]).update(
        state=GroupState.TRAINED if is_trained else GroupState.BATCHED
    )
    return batch


def make_metrics(run: Run, key: str, values: list[float], *, first_step: int = 0) -> None:
    """One point per value, on consecutive steps."""
    MetricPoint.objects.bulk_create(
        MetricPoint(run=run, key=key, step=first_step + at, value=value) for at, value in enumerate(values)
    )


def make_evaluation(
    run: Run, version: int, reward: float | None = None, *, state: str = EvaluationState.DONE, **columns: Any
) -> Evaluation:
    """An evaluation of a policy version in the run's first environment."""
    now = timezone.now()
    environment = run.environments.order_by("id").first()
    assert environment is not None
    return Evaluation.objects.create(
        **{
            "run": run,
            "environment": environment,
            "version": version,
            "state": state,
            "problems": 64,
            "cursor": 64,
            "reward_mean": reward,
            "deadline_at": now + timedelta(minutes=10),
            "finished_at": now if state in EVALUATION_TERMINAL else None,
            **_reasoned(columns),
        }
    )


def make_policy_version(run: Run, version: int, *, state: str = PolicyVersionState.LIVE) -> PolicyVersion:
    """Weights of a version; at most one is live."""
    return PolicyVersion.objects.create(
        run=run,
        version=version,
        state=state,
        path=f"/weights/step_{version}",
        published_at=None if state == PolicyVersionState.WRITTEN else timezone.now(),
    )


def make_replica(
    run: Run, *, kind: str = ReplicaKind.INFERENCE, state: str = ReplicaState.READY, slot: int = 0, **columns: Any
) -> Replica:
    """A process of the run."""
    now = timezone.now()
    return Replica.objects.create(
        **{
            "run": run,
            "kind": kind,
            "slot": slot,
            "state": state,
            "answered_at": now,
            "ended_at": now if state in REPLICA_TERMINAL else None,
            **_reasoned(columns),
        }
    )


def make_trial(run: Run, **columns: Any) -> Trial:
    """One episode that nobody plays yet."""
    return Trial.objects.create(
        **{
            "run": run,
            "environment": {"name": "reverse_text", "args": {}, "python": ""},
            "name": "reverse_text",
            "split": "train",
            "problem_index": 0,
            "temperature": 1.0,
            "max_tokens": 8,
            "max_turns": 1,
            "deadline_at": timezone.now() + timedelta(hours=1),
            **columns,
        }
    )


def make_event(run: Run, *, kind: str = "run", to: str = "running", **columns: Any) -> Event:
    """A change of state in the log."""
    return Event.objects.create(
        run=run, object_kind=kind, object_id=columns.pop("object_id", run.pk), to_state=to, **_reasoned(columns)
    )


def make_lively_run(*, steps: int = 40, groups_per_step: int = 4, **columns: Any) -> Run:
    """A run in the middle of its training, with everything a page can show: the realistic case, deterministic."""
    run = make_run(next_step=steps, **columns)
    wave = [math.sin(step * 2.3) for step in range(steps)]
    reward = [min(0.97, 0.3 + 0.62 * (1 - math.exp(-step / 16)) + 0.035 * wave[step]) for step in range(steps)]
    make_metrics(run, "reward/mean", reward)
    make_metrics(run, "reward/generated_mean", [value * 0.9 + 0.08 for value in reward])
    make_metrics(run, "problems/all_solved_share", [0.7 * value**2 for value in reward])
    make_metrics(run, "problems/none_solved_share", [0.4 * (1 - value) for value in reward])
    make_metrics(run, "problems/no_signal_share", [0.7 * value**2 + 0.1 * (1 - value) for value in reward])
    make_metrics(run, "problems/filtered_share", [0.0] * steps)
    make_metrics(run, "loss/mean", [-0.004 + 0.006 * value for value in wave])
    make_metrics(run, "entropy/mean", [0.9 * math.exp(-step / 30) + 0.15 + 0.02 * wave[step] for step in range(steps)])
    make_metrics(run, "mismatch_kl/mean", [0.0006 + 0.0002 * abs(value) for value in wave])
    make_metrics(run, "reward/zero_advantage_share", [0.32 - 0.2 * value + 0.05 * abs(value) for value in reward])
    make_metrics(run, "clip_fraction/mean", [0.012 + 0.006 * abs(value) for value in wave])
    make_metrics(run, "optim/grad_norm", [0.8 + 0.2 * abs(value) for value in wave])
    make_metrics(run, "optim/lr", [1e-3] * steps)
    make_metrics(run, "perf/throughput", [2900 + 240 * value for value in wave])
    make_metrics(run, "time/step", [8.4 + 0.7 * value for value in wave])
    make_metrics(run, "time/wait_for_batch", [5.6 + 0.6 * value for value in wave])
    make_metrics(run, "time/wait_for_policy", [0.3 + 0.2 * abs(value) for value in wave])
    make_metrics(run, "lag/mean", [min(step, 1.2 + 0.3 * abs(wave[step])) for step in range(steps)])
    make_metrics(run, "lag/max", [min(step, 2) for step in range(steps)])
    environment = run.environments.get().name
    for version in range(0, steps + 1, 10):
        value = 0.34 + 0.6 * (1 - math.exp(-version / 14))
        make_evaluation(run, version, value)
        make_metrics(run, f"eval/{environment}/reward", [value], first_step=version)
    return run
