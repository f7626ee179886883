"""Attention inside packed sequences only, as an attention implementation that transformers models can be loaded with.

transformers' own SDPA path handles packing with one dense N x N mask, which costs N^2 however short the sequences are.
Here the sequences of a micro-batch are laid out as rows of a few padded blocks (similar lengths share a block) and
attend causally in there; on CUDA in half precision one variable-length kernel does all of it without padding.

Shapes: N packed tokens, H heads, S sequences of a block, L tokens of its longest, E head width.
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface, AttentionMaskInterface

from trainers.errors import ModelUnsupported
from trainers.model.context import ContextSlice

PACKED_ATTENTION = "rollyard_packed"
"""Name to load models with (`attn_implementation`)."""

_GROUPED_QUERIES: dict[str, Any] = (
    {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen_attn).parameters else {}
)
"""torch before 2.12 takes fewer key heads than query heads without being told."""

_UNSUPPORTED = ("softcap", "s_aux", "position_bias")
"""Extras of some architectures that change the attention scores. Ignoring them would silently train another model."""


@dataclass(frozen=True)
class Block:
    """Neighbouring sequences of similar length."""

    tokens: slice
    """Where they are among the N packed tokens."""
    keys: slice
    """Where the tokens that they look at are."""
    before: int
    """How many more these are. Not 0 only for a sequence of its own block whose beginning is on another rank."""
    sequences: int
    longest: int
    row: torch.Tensor
    """int64 per token: which sequence of the block it belongs to."""
    column: torch.Tensor
    """int64 per token: its position in that sequence."""

    @property
    def is_full(self) -> bool:
        """Whether the lengths are equal: then its rows are there already, and nothing has to be copied."""
        return self.sequences * self.longest == self.tokens.stop - self.tokens.start


@dataclass(frozen=True)
class PackedLayout:
    """Where the sequences of one micro-batch begin and end, ready for attention."""

    blocks: list[Block]
    starts: torch.Tensor
    """int32 [S + 1]: offsets of the sequences, then N."""
    longest: int
    key_starts: torch.Tensor
    """The same of the tokens that they look at."""
    longest_keys: int
    context: ContextSlice | None
    """Where keys of other ranks come from."""


def packed_layout(lengths_S: Sequence[int], device: torch.device, context: ContextSlice | None = None) -> PackedLayout:
    """Build the layout of sequences laid end to end. Cheapest when neighbours have similar lengths."""
    before = context.before if context else 0
    blocks, begin, first = [], 0, 0
    for index, length in enumerate(lengths_S):
        last = index + 1 == len(lengths_S)
        continued = before if first == 0 else 0
        if last or continued or length.bit_length() != lengths_S[index + 1].bit_length():
            lengths = torch.tensor(lengths_S[first : index + 1])
            end = begin + int(lengths.sum())
            row = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
            column = torch.cat([torch.arange(length) for length in lengths.tolist()])
            block = Block(
                tokens=slice(begin, end),
                keys=slice(begin + before - continued, end + before),
                before=continued,
                sequences=len(lengths),
                longest=int(lengths.max()),
                row=row.to(device),
                column=column.to(device),
            )
            blocks.append(block)
            begin, first = end, index + 1
    starts = F.pad(torch.tensor(lengths_S, dtype=torch.int32).cumsum(0, dtype=torch.int32), (1, 0)).to(device)
    key_starts = F.pad(starts[1:] + before, (1, 0))
    return PackedLayout(blocks, starts, max(lengths_S), key_starts, max(before + lengths_S[0], *lengths_S), context)


@torch.compiler.disable
def packed_attention(
    module: torch.nn.Module,
    query_1HNE: torch.Tensor,
    key_1HNE: torch.Tensor,
    value_1HNE: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    packed_layout: PackedLayout,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """The signature is transformers'; `packed_layout` reaches it through the model's forward."""
    unsupported = [name for name in _UNSUPPORTED if kwargs.get(name) is not None]
    if attention_mask is not None:  # a mask of the model's own: those that transformers makes are None, see `_no_mask`
        unsupported.append("attention_mask")
    if unsupported:
        raise ModelUnsupported(
            f"{type(module).__name__} cannot be trained: packed attention does not do {', '.join(unsupported)}"
        )
    query, key, value = (tensor[0].transpose(0, 1) for tensor in (query_1HNE, key_1HNE, value_1HNE))  # [N, H, E]
    if sliding_window is None:
        sliding_window = _window_of(module)
    if packed_layout.context is not None:
        key, value = packed_layout.context.gather_keys(key, value)
    if query.is_cuda and query.dtype in (torch.float16, torch.bfloat16):
        starts, key_starts = packed_layout.starts, packed_layout.key_starts
        longest, longest_keys = packed_layout.longest, packed_layout.longest_keys
        window = (-1 if sliding_window is None else sliding_window - 1, 0)
        width = value.shape[-1]
        if width < key.shape[-1]:  # of multi-head latent attention; the kernel knows one width
            value = F.pad(value, (0, key.shape[-1] - width))
        out = varlen_attn(
            query,
            key,
            value,
            starts,
            key_starts,
            longest,
            longest_keys,
            scale=scaling,
            window_size=window,
            **(_GROUPED_QUERIES if query.shape[1] != key.shape[1] else {}),
        )
        assert isinstance(out, torch.Tensor)
        return out[None, ..., :width], None
    parts = [block_attention(query, key, value, block, scaling, sliding_window) for block in packed_layout.blocks]
    return (parts[0] if len(parts) == 1 else torch.cat(parts))[None], None


def _window_of(module: torch.nn.Module) -> int | None:
    """The window of a layer that tells of it only in its mask, as those of Qwen2-MoE do."""
    config: Any = getattr(module, "config", None)
    kinds, index = getattr(config, "layer_types", None), getattr(module, "layer_idx", None)
    if not kinds or index is None or kinds[index] != "sliding_attention":
        return None
    window: int = config.sliding_window
    return window


def block_attention(
    query_NHE: torch.Tensor,
    key_NHE: torch.Tensor,
    value_NHE: torch.Tensor,
    block: Block,
    scaling: float | None,
    sliding_window: int | None,
) -> torch.Tensor:
    """What the sequences of one block attend to, [tokens of the block, H, E], where keys may have fewer heads."""
    heads_per_key = query_NHE.shape[1] // key_NHE.shape[1]
    if heads_per_key > 1 and query_NHE.is_cuda:
        # Grouped queries would leave only the kernel that makes an L x L array of scores for every head.
        key_NHE, value_NHE = (tensor.repeat_interleave(heads_per_key, dim=1) for tensor in (key_NHE, value_NHE))

    def rows(tensor_NHE: torch.Tensor, where: slice) -> torch.Tensor:
        tensor = tensor_NHE[where]
        if block.is_full:
            return tensor.unflatten(0, (block.sequences, -1)).transpose(1, 2)
        padded = tensor.new_zeros(block.sequences, block.longest, *tensor.shape[1:])
        return padded.index_put((block.row, block.column), tensor).transpose(1, 2)

    mask = None
    windowed = sliding_window is not None and sliding_window < block.before + block.longest
    if block.before or windowed:
        ones = torch.ones(block.longest, block.before + block.longest, dtype=torch.bool, device=query_NHE.device)
        mask = ones.tril(block.before)
        if windowed and sliding_window is not None:
            mask = mask.triu(block.before + 1 - sliding_window)
    out_SHLE = F.scaled_dot_product_attention(
        rows(query_NHE, block.tokens),
        rows(key_NHE, block.keys),
        rows(value_NHE, block.keys),
        attn_mask=mask,
        is_causal=mask is None,  # padding comes after the real tokens, so causality alone keeps it out of sight
        scale=scaling,
        enable_gqa=query_NHE.shape[1] != key_NHE.shape[1],
    )
    out_SLHE = out_SHLE.transpose(1, 2)
    return out_SLHE.flatten(0, 1) if block.is_full else out_SLHE[block.row, block.column]


def _no_mask(*_args: Any, **_kwargs: Any) -> None:
    """The layout says it all; spares transformers the N x N mask."""


def register_packed_attention() -> None:
    """Make PACKED_ATTENTION known to transformers. Harmless to repeat."""
    AttentionInterface.register(PACKED_ATTENTION, packed_attention)
    AttentionMaskInterface.register(PACKED_ATTENTION, _no_mask)
