"""How conversations become tokens, and the tokens that a policy sampled become messages."""

from collections.abc import Sequence
from typing import Protocol

from environments.policy import Completion
from environments.types import JsonObject, Message


class Chat(Protocol):
    """The chat format of one model. Implementations raise `PolicyError`."""

    @property
    def ends(self) -> tuple[int, ...]:
        """The tokens that end a turn, as far as they are known."""
        ...

    async def ready(self) -> None:
        """Find out what `parse` has to know. `render` and `extend` do so themselves; prompts from elsewhere need it."""
        ...

    async def render(self, messages: Sequence[Message], tools: Sequence[JsonObject]) -> list[int]:
        """Return the prompt tokens that tell of the tools and ask for the next reply."""
        ...

    async def extend(
        self,
        token_ids: list[int],
        sampled: Completion,
        messages: Sequence[Message],
        added: Sequence[Message],
        tools: Sequence[JsonObject],
    ) -> list[int] | None:
        """Return `token_ids` plus the tokens of `added` and of the next reply's start; None: that cannot be exact.

        `messages` is the conversation behind `token_ids`; its last message is the reply, whose tokens they end with.
        """
        ...

    def parse(self, prompt_token_ids: list[int], completion: Completion, tools: Sequence[JsonObject] | None) -> Message:
        """Return the reply as a message of the assistant. `tools` that it was told of; None: that is not known."""
        ...
