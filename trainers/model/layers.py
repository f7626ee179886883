"""Which models train on packed sequences, by what their config says of their layers. Loads without torch."""

from typing import Any

_SEPARATED = {"full_attention", "sliding_attention"}
"""Kinds of layers in which a token sees those of its own sequence alone: packed attention does them."""

_ROLLING_DICE = {"phimoe"}
"""Types of models whose training is another model than the one that is served."""


def why_untrainable(config: Any) -> str:
    """Why a model of a transformers config cannot be trained, by the kinds of its layers; "" if they say nothing of it.

    All other kinds (linear attention, convolutions, Mamba, chunks) would carry one packed sequence on into the next.
    """
    if config.model_type in _ROLLING_DICE:
        return (
            "cannot be trained: while it is trained it chooses experts by chance, and servers take the best. "
            "Name a model that always takes the best"
        )
    kinds = sorted(set(getattr(config.get_text_config(), "layer_types", None) or ()) - _SEPARATED)
    return untrainable(f"layers of the kind {' and '.join(kinds)}") if kinds else ""


def untrainable(what: str) -> str:
    """The rest of a sentence about a model: what it has, and what to do."""
    return (
        f"cannot be trained: it has {what}, which would mix the sequences that are packed into one row. "
        "Name a model all of whose layers are full or sliding attention"
    )
