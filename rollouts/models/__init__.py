"""The store, one file per part of the story. Import models from here."""

from rollouts.models.access import ApiToken, Membership, Project, Role, Scope
from rollouts.models.batch import Batch, BatchItem
from rollouts.models.group import Lease, Purpose, Rollout, RolloutTokens, ScoredGroup
from rollouts.models.log import Event, MetricPoint
from rollouts.models.policy import Checkpoint, Evaluation, PolicyVersion
from rollouts.models.replica import Replica, ReplicaKind
from rollouts.models.run import Run, RunEnvironment, RunKind

__all__ = [
    "ApiToken",
    "Batch",
    "BatchItem",
    "Checkpoint",
    "Evaluation",
    "Event",
    "Lease",
    "Membership",
    "MetricPoint",
    "PolicyVersion",
    "Project",
    "Purpose",
    "Replica",
    "ReplicaKind",
    "Role",
    "Rollout",
    "RolloutTokens",
    "Run",
    "RunEnvironment",
    "RunKind",
    "Scope",
    "ScoredGroup",
]
