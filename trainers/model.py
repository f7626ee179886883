"""The policy as a torch module: load it, and ask it for the logprobs of the trained tokens of a micro-batch.

Shapes: N packed tokens, K trained tokens, V vocabulary.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from trainers.attention import PACKED_ATTENTION, packed_layout, register_packed_attention
from trainers.packing import MicroBatch
from trainers.parallel import World, shard
from trainers.run_config import ModelConfig

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class TokenScores(NamedTuple):
    """What the policy says about the trained tokens."""

    logprobs_K: torch.Tensor
    """float32, with gradient."""
    entropy_K: torch.Tensor
    """float32, of the temperature-scaled distribution, without gradient."""


def load_policy(config: ModelConfig, world: World) -> PreTrainedModel:
    """Load the model with float32 master weights, on this rank's device, sharded over all ranks."""
    transformers.utils.logging.disable_progress_bar()  # thousands of control characters in a log file
    register_packed_attention()
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        config.path,
        dtype=torch.float32,
        attn_implementation=PACKED_ATTENTION,
        trust_remote_code=config.trust_remote_code,
    )
    torch.nn.Module.to(model, world.device)
    shard(model, world.mesh, DTYPES[config.dtype])
    return model.train()


def load_tokenizer(config: ModelConfig) -> PreTrainedTokenizerBase:
    """Load the tokenizer that lies next to the model."""
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
        config.path, trust_remote_code=config.trust_remote_code
    )
    return tokenizer


def score_tokens(model: torch.nn.Module, batch: MicroBatch, temperature: float) -> TokenScores:
    """Logprob and entropy of every trained token, given the tokens before it in its own sequence.

    Logits are computed only where a trained token is predicted, in float32, and divided by the sampling temperature:
    inference logprobs are logprobs of that scaled distribution.
    """
    logits_KV = model(
        input_ids=batch.token_ids_N[None],
        position_ids=batch.position_ids_N[None],
        logits_to_keep=batch.predicts_K,
        packed_layout=packed_layout(batch.lengths_S, batch.token_ids_N.device),
        use_cache=False,
    ).logits[0]
    logits_KV = logits_KV.float() / temperature
    logprobs_K = -F.cross_entropy(logits_KV, batch.targets_K, reduction="none")
    with torch.no_grad():
        logprobs_KV = logits_KV.log_softmax(dim=-1)
        entropy_K = -(logprobs_KV.exp() * logprobs_KV).sum(dim=-1)
    return TokenScores(logprobs_K, entropy_K)
