"""Every state machine of the store: its states with a sentence each, and the transitions that are allowed.

And the sets of states that rules are made of. Nothing else lives here. Changes are applied by
``rollouts.services.transitions`` only; ``docs/states.md`` is generated from these tables (``manage.py states_doc``) and
a test holds the two together.
"""

from django.db.models import TextChoices


class RunState(TextChoices):
    PENDING = "pending", "Accepted and stored; no process has been started for it yet."
    STARTING = "starting", "Replicas are being started; no trainer has registered yet."
    RUNNING = (
        "running",
        "A trainer has registered; rollouts are generated and trained on.",
    )
    FINISHING = (
        "finishing",
        "The last step is done; the last version is being published and evaluated.",
    )
    STOPPING = (
        "stopping",
        "Asked to stop, by a person or for jobs without work (`launcher.idle_limit_s`); replicas are being ended.",
    )
    FINISHED = "finished", "All steps were trained; the last evaluation is in, or was given up."
    STOPPED = "stopped", "Ended by a stop before it had finished, be it after its last step."
    FAILED = "failed", "Given up: its reason says what must be mended."


RUN_TRANSITIONS: dict[str, frozenset[str]] = {
    RunState.PENDING: frozenset({RunState.STARTING, RunState.STOPPING, RunState.FAILED}),
    RunState.STARTING: frozenset({RunState.RUNNING, RunState.STOPPING, RunState.FAILED}),
    RunState.RUNNING: frozenset({RunState.FINISHING, RunState.STOPPING, RunState.FAILED}),
    RunState.FINISHING: frozenset({RunState.FINISHED, RunState.STOPPING, RunState.FAILED}),
    RunState.STOPPING: frozenset({RunState.STOPPED}),
}
RUN_TERMINAL = frozenset(set(RunState) - RUN_TRANSITIONS.keys())
RUN_ACTIVE = frozenset(set(RunState) - RUN_TERMINAL)
RUN_GENERATING = frozenset({RunState.STARTING, RunState.RUNNING, RunState.FINISHING})
"""Work may be claimed: training groups until the last step, evaluation groups until the end."""
RUN_TRAINING = frozenset({RunState.STARTING, RunState.RUNNING})
"""Trainers register and get batches; groups are submitted."""
RUN_JOINABLE = RUN_TRAINING | {RunState.PENDING}
"""Trainers and environments from outside may call; while it is pending they are asked to wait."""


class GroupState(TextChoices):
    PLAYING = "playing", "Leased to a driver that plays its episodes."
    HELD = "held", "Scored and stored; waits for a person's word (`environments[].review`)."
    READY = "ready", "Scored and stored; waits for a batch."
    BATCHED = (
        "batched",
        "Member of the batch of one step; not yet acknowledged by the trainer.",
    )
    TRAINED = "trained", "Its step was acknowledged: it moved the weights once."
    EVALUATED = (
        "evaluated",
        "Played for an evaluation: it is measured and never trained on.",
    )
    STALE = "stale", "Dropped: its oldest policy version was too far behind the step."
    FILTERED = "filtered", "Dropped: it carries no learning signal."
    FAILED = (
        "failed",
        "Dropped: no usable rollout, or given up after repeated lost leases.",
    )
    REJECTED = "rejected", "Dropped by a person, who may restore it."
    SURPLUS = (
        "surplus",
        "Left over: its batch was full without it, nobody looked at it in time, or its run ended.",
    )


GROUP_TRANSITIONS: dict[str, frozenset[str]] = {
    GroupState.PLAYING: frozenset(
        {
            GroupState.HELD,
            GroupState.READY,
            GroupState.EVALUATED,
            GroupState.FILTERED,
            GroupState.FAILED,
            GroupState.STALE,
            GroupState.SURPLUS,
        }
    ),
    GroupState.HELD: frozenset({GroupState.READY, GroupState.FILTERED, GroupState.REJECTED, GroupState.SURPLUS}),
    GroupState.READY: frozenset({GroupState.BATCHED, GroupState.STALE, GroupState.REJECTED, GroupState.SURPLUS}),
    GroupState.BATCHED: frozenset({GroupState.TRAINED, GroupState.SURPLUS}),
    # Restored: to be trained if its run still makes batches.
    GroupState.REJECTED: frozenset({GroupState.HELD, GroupState.READY, GroupState.SURPLUS}),
}
GROUP_FLOW = (GroupState.PLAYING, GroupState.HELD, GroupState.READY, GroupState.BATCHED, GroupState.TRAINED)
"""The way of a training group that is not dropped."""
GROUP_WAITING = (GroupState.HELD, GroupState.READY)
"""Settled, and in no batch yet."""


class BatchState(TextChoices):
    FORMED = (
        "formed",
        "Its members, order, advantages and hash are stored; nothing was sent yet.",
    )
    DELIVERED = (
        "delivered",
        "Sent to a trainer at least once; the same bytes are sent on every retry.",
    )
    TRAINED = "trained", "The trainer acknowledged the step."


BATCH_TRANSITIONS: dict[str, frozenset[str]] = {
    BatchState.FORMED: frozenset({BatchState.DELIVERED}),
    BatchState.DELIVERED: frozenset({BatchState.TRAINED}),
}


class PolicyVersionState(TextChoices):
    WRITTEN = (
        "written",
        "Complete and hashed on disk; not yet on the inference replicas.",
    )
    LIVE = "live", "Published: every ready inference replica serves it."
    SUPERSEDED = (
        "superseded",
        "A newer version was published, or it was skipped in favour of one.",
    )


POLICY_VERSION_TRANSITIONS: dict[str, frozenset[str]] = {
    PolicyVersionState.WRITTEN: frozenset({PolicyVersionState.LIVE, PolicyVersionState.SUPERSEDED}),
    PolicyVersionState.LIVE: frozenset({PolicyVersionState.SUPERSEDED}),
}


