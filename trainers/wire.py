"""What crosses between the control plane and a trainer. Arrays are little-endian bytes: no copies, no JSON numbers."""

from typing import Any

import msgspec

EPOCH_HEADER = "Rollyard-Epoch"
"""Request header: the fencing epoch the trainer got when it registered. A stale one is answered 409 `stale_epoch`."""
SHA256_HEADER = "Rollyard-SHA256"
"""Response header of a batch: hex SHA-256 of the body."""
MSGPACK = "application/msgpack"


class TrainingRollout(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One rollout as the optimizer sees it. Its arrays have one length T.

    What is absent is left out of the bytes, so that a field that is added later changes no batch that was ever served.
    """

    group: str
    index: int
    """Position inside its group."""
    environment: str
    problem_key: str
    token_ids: bytes
    """u32 [T]."""
    loss_mask: bytes
    """u8 [T]; 1 where the policy sampled the token."""
    inference_logprobs: bytes
    """f32 [T]; processed (temperature-scaled) logprobs, 0.0 where the mask is 0."""
    advantage: float
    reward: float
    min_policy_version: int
    max_policy_version: int
    ref_logprobs: bytes | None = None
    """f32 [T], of a reference or teacher policy, if the environment sent them."""
    advantages: bytes | None = None
    """f32 [T], per token, if the environment sent them: they stand in place of `advantage`."""


class TrainingBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The groups of one optimizer step, flattened. Immutable: the same (run, step) has the same bytes for ever."""

    run: str
    step: int
    temperature: float
    """What the trainer must divide its logits by."""
    rollouts: list[TrainingRollout]


class CheckpointRef(msgspec.Struct, frozen=True, kw_only=True):
    """A complete checkpoint: `step` optimizer steps are behind it."""

    step: int
    path: str
    manifest_sha256: str


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to `POST /runs/<key>/trainer`: everything a trainer attempt needs."""

    run: str
    epoch: int
    config: dict[str, Any]
    """The run's resolved RunConfig as JSON."""
    run_dir: str
    """Directory under which `weights/` and `checkpoints/` are written."""
    checkpoints: list[CheckpointRef]
    """Complete checkpoints, newest first. Resume from the first whose manifest verifies; none: start at step 0."""
    optimizer_from: CheckpointRef | None = None
    """Another run's checkpoint to take the optimizer's state from when there is none to resume from."""


class StepAck(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Body of `POST /runs/<key>/steps/<step>`: step `step` is done."""

    metrics: dict[str, float]
    batch_sha256: str | None = None
    """Hash of the batch that was trained; None for SFT, which has no batches."""


class PolicyVersionIn(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Body of `POST /runs/<key>/policy-versions`: weights of `version` optimizer steps are complete on disk."""

    version: int
    path: str
    manifest_sha256: str
    size_bytes: int


class CheckpointIn(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Body of `POST /runs/<key>/checkpoints`."""

    step: int
    path: str
    manifest_sha256: str
    size_bytes: int
