"""The policy as a torch module: load it, and ask it for the logprobs of the trained tokens of a micro-batch.

Shapes: N packed tokens, K trained tokens, S sequences, D width.
"""

import functools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError, safe_open
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.utils import CONFIG_NAME
from transformers.utils.hub import cached_file

from environments.chat.files import TOKENIZER
from trainers.distributed.mesh import World
from trainers.distributed.sharding import shard
from trainers.errors import ModelUnsupported
from trainers.model.attention import PACKED_ATTENTION, packed_layout, register_packed_attention
from trainers.model.context import slice_tokens
from trainers.model.layers import untrainable, why_untrainable
from trainers.model.lm_head import TokenScores, score_hidden
from trainers.model.lora import add_adapter
from trainers.packing import MicroBatch
from trainers.run_config import ModelConfig, TrainerConfig

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_STORED = {"F16": torch.float16, "BF16": torch.bfloat16}
"""Number formats that float32 holds without a loss, as files name them."""

_DROPOUT = re.compile(r"dropout|_pdrop$|layerdrop$|jitter")
"""In what configs of models call the shares that training drops, or by which it moves what chooses experts."""
_LOGIT_EXTRAS = ("final_logit_softcapping", "logits_scaling", "logit_scale")
"""Extras of some architectures that change the logits."""


def load_policy(
    config: ModelConfig,
    world: World,
    trainer: TrainerConfig | None = None,
    *,
    dropout: bool = True,
    longest: int | None = None,
) -> PreTrainedModel:
    """Load the model with float32 master weights and spread it over the ranks, layer by layer onto their devices.

    Weights stay in their mapped files until a rank copies its share of them; that alone becomes float32. The model's
    forward pass scores micro-batches (`score_tokens`). Without `trainer` its defaults hold. Without `dropout` the one
    that the model's own config names is 0: servers drop nothing, so its logprobs would not be those of the policy that
    was sampled. What the config said stays in `kept_config`, for who writes the model. `longest` is the length that
    servers are made for, else the trainer's: some rotary embeddings depend on it. Raises ModelUnsupported.
    """
    trainer = trainer or TrainerConfig()
    transformers.utils.logging.disable_progress_bar()  # thousands of control characters in a log file
    register_packed_attention()
    with _loading(config.path):
        settings, kept = (None, {}) if dropout else _without_dropout(config)
        model = _open_model(config, settings)
    model.kept_config = kept  # type: ignore[assignment]
    _refuse_mixed_sequences(model)
    _pin_rotary(model, longest or trainer.seq_len)
    if config.lora.rank:
        add_adapter(model, config.lora)
    _refuse_unusual_head(model)
    dtype = DTYPES[config.dtype]
    model.forward = functools.partial(_forward, model, world, dtype != torch.float32)
    shard(model, world, dtype, trainer)
    return model.train()


def _without_dropout(config: ModelConfig) -> tuple[PreTrainedConfig, dict[str, Any]]:
    """A model's config that drops nothing, and what of it was otherwise. Not `eval()`: recomputing activations needs a
    model in training."""
    settings: PreTrainedConfig = AutoConfig.from_pretrained(config.path, trust_remote_code=config.trust_remote_code)
    kept: dict[str, Any] = {}
    for where, part in _parts(settings).items():
        named = [name for name in vars(part) if _DROPOUT.search(name) and isinstance(getattr(part, name), float)]
        own = {name: getattr(part, name) for name in named}
        kept |= {where: own} if where else own
        for name in named:
            setattr(part, name, 0.0)
    return settings, kept


def _parts(settings: PreTrainedConfig) -> dict[str, PreTrainedConfig]:
    """A model's config, under no name, and those in it: of its text, say."""
    named = ((name, getattr(settings, name, None)) for name in settings.sub_configs)
    return {"": settings} | {name: part for name, part in named if part is not None}


def _open_model(config: ModelConfig, settings: PreTrainedConfig | None) -> PreTrainedModel:
    """The model in the number format of its files, or in float32 where that could make it another model; with other
    settings than its own if some are given.

    A tensor that has the format of the file is a part of the mapped file and takes no memory. What is computed for the
    model and in no file, such as a factor for the embeddings, must not be rounded to that format.
    """

    def load(dtype: torch.dtype) -> PreTrainedModel:
        found: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            config.path,
            config=settings,
            dtype=dtype,
            attn_implementation=PACKED_ATTENTION,
            trust_remote_code=config.trust_remote_code,
        )
        return found

    if (stored := _stored_dtype(config)) == torch.float32:
        return load(stored)
    model = load(stored)
    if any(buffer.dtype == stored for _, buffer in model.named_non_persistent_buffers()):
        return load(torch.float32)
    for part in _parts(model.config).values():
        part.dtype = torch.float32  # as its parameters will be
    return model


def _stored_dtype(config: ModelConfig) -> torch.dtype:
    """What all safetensors files of the model have their weights in; float32 if they have several, or are none."""
    kinds = set()
    for path in _directory(config).glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            kinds |= {file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118 - it is no dict
    [kind, *others] = kinds or {""}
    return torch.float32 if others else _STORED.get(kind, torch.float32)


def _directory(config: ModelConfig) -> Path:
    """Where the files of the model lie."""
    beside = cached_file(config.path, CONFIG_NAME)
    assert beside is not None, "it raises where there is none"
    return Path(beside).parent


def load_tokenizer(config: ModelConfig) -> PreTrainedTokenizerBase:
    """Load the tokenizer that lies next to the model. Raises ModelUnsupported."""
    with _loading(config.path):
        # Mistral's own, of a tekken.json, has no chat template and saves no tokenizer.json, which drivers read.
        is_usual = (_directory(config) / TOKENIZER).is_file()
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            config.path, trust_remote_code=config.trust_remote_code, mistral_format=False if is_usual else None
        )
    return tokenizer


