"""The chat format of a run's model: looked for once, spoken by every session."""

import asyncio
import logging
from pathlib import Path

from environments.chat import rendered
from environments.chat.base import Chat
from environments.chat.rendered import RenderedChat
from environments.chat.template import OpenThoughts, Prompts, TemplateChat
from environments.policy import Policy
from rollouts.services import model_checks
from workers.fleet import hub

log = logging.getLogger(__name__)


class Chats:
    """The formats of one model, by its path or its name on the hub. Belongs to one event loop."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._lock = asyncio.Lock()
        self._is_known = False
        self._family: RenderedChat | None = None
        self._thoughts, self._prompts = OpenThoughts(), Prompts()

    async def of(self, policy: Policy) -> Chat:
        """The closest format that is known: its family's, or its chat template alone. Raises PolicyError."""
        async with self._lock:
            if not self._is_known:
                directory = await asyncio.to_thread(hub.tokenizer_directory, self._model)
                if directory is None:
                    log.warning(
                        "there is no tokenizer of %s on this machine: chats go by the server's chat template alone, "
                        "which recognises no calls of tools",
                        self._model,
                    )
                self._family = None if directory is None else await rendered.find(policy, directory, self._closed())
                self._is_known = True
        return self._family or TemplateChat(policy, self._thoughts, self._prompts)

    def _closed(self) -> list[Path]:
        """Where no link to a file of the tokenizer is followed: of the hub's cache most is links."""
        return model_checks.closed() if Path(self._model).is_absolute() else []
