"""What crosses between the control plane and a trainer. Arrays are little-endian bytes: no copies, no JSON numbers."""

import enum
from typing import Any

import msgspec

EPOCH_HEADER = "Rollyard-Epoch"
"""Request header: the fencing epoch the trainer got when it registered. A stale one is answered 409 `stale_epoch`."""
SHA256_HEADER = "Rollyard-SHA256"
"""Response header of a batch: hex SHA-256 of the body."""
MSGPACK = "application/msgpack"
TIME_OVER_VARIABLE = "ROLLYARD_TIME_OVER_FILE"
"""Environment variable that names a file of rank 0. Once it is there the trainer saves after its step and leaves."""
MAX_VALUE_TOKENS = 500_000
"""Tokens of all `TokenValuesIn` of one acknowledgement: about 12 MB as JSON."""
MAX_TOKEN_TEXT = 200
"""Characters of the text of one token."""


class TrainingRollout(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One rollout as the optimizer sees it. Its arrays have one length T: its branches, end to end.

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
    branch_lengths: list[int] = []
    """Tokens of each branch, which are sequences of their own; empty: the whole rollout is one."""


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


class TrainerRegistration(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to `POST /runs/<key>/trainer`: everything a trainer needs to start."""

    run: str
    epoch: int
    config: dict[str, Any]
    """The run's resolved RunConfig as JSON."""
    run_dir: str
    """Directory under which `weights/` and `checkpoints/` are written."""
    checkpoints: list[CheckpointRef]
    """Complete checkpoints, newest first. Resume from the first whose manifest verifies; an empty list: start at 0."""
    newest_version: int = -1
    """Policy version. What was announced up to it may be live, or pruned since: it is not written again."""
    optimizer_from: CheckpointRef | None = None
    """Another run's checkpoint to take the optimizer's state from when there is none to resume from."""


class MaskReason(enum.IntEnum):
    """What became of a token in a step: the last of these that applies."""

    TRAINED = 0
    NOT_SAMPLED = 1
    NOT_SCORED = 2
    ECHO = 3
    CAPPED = 4
    CLIPPED = 5
    MEAN_OUT_OF_BOUNDS = 6
    DIVERGED = 7

    @property
    def meaning(self) -> str:
        """It in words."""
        return _MEANINGS[self]


_MEANINGS = {
    MaskReason.TRAINED: "trained on",
    MaskReason.NOT_SAMPLED: "not the policy's own: prompt, or what the environment said",
    MaskReason.NOT_SCORED: "the policy's own, but the first of all tokens or behind trainer.seq_len",
    MaskReason.ECHO: "what the environment said, trained on by algorithm.terms.echo",
    MaskReason.CAPPED: "trained on, with its correction at token_cap or sequence_cap",
    MaskReason.CLIPPED: "at a bound of the loss",
    MaskReason.MEAN_OUT_OF_BOUNDS: "rollout dropped by geometric_low or geometric_high",
    MaskReason.DIVERGED: "rollout dropped by max_divergence",
}

SCORED = frozenset(MaskReason) - {MaskReason.NOT_SAMPLED, MaskReason.NOT_SCORED}
"""What a token has a logprob and an entropy with."""
IN_LOSS = SCORED - {MaskReason.ECHO}
"""What a token has a ratio and an advantage with."""


class TokenValuesIn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the optimizer saw of one rollout of a batch, before it moved the weights.

    Arrays have the rollout's length T. A value that its token's mask reason says there is none of is 0. Logprobs and
    entropy are of the temperature-scaled distribution, like the engine's logprobs.
    """

    group: str
    index: int
    trainer_logprobs: bytes
    """f32 [T]."""
    entropies: bytes
    """f32 [T]."""
    ratios: bytes
    """f32 [T]; as the loss took it, before its bounds: of the rollout where the loss compares rollouts."""
    advantages: bytes
    """f32 [T]; as the loss took it."""
    mask_reasons: bytes
    """u8 [T], of `MaskReason`."""
    texts: list[str] | None = None
    """What each of the T tokens says, if the trainer knows: at most 200 characters each, and no NUL."""


class StepAck(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Body of `POST /runs/<key>/steps/<step>`: step `step` is done."""

    metrics: dict[str, float]
    batch_sha256: str | None = None
    """Hash of the batch that was trained; None for SFT, which has no batches."""
    token_values: list[TokenValuesIn] = []
    """Of some rollouts of the batch, each once; for people who look at them."""


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
