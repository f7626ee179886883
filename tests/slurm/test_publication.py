"""Seconds from a version's announcement to the first token that every server samples from it, printed and not judged.

ROLLYARD_TEST_LONG=1 pytest tests/slurm/test_publication.py -s
"""

import http.client
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from django.utils.crypto import salted_hmac

from tests.accounts import let_others_pass
from tests.e2e.yard import Yard, running_yard, until
from tests.lanes import long_lane
from tests.slurm.cluster import Cluster
from tests.slurm.events import ALIVE
from workers.launchers.base import sockets_of

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.slow,
    pytest.mark.e2e,
    pytest.mark.vllm,
    long_lane("that versions come over HTTP is always tested"),
]

STEPS = 6
TEMPLATES = """
[templates.filesystem]
environment = { OMP_NUM_THREADS = "1" }
[templates.http]
shared = false
environment = { OMP_NUM_THREADS = "1" }
"""
MAKE = """
import sys, torch
from transformers import Qwen3ForCausalLM
from trainers.model.tiny import tiny_config, tiny_tokenizer
tokenizer = tiny_tokenizer()
config = tiny_config(tokenizer)
config.hidden_size, config.intermediate_size, config.num_hidden_layers = 512, 2048, 8
config.layer_types = ["full_attention"] * 8
torch.manual_seed(0)
Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(sys.argv[1])
tokenizer.save_pretrained(sys.argv[1])
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("base") / "model"
    subprocess.run([sys.executable, "-c", MAKE, str(directory)], check=True, timeout=120)
    let_others_pass(directory)
    for path in (directory, *directory.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return directory


@pytest.fixture(scope="module")
def yard(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    with running_yard(tmp_path_factory.mktemp("yard") / "up.log") as yard:
        (yard.home.path / "cluster.toml").write_text(TEMPLATES)
        yield yard


class Asker(threading.Thread):
    """Asks one server for one token after another, and notes when it got the first of each version."""

    def __init__(self, url: str, key: str) -> None:
        super().__init__(daemon=True)
        self.first: dict[int, float] = {}
        self.halt = threading.Event()
        self._address, self._key = urlsplit(url), key

    def run(self) -> None:
        body = {"model": "policy", "token_ids": [5], "sampling_params": {"max_tokens": 1}, "output_mode": "text"}
        headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
        connection = http.client.HTTPConnection(self._address.hostname or "", self._address.port, timeout=60)
        while not self.halt.wait(0.02):
            try:
                connection.request("POST", "/inference/v1/generate", json.dumps(body), headers)
                [choice] = json.loads(connection.getresponse().read())["choices"]
            except (OSError, http.client.HTTPException, ValueError, KeyError):
                connection.close()
                continue
            for span in choice.get("weight_versions") or ():
                if span["version"].isdecimal():
                    self.first.setdefault(int(span["version"]), time.monotonic())


@pytest.mark.parametrize("replicas", [1, 4])
@pytest.mark.parametrize("kind", ["full", "lora"])
@pytest.mark.parametrize("transport", ["filesystem", "http"])
def test_a_version_is_sampled_from(yard: Yard, model: Path, transport: str, kind: str, replicas: int) -> None:
    lora = ["model.lora.rank=8", "model.lora.alpha=16"] if kind == "lora" else []
    words = [f"model.path={model}", "launcher.type=slurm", f"launcher.template={transport}", *lora]
    small = ["batch.batch_size=32", "sampling.max_tokens=16", "evaluation=null", "algorithm.max_async_level=0"]
    room = ["inference.kv_cache_gib=0.1", "inference.max_model_len=256", f"inference.replicas={replicas}"]
    run = yard.rollyard("launch", "reverse-text-rl", *words, *small, *room, f"max_steps={STEPS}")["run"]
    until(lambda: yard.step(run) >= 1, within_s=400, what="a step")
    until(lambda: len(yard.sql(ALIVE, run, "inference")) == replicas, within_s=120, what="every server")

    servers = yard.sql(
        "SELECT t.token::text, t.base_url FROM rollouts_replica AS t JOIN rollouts_run AS r ON r.id = t.run_id"
        " WHERE r.key = %s AND t.kind = 'inference' AND t.ended_at IS NULL",
        run,
    )
    askers = [Asker(url, key_of(yard, token)) for token, url in servers]
    for asker in askers:
        asker.start()
    written = dict[int, float]()
    [(trainer, _)] = yard.sql(ALIVE, run, "trainer")
    place = yard.home.path / "runs" / run / "weights"
    if transport == "http":
        place = sockets_of(key_of(yard, trainer)) / "files" / place.relative_to("/")
    while STEPS - 1 not in written or not all(STEPS - 1 in asker.first for asker in askers):
        for step in set(range(STEPS + 1)) - written.keys():
            if (place / f"step_{step}").exists():
                written[step] = time.monotonic()
        time.sleep(0.002)
    for asker in askers:
        asker.halt.set()
    until(lambda: yard.state(run) == "finished", within_s=120, what="the end of the run")

    sizes = "SELECT max(t.size_bytes) FROM rollouts_policyversion AS t JOIN rollouts_run AS r ON r.id = t.run_id"
    [(size,)] = yard.sql(f"{sizes} WHERE r.key = %s", run)
    seen = [step for step in sorted(written)[1:] if all(step in asker.first for asker in askers)]
    assert seen
    first = [min(asker.first[step] for asker in askers) - written[step] for step in seen]
    last = [max(asker.first[step] for asker in askers) - written[step] for step in seen]
    carried = size * (1 + replicas) if transport == "http" else 0
    print(
        f"\n{transport}, {kind}, {replicas} servers, {size / 1e6:.2f} MB, carried {carried / 1e6:.1f} MB;"
        f" first token of {len(seen)} versions: at the first server {told(first)} s, at the last {told(last)} s"
    )


def told(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f})"


def key_of(yard: Yard, token: str) -> str:
    """The key of a replica's door, as the installation makes it."""
    secret = (yard.home.path / "secret_key").read_text().strip()
    return salted_hmac("rollyard.inference", token, secret=secret, algorithm="sha256").hexdigest()
