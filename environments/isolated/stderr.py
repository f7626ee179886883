"""The end of what a process writes to stderr, however much that is."""

import asyncio
from collections import deque

_LINES = 20
_LINE_BYTES = 500
_BYTES_PER_S = 2**20
"""So fast a process may write; one that writes more waits, and nobody else does."""
_CHUNK_BYTES = 65_536


class Stderr:
    """Of one process."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque(maxlen=_LINES)

    async def listen(self, pipe: asyncio.StreamReader) -> None:
        """Read until it ends."""
        while chunk := await pipe.read(_CHUNK_BYTES):
            self._lines.extend(line[-_LINE_BYTES:] for line in chunk.splitlines()[-_LINES:])
            await asyncio.sleep(len(chunk) / _BYTES_PER_S)

    def end(self, between: str) -> str:
        """The last lines, with this between them."""
        return between.encode().join(self._lines).decode(errors="replace")