class EvaluationState(TextChoices):
    PLAYING = (
        "playing",
        "Its problems are being played. Publishing waits for it in supervised runs, and for that of version 0.",
    )
    DONE = "done", "Every problem was played; the mean reward is a metric."
    EXPIRED = (
        "expired",
        "Its deadline passed before every problem was played, or its run ended.",
    )


EVALUATION_TRANSITIONS: dict[str, frozenset[str]] = {
    EvaluationState.PLAYING: frozenset({EvaluationState.DONE, EvaluationState.EXPIRED}),
}
EVALUATION_TERMINAL = frozenset(set(EvaluationState) - EVALUATION_TRANSITIONS.keys())


class ReplicaState(TextChoices):
    STARTING = "starting", "A launcher started it; it has not answered yet."
    READY = (
        "ready",
        "Inference: a real generation was answered. Trainer: it has registered.",
    )
    SUSPECT = "suspect", "A health probe failed; no new work goes to it."
    STOPPING = "stopping", "Asked to end."
    EXITED = "exited", "Its process ended as it should."
    LOST = (
        "lost",
        "Its process died, or it was ejected for not answering; another takes its place.",
    )


REPLICA_TRANSITIONS: dict[str, frozenset[str]] = {
    ReplicaState.STARTING: frozenset(
        {
            ReplicaState.READY,
            ReplicaState.STOPPING,
            ReplicaState.EXITED,
            ReplicaState.LOST,
        }
    ),
    ReplicaState.READY: frozenset(
        {
            ReplicaState.SUSPECT,
            ReplicaState.STOPPING,
            ReplicaState.EXITED,
            ReplicaState.LOST,
        }
    ),
    ReplicaState.SUSPECT: frozenset(
        {
            ReplicaState.READY,
            ReplicaState.STOPPING,
            ReplicaState.EXITED,
            ReplicaState.LOST,
        }
    ),
    ReplicaState.STOPPING: frozenset({ReplicaState.EXITED, ReplicaState.LOST}),
}
REPLICA_TERMINAL = frozenset(set(ReplicaState) - REPLICA_TRANSITIONS.keys())
REPLICA_ALIVE = frozenset(set(ReplicaState) - REPLICA_TERMINAL)


class CheckpointState(TextChoices):
    COMPLETE = (
        "complete",
        "Every file is on disk and hashed in its manifest; a trainer may resume from it.",
    )
    DELETED = (
        "deleted",
        "Its files were removed to save space; the row stays for lineage.",
    )


CHECKPOINT_TRANSITIONS: dict[str, frozenset[str]] = {
    CheckpointState.COMPLETE: frozenset({CheckpointState.DELETED}),
    CheckpointState.DELETED: frozenset({CheckpointState.COMPLETE}),  # a trainer that resumed before it writes it again
}


class AttemptState(TextChoices):
    OPEN = "open", "A trainer from outside has registered; environments wait until it asks for a batch."
    STARTED = "started", "The trainer has asked for a batch: environments register and are heard."
    CLOSED = "closed", "Ended by a reset; the next registration opens another."


ATTEMPT_TRANSITIONS: dict[str, frozenset[str]] = {
    AttemptState.OPEN: frozenset({AttemptState.STARTED, AttemptState.CLOSED}),
    AttemptState.STARTED: frozenset({AttemptState.CLOSED}),
}


class ClientState(TextChoices):
    CONNECTED = "connected", "An environment has registered: its weight and its minimum share count."
    LAPSED = "lapsed", "Silent for too long: batches no longer wait for its minimum share until it is heard again."
    LEFT = "left", "It said that it leaves; what it sent stays."


CLIENT_TRANSITIONS: dict[str, frozenset[str]] = {
    ClientState.CONNECTED: frozenset({ClientState.LAPSED, ClientState.LEFT}),
    ClientState.LAPSED: frozenset({ClientState.CONNECTED, ClientState.LEFT}),
}


class TrialState(TextChoices):
    WAITING = "waiting", "Waits for a driver of the run whose policy plays it."
    PLAYING = "playing", "A driver plays it; what was said so far is in its record."
    FINISHED = "finished", "Over and scored, or failed in a way that its record tells."
    FAILED = "failed", "Not played to its end: its run ended, or its time was up."


TRIAL_TRANSITIONS: dict[str, frozenset[str]] = {
    TrialState.WAITING: frozenset({TrialState.PLAYING, TrialState.FAILED}),
    TrialState.PLAYING: frozenset({TrialState.FINISHED, TrialState.FAILED}),
}
TRIAL_TERMINAL = frozenset(set(TrialState) - TRIAL_TRANSITIONS.keys())


class ExportState(TextChoices):
    QUEUED = "queued", "Waits for a worker that writes it."
    WRITING = "writing", "A worker writes its files; another goes on where one died."
    DONE = "done", "Its files are complete, and their hashes are in its manifest."
    FAILED = "failed", "It cannot be written: its reason says what must be changed."
    CANCELLED = "cancelled", "A person wanted it no more before it was done; nothing of it is left."
    DELETED = "deleted", "Its files were removed; writing the version again gives the same bytes."


EXPORT_TRANSITIONS: dict[str, frozenset[str]] = {
    ExportState.QUEUED: frozenset({ExportState.WRITING, ExportState.CANCELLED}),
    ExportState.WRITING: frozenset({ExportState.DONE, ExportState.FAILED, ExportState.CANCELLED}),
    ExportState.DONE: frozenset({ExportState.DELETED}),
}
EXPORT_TERMINAL = frozenset(set(ExportState) - EXPORT_TRANSITIONS.keys())
