"""A real vLLM server for tests, on a small model."""

import importlib.util
import os
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from environments.client.address import SCHEME
from tests.workers.waiting import eventually
from trainers.run_config import InferenceConfig
from workers.fleet.inference import InferenceError, StartAdapter, VllmAdmin
from workers.fleet.inference import argv as server_argv
from workers.fleet.inference import environ as server_environ

# Not by importing it: that takes seconds of every run, of the fast tests too.
needs_vllm = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None, reason="needs vLLM: pip install 'rollyard[serve]'"
)


@contextmanager
def started(
    directory: Path, model: Path, adapter: StartAdapter | None = None, *, max_model_len: int = 512, **inference: Any
) -> Iterator[tuple[str, str]]:
    """Address and key of a server on a model, which answers; its socket and its log are in `directory`, and
    ``inference`` is more of that section of a run."""
    socket, api_key = directory / "vllm.sock", secrets.token_hex(16)
    url = f"{SCHEME}{socket}"
    config = InferenceConfig(max_model_len=max_model_len, kv_cache_gib=0.25, **inference)
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            server_argv(str(model), socket, config, cpu=True, adapter=adapter),
            env={**os.environ, **server_environ(config, cpu=True, api_key=api_key)},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        with VllmAdmin(url, api_key) as admin:

            def answers() -> bool:
                assert process.poll() is None, (directory / "log").read_text()[-4000:]
                try:
                    return admin.probe(5) > 0
                except InferenceError:
                    return False

            eventually(answers, within_s=400, what="vLLM to answer")
        yield url, api_key
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
