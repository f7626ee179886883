"""The model's own chat template, rendered by the inference server: knows every model, and none of them closely.

A reply is text and nothing else: tools are told, their calls are not recognised. A further turn goes on exactly where
the template closes turns with the token that replies end on; otherwise each of them starts a branch, and so does what
follows a reply that was cut.
"""

from collections.abc import Sequence

from environments.errors import UnfollowableTurn
from environments.policy import Completion, Policy
from environments.types import JsonObject, Message


class TemplateChat:
    """See the module."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    async def render(self, messages: Sequence[Message], tools: Sequence[JsonObject]) -> list[int]:
        return await self._policy.render(messages, tools)

    async def extend(
        self,
        token_ids: list[int],
        sampled: Completion,
        messages: Sequence[Message],
        added: Sequence[Message],
        tools: Sequence[JsonObject],
    ) -> list[int] | None:
        if not sampled.ended_its_turn:
            return None  # which token would end it is not known
        try:
            return await self._policy.extend(token_ids, messages, added, tools)
        except UnfollowableTurn:
            return None

    def parse(self, prompt_token_ids: list[int], completion: Completion, tools: Sequence[JsonObject]) -> Message:
        return Message("assistant", completion.text)
