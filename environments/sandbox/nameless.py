"""Shared memory without a name, as files of memory: what of one is mapped no more, or was never mapped, is held still.

Counts of mapped pages miss it: a program may touch a part, let the kernel forget it, and touch the next; or let a child
touch it that ends. Standard library only.
"""

import os
import sys
from collections.abc import Collection, Iterator
from contextlib import suppress

_BLOCK_BYTES = 512
"""Of what stat counts in."""
_KINDS = (b"/dev/zero", b"/memfd:", b"/SYSV")
_MOST_TOLD = 2**26
"""Bytes of the kernel's lists of mappings, about a million of these: whoever has more hides something in them."""


def held(pids: Collection[int]) -> int:
    """Bytes in such files that these processes have open or mapped, each once. As root exact; else of those that are
    mapped as much as the mappings reach."""
    files: dict[tuple[int, int], int] = {}
    told = 0
    for pid in pids:
        mappings = _read(f"/proc/{pid}/maps", _MOST_TOLD + 1)
        if (told := told + len(mappings)) > _MOST_TOLD:
            return sys.maxsize
        if b" (deleted)" in mappings:
            for file, size in _mapped(pid, mappings):
                files[file] = max(size, files.get(file, 0))
        files |= _opened(pid)
    return sum(files.values())


def _mapped(pid: int, mappings: bytes) -> Iterator[tuple[tuple[int, int], int]]:
    for line in mappings.splitlines():
        if not line.endswith(b" (deleted)"):
            continue
        addresses, allowed, offset, device, inode, path = line.split(None, 5)
        if not allowed.endswith(b"s") or not path.startswith(_KINDS):
            continue
        try:
            status = os.stat(f"/proc/{pid}/map_files/{addresses.decode()}")
            yield (status.st_dev, status.st_ino), status.st_blocks * _BLOCK_BYTES
        except OSError:  # others than root may not look
            begin, end = (int(address, 16) for address in addresses.split(b"-"))
            major, minor = (int(number, 16) for number in device.split(b":"))
            yield (os.makedev(major, minor), int(inode)), int(offset, 16) + end - begin


def _opened(pid: int) -> dict[tuple[int, int], int]:
    files: dict[tuple[int, int], int] = {}
    with suppress(OSError):
        for file in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                path = f"/proc/{pid}/fd/{file}"
                if os.readlink(path).startswith("/memfd:"):
                    status = os.stat(path)
                    files[status.st_dev, status.st_ino] = status.st_blocks * _BLOCK_BYTES
    return files


def _read(path: str, most: int) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(most)
    except OSError:
        return b""
