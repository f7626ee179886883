"""A file as an answer, in constant memory: where a server is asynchronous, Django itself reads all of it first."""

import asyncio
from collections.abc import AsyncIterator

from django.http import FileResponse


class StreamedFile(FileResponse):
    """Django's answer of a file, read chunk by chunk in a thread."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        assert self.file_to_stream is not None, "it was made with an open file"
        while chunk := await asyncio.to_thread(self.file_to_stream.read, self.block_size):
            yield chunk
