"""The processes that take part besides Rollyard: an inference server, environments, trainers, grabbers of data."""

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.atroposlib.tables import JsonObject, in_state
from tests.e2e.yard import Yard, until
from tests.ports import free_port
from trainers.run_config import InferenceConfig
from workers.fleet.inference import InferenceError, VllmAdmin
from workers.fleet.inference import argv as server_argv
from workers.fleet.inference import environ as server_environ

HERE = Path(__file__).parent
GROUP_SIZE = 4
WORKERS = 4
"""Groups that an environment plays at a time."""


class Inference(NamedTuple):
    """A running vLLM server and what it serves."""

    url: str
    api_key: str
    model: Path


@contextmanager
def running(command: list[str], log: Path, variables: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process until the end of the block; ``log`` gets what it prints."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, env=os.environ | variables, stdout=out, stderr=out, cwd=log.parent, start_new_session=True
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)  # as from a keyboard: it writes out what it holds in memory
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextmanager
def running_inference(model: Path, directory: Path) -> Iterator[Inference]:
    """A vLLM server on the CPU that answers."""
    port = free_port()
    found = Inference(f"http://127.0.0.1:{port}/v1", secrets.token_hex(16), model)
    config = InferenceConfig(max_model_len=512, kv_cache_gib=0.25)
    log = directory / "vllm.log"
    command = server_argv(str(model), directory / "unused", config, cpu=True)
    at = command.index("--uds")  # for clients that know ports only
    command[at : at + 2] = ["--host", "127.0.0.1", "--port", str(port)]
    variables = server_environ(config, cpu=True, api_key=found.api_key)
    with running(command, log, variables) as process, VllmAdmin(found.url, found.api_key) as admin:

        def answers() -> bool:
            assert process.poll() is None, tail(log)
            try:
                return admin.probe(5) > 0
            except InferenceError:
                return False

        until(answers, within_s=240, what="vLLM to answer")
        yield found


class Environment:
    """A process of `environment.py serve`."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, saved: Path) -> None:
        self.process = process
        self.log = log
        self.saved = saved
        """What the client package was about to send, one group a line, written by the package itself."""

    def check_lives(self) -> None:
        assert self.process.poll() is None, tail(self.log)

    def sent(self) -> list[JsonObject]:
        """Complete lines of what it saved."""
        return read_lines(self.saved)


@contextmanager
def running_environment(
    bin_: Path, url: str, inference: Inference, directory: Path, *, batches_ahead: int = 3
) -> Iterator[Environment]:
    """An environment that feeds ``url`` as soon as a trainer is there; ``batches_ahead`` of them wait at most."""
    options = {
        "env.rollout_server_url": url,
        "env.tokenizer_name": str(inference.model),
        "env.wandb_name": "letters",
        "env.group_size": GROUP_SIZE,
        "env.max_num_workers": WORKERS,
        "env.max_batches_offpolicy": batches_ahead,
        "env.data_path_to_save_groups": str(directory / "groups.jsonl"),
        "openai.base_url": inference.url,
        "openai.api_key": inference.api_key,
    }
    command = [str(bin_ / "python"), str(HERE / "environment.py"), "serve"]
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    log = directory / "environment.log"
    with running(command, log, quiet()) as process:
        yield Environment(process, log, directory / "groups.jsonl")


def train(url: str, model: Path, *, batch_size: int, steps: int) -> list[JsonObject]:
    """Run `trainer.py` to its end: what it said of every step."""
    command = [sys.executable, str(HERE / "trainer.py"), url, "--model", str(model)]
    done = finished([*command, "--batch-size", str(batch_size), "--steps", str(steps)])
    return [json.loads(line) for line in done.splitlines()]


def grab(tool: Path, url: str, model: Path, file: Path, *options: str) -> list[JsonObject]:
    """Run `atropos-sft-gen` or `atropos-dpo-gen` to its end: the lines of the file it wrote."""
    command = [str(tool), str(file), "--api-url", url, "--tokenizer", str(model), "--group-size", str(GROUP_SIZE)]
    finished([*command, *options])
    return read_lines(file)


def read_lines(file: Path) -> list[JsonObject]:
    """Objects of a JSONL file; what follows the last newline is not complete. Texts may contain other line breaks."""
    return [json.loads(line) for line in file.read_text().split("\n")[:-1]]


def finished(command: list[str]) -> str:
    """What a command that succeeds prints."""
    done = subprocess.run(
        command, env=os.environ | quiet(), capture_output=True, text=True, timeout=240, check=False, cwd=HERE
    )
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr[-4000:]}"
    return done.stdout


def quiet() -> dict[str, str]:
    """Variables that keep libraries off the network."""
    return {"WANDB_MODE": "disabled", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def launch(yard: Yard) -> tuple[str, str]:
    """A new external run that takes groups: its key, and the address that clients of Atropos are given."""
    launched = yard.rollyard("launch", "external-trainer")
    run, url = launched["run"], launched["atropos_url"]
    # What the tools do; an address of ours does it only for clients that know no POST.
    yard.sql(
        "UPDATE rollouts_address AS a SET resets_on_get = true FROM rollouts_run AS r"
        " WHERE r.id = a.run_id AND r.key = %s RETURNING a.run_id",
        run,
    )
    until(lambda: yard.state(run) == "starting", within_s=60, what="the reconciler to see the run")
    return run, url


def wait_for_stock(yard: Yard, run: str, environment: Environment) -> set[int]:
    """Groups that wait for a trainer, as soon as there are some."""

    def look() -> set[int]:
        environment.check_lives()
        return in_state(yard, run, "ready")

    return until(look, within_s=60, what="groups that wait")


def tail(log: Path) -> str:
    return log.read_text(errors="replace")[-4000:]
