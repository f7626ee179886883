"""Models beside the policy that an episode may ask, by their names in the run's config: a judge, an opponent, a user.

Whoever plays says who answers (`using`). An environment or a reward asks with `reply` from wherever it is, playing,
stepping or scoring, and learns neither where the model is nor with which key it is asked.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from environments.errors import NoSuchPolicy
from environments.types import ChatAnswer, JsonObject, Message


class Others(Protocol):
    """Who answers."""

    async def reply(
        self,
        name: str,
        messages: Sequence[Message],
        tools: Sequence[JsonObject] = (),
        *,
        max_tokens: int = 256,
        temperature: float = 0.0,
        seed: int | None = None,
    ) -> ChatAnswer:
        """As the function of that name."""
        ...


_answering: ContextVar[Others | None] = ContextVar("others", default=None)


def current() -> Others | None:
    """Who answers here; None: nobody."""
    return _answering.get()


@contextmanager
def using(others: Others) -> Iterator[None]:
    """Have these answer in what is awaited or started meanwhile."""
    before = _answering.set(others)
    try:
        yield
    finally:
        _answering.reset(before)


async def reply(
    name: str,
    messages: Sequence[Message],
    tools: Sequence[JsonObject] = (),
    *,
    max_tokens: int = 256,
    temperature: float = 0.0,
    seed: int | None = None,
) -> ChatAnswer:
    """Ask one of them for the next reply to a conversation. Raises EndpointError, and AsksOver.

    With a `seed`, the same question is asked once and its answer kept for a while; without one it is asked every time.
    """
    answering = current()
    if answering is None:
        raise NoSuchPolicy(f"Nobody answers as {name} here: a run names it in [[policies]].")
    return await answering.reply(name, messages, tools, max_tokens=max_tokens, temperature=temperature, seed=seed)
