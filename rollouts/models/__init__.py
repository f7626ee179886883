"""The store, one file per part of the story. Import models from here."""

from rollouts.models.access import ApiToken, Membership, Project, Role, Scope
from rollouts.models.address import Address
from rollouts.models.attempt import Attempt, Delivery, EnvironmentClient
from rollouts.models.batch import Batch, BatchEncoding, BatchItem, Replay, TokenValues
from rollouts.models.curation import Act, ActItem, Label, LabelPreference, LabelVerdict, Verb
from rollouts.models.dataset import Dataset, DatasetForm, DatasetMember, DatasetVersion
from rollouts.models.endpoint import Endpoint
from rollouts.models.export import Export, ExportForm, FileFormat, RunDataset
from rollouts.models.group import (
    COUNTING_REWARD,
    ROUNDING,
    GroupTokens,
    Lease,
    Purpose,
    Rollout,
    ScoredGroup,
    Withholding,
)
from rollouts.models.load import DriverLoad, ReplicaLoad
from rollouts.models.log import COUNTED_KINDS, Event, EventKind, MetricPoint
from rollouts.models.model import Model, ModelOrigin
from rollouts.models.placement import Placement, PlacementKind
from rollouts.models.policy import Checkpoint, Evaluation, PolicyVersion
from rollouts.models.problem import KnownProblem
from rollouts.models.queue import Guideline, LabelQueue, QueueItem, QueueTurn, QueueUnit, RejectEffect
from rollouts.models.replica import Replica, ReplicaKind
from rollouts.models.run import Run, RunEnvironment, RunKind
from rollouts.models.session import AgentSession
from rollouts.models.source import EnvironmentSource
from rollouts.models.trial import Trial
from rollouts.models.trust import Trust, TrustKind
from rollouts.models.worker import KeptPool, WorkerJob

__all__ = [
    "COUNTED_KINDS",
    "COUNTING_REWARD",
    "ROUNDING",
    "Act",
    "ActItem",
    "Address",
    "AgentSession",
    "ApiToken",
    "Attempt",
    "Batch",
    "BatchEncoding",
    "BatchItem",
    "Checkpoint",
    "Dataset",
    "DatasetForm",
    "DatasetMember",
    "DatasetVersion",
    "Delivery",
    "DriverLoad",
    "Endpoint",
    "EnvironmentClient",
    "EnvironmentSource",
    "Evaluation",
    "Event",
    "EventKind",
    "Export",
    "ExportForm",
    "FileFormat",
    "GroupTokens",
    "Guideline",
    "KeptPool",
    "KnownProblem",
    "Label",
    "LabelPreference",
    "LabelQueue",
    "LabelVerdict",
    "Lease",
    "Membership",
    "MetricPoint",
    "Model",
    "ModelOrigin",
    "Placement",
    "PlacementKind",
    "PolicyVersion",
    "Project",
    "Purpose",
    "QueueItem",
    "QueueTurn",
    "QueueUnit",
    "RejectEffect",
    "Replay",
    "Replica",
    "ReplicaKind",
    "ReplicaLoad",
    "Role",
    "Rollout",
    "Run",
    "RunDataset",
    "RunEnvironment",
    "RunKind",
    "Scope",
    "ScoredGroup",
    "TokenValues",
    "Trial",
    "Trust",
    "TrustKind",
    "Verb",
    "Withholding",
    "WorkerJob",
]
