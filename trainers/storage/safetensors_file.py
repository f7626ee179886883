"""The beginning of a safetensors file: the place of every tensor in it, so that each can be filled in as it comes.

8 bytes     length of what follows, little-endian, a multiple of 8
JSON        {"__metadata__": {...}, "<name>": {"dtype", "shape", "data_offsets": [begin, end]}, ...}, then spaces
tensors     one after another, wide number formats first so that each is aligned, equal ones by name
"""

import json
from collections.abc import Mapping

import torch

_LENGTH_BYTES = 8
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""As headers name them."""


def header(
    tensors: Mapping[str, tuple[torch.Size, torch.dtype]], metadata: Mapping[str, str]
) -> tuple[bytes, dict[str, int]]:
    """Return the beginning of a file with these tensors, and the place of each in the file, in the file's order."""
    entries: dict[str, object] = {"__metadata__": metadata}
    begins, end = {}, 0
    for name in sorted(tensors, key=lambda name: (-tensors[name][1].itemsize, name)):
        shape, dtype = tensors[name]
        begins[name], end = end, end + shape.numel() * dtype.itemsize
        entries[name] = {"dtype": _DTYPES[dtype], "shape": [*shape], "data_offsets": [begins[name], end]}
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _LENGTH_BYTES)
    before = _LENGTH_BYTES + len(text)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text, {name: before + begin for name, begin in begins.items()}