@contextmanager
def _loading(path: str) -> Iterator[None]:
    """Files that transformers cannot make sense of are a fault of the input; a disk or memory that fails is not."""
    try:
        yield
    except (ValueError, KeyError, SafetensorError) as error:
        raise ModelUnsupported(f"{path} does not load: {type(error).__name__}: {_first_line(error)}") from error
    except OSError as error:
        if error.errno is not None or not Path(path).is_dir():  # of the system, or of the hub
            raise
        raise ModelUnsupported(f"{path} does not load: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "no reason given")


def score_tokens(
    model: torch.nn.Module, batch: MicroBatch, temperature: float, received_1ND: torch.Tensor | None = None
) -> TokenScores:
    """Logprob and entropy of every trained token, given the tokens before it in its own sequence.

    `model` comes from `load_policy`. Logits are divided by the sampling temperature: inference logprobs are logprobs of
    that scaled distribution. The last stage of a pipeline goes on from hidden states that it received.
    """
    scores: TokenScores = model(batch, temperature, received_1ND)
    return scores


def hidden_states(model: torch.nn.Module, batch: MicroBatch, received_1ND: torch.Tensor | None) -> torch.Tensor:
    """What a stage of a pipeline that is not the last makes of a micro-batch, or of what it received: [1, N, D]."""
    hidden_1ND: torch.Tensor = model(batch, 1.0, received_1ND)
    return hidden_1ND


def _refuse_mixed_sequences(model: PreTrainedModel) -> None:
    """Only attention is told where packed sequences begin: other layers would go on from one to the next, unnoticed."""
    why = why_untrainable(model.config)
    if not why and model._is_stateful:
        why = untrainable("layers with a state")
    if not why and not model._supports_attention_backend:
        why = untrainable("an attention of its own")
    if why:
        raise ModelUnsupported(f"{type(model).__name__} {why}")


def _pin_rotary(model: PreTrainedModel, longest: int) -> None:
    """Have rotary embeddings be those of one length, as in vLLM: transformers goes by the longest sequence of a row, so
    that of a sequence would depend on what it is packed with.
    """
    for module in model.modules():
        kind = getattr(module, "rope_type", None)
        for layers, each in (kind if isinstance(kind, dict) else {"": kind or ""}).items():
            if each != "longrope" and "dynamic" not in each:
                continue
            config: Any = module.config
            known = config.rope_parameters[layers] if layers else config.rope_parameters
            original = known.get("original_max_position_embeddings", config.max_position_embeddings)
            is_long = longest > original
            if is_long and (layers or each != "longrope"):
                raise ModelUnsupported(
                    f"{type(model).__name__} cannot be trained on sequences of {longest} tokens: above {original} its "
                    "rotary embedding changes with the length. Set inference.max_model_len, for SFT trainer.seq_len, "
                    f"to at most {original}"
                )
            if is_long:
                inverse, _ = ROPE_INIT_FUNCTIONS[each](config, module.inv_freq.device, seq_len=longest)
                module.register_buffer("inv_freq", inverse, persistent=False)
            if not layers:
                module.rope_type = "pinned"  # type: ignore[assignment]  # by which transformers knows what to look at


def _refuse_unusual_head(model: PreTrainedModel) -> None:
    """Heads that do more to the logits than one linear layer would silently be trained as another model."""
    config = model.config.get_text_config()
    extras = [name for name in _LOGIT_EXTRAS if getattr(config, name, None) not in (None, 1, 1.0)]
    head = model.get_output_embeddings()
    if isinstance(head, torch.nn.Linear):
        known = {*model.base_model.parameters(), *head.parameters()}
        extras += [name for name, parameter in model.named_parameters() if parameter not in known]
    if extras or not isinstance(head, torch.nn.Linear):
        what = ", ".join(extras[:3]) or f"its output layer is a {type(head).__name__}"
        raise ModelUnsupported(
            f"{type(model).__name__} cannot be trained ({what}): set model.path to a model with a linear output layer"
        )


def _forward(
    model: PreTrainedModel,
    world: World,
    rounded: bool,
    batch: MicroBatch,
    temperature: float,
    received_1ND: torch.Tensor | None,
) -> TokenScores | torch.Tensor:
    """The forward pass of the policy, in place of the one that returns logits.

    It must run as the root module's forward: FSDP gathers the weights of the head, which may be the embedding's, there.
    """
    part = slice_tokens(batch, world.context_group) if world.context_group else None
    token_ids = part.token_ids_M if part else batch.token_ids_N
    hidden_1ND = model.base_model(
        input_ids=token_ids[None] if received_1ND is None else None,
        inputs_embeds=received_1ND,
        position_ids=(part.position_ids_M if part else batch.position_ids_N)[None],
        packed_layout=packed_layout(part.lengths_S if part else batch.lengths_S, batch.token_ids_N.device, part),
        use_cache=False,
    ).last_hidden_state
    if not world.is_last_stage:
        return hidden_1ND  # type: ignore[no-any-return]
    head = model.get_output_embeddings()
    assert isinstance(head, torch.nn.Linear)
    if part is None:
        return score_hidden(hidden_1ND[0, batch.predicts_K], head, batch.targets_K, temperature, rounded)
    targets = batch.targets_K[part.scored]
    return part.join_scores(score_hidden(hidden_1ND[0, part.predicts], head, targets, temperature, rounded))
