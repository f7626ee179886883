"""How a policy is asked to speak."""

from typing import Annotated

import msgspec
from msgspec import Meta


class Stops(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What ends a reply besides the policy itself. That cuts a sample short and changes no probability of it."""

    strings: tuple[str, ...] = ()
    token_ids: tuple[int, ...] = ()


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sampling of one rollout.

    There is no top-p, top-k or penalty on purpose: with them the sampled distribution is not the softmax the trainer
    recomputes, and every importance ratio would be wrong. Nor is there a seed: on CPU a seeded request takes vLLM's
    engine down when its prompt is computed in pieces, as after a change of weights in flight.
    """

    temperature: Annotated[float, Meta(ge=0)] = 1.0
    """0 is greedy."""
    max_tokens: Annotated[int, Meta(ge=1)] = 256
    """Sampled tokens per turn."""
    max_turns: Annotated[int, Meta(ge=1)] = 1
    """Replies of the policy per episode."""
    max_total_tokens: Annotated[int, Meta(ge=1)] | None = None
    """Prompt, replies and environment messages of a rollout together; the server's context length. None: unchecked."""
    stops: Stops = Stops()
    """Of one request: a client's."""
    ends: tuple[int, ...] = ()
    """Tokens that end a turn in the chat format, whether or not a server knows them. The policy's own, and no stops."""
