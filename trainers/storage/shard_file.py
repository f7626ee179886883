"""A rank's part of a checkpoint as torch.distributed.checkpoint reads it, written a piece at a time.

torch's own writer holds a rank's part in main memory twice before it writes the first byte, and what it wrote is then
read again for its hash: 32 s for 6.7 GiB off an H200, in which nothing is trained. Here a piece is fetched from the
device while those before it are hashed and written.
"""

import json
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint._hf_utils import (
    CUSTOM_METADATA_KEY,
    DCP_VERSION_KEY,
    FORMAT_KEY,
    FORMAT_VALUE,
    HF_DCP_VERSION,
    SAVED_OFFSETS_KEY,
    _gen_file_name,
)
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from trainers.storage.durable import HashedFile
from trainers.storage.safetensors_file import header

_PIECE_BYTES = 2**26


class ShardWriter(HuggingFaceStorageWriter):
    """Storage writer for `save`: each rank's part is a file of its own in a directory, durable when `save` returns."""

    def __init__(self, directory: Path) -> None:
        super().__init__(str(directory), save_distributed=True)
        self._directory = directory
        self.sha256s: dict[str, str] = {}
        """Of this rank's file, by its name."""

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Called by `save`, whose plan says which part of which tensor is this rank's to write."""
        if plan.items:
            self._write(plan, planner)
        done: Future[list[WriteResult]] = Future()
        done.set_result([])  # what is where is said by the files themselves
        return done

    def _write(self, plan: SavePlan, planner: SavePlanner) -> None:
        items: dict[str, Any] = {item.index.fqn: item for item in plan.items}
        assert len(items) == len(plan.items), "a rank has two parts of one tensor"
        parts = {name: item.tensor_data for name, item in items.items()}
        offsets = {name: {SAVED_OFFSETS_KEY: [*part.chunk.offsets]} for name, part in parts.items()}
        metadata = {
            CUSTOM_METADATA_KEY: json.dumps(offsets),
            DCP_VERSION_KEY: str(HF_DCP_VERSION),
            FORMAT_KEY: FORMAT_VALUE,
        }
        beginning, places = header(
            {name: (part.chunk.sizes, part.properties.dtype) for name, part in parts.items()}, metadata
        )
        path = self._directory / _gen_file_name(1, 1, plan.storage_data["shard_index"])
        with HashedFile(path) as file:
            file.write(beginning)
            for name in places:
                tensor = planner.resolve_data(items[name])
                assert isinstance(tensor, torch.Tensor)
                for piece in tensor.detach().reshape(-1).view(torch.uint8).split(_PIECE_BYTES):
                    file.write(piece.cpu().numpy().data)
        self.sha256s[path.name] = file.sha256
