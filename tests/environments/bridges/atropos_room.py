"""A process of `.venv-atropos` that plays groups, a gateway, and a policy that remembers what it sampled."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

from environments.chat.template import TemplateChat
from environments.config import SamplingParams
from environments.fakes import ScriptedPolicy
from environments.gateway.local import LocalGateway
from environments.isolated import Isolated
from environments.isolated.frames import GATEWAY_SOCKET
from environments.policy import Completion
from environments.runner import play_group
from environments.types import PlayedRollout, Problem, Split

HERE = Path(__file__).parent
PYTHON = HERE.parents[2] / ".venv-atropos" / "bin" / "python"
TEMPLATE = (
    "{% for message in messages %}{{ '<start>' + message['role'] + '\\n' + message['content'] + '<end>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start>assistant\\n' }}{% endif %}"
)


class HeardPolicy(ScriptedPolicy):
    """Remembers what it sampled, behind which prompt."""

    def __init__(self, replies: Sequence[str | Exception]) -> None:
        super().__init__(replies)
        self.sampled: list[tuple[list[int], list[int]]] = []

    async def sample(self, prompt_token_ids: list[int], n: int, sampling: SamplingParams) -> list[Completion]:
        completions = await super().sample(prompt_token_ids, n, sampling)
        self.sampled += [(prompt_token_ids, each.token_ids) for each in completions]
        return completions


class AtroposRoom:
    """One process without a sandbox, which loads one environment after the other, and a gateway."""

    def __init__(self, runner: asyncio.Runner, directory: Path) -> None:
        self._runner = runner
        self._directory = directory
        _write_tokenizer(directory / "tokenizer")
        self.gateway = LocalGateway(directory / "gateway.sock")
        self._environment = runner.run(self._start())

    async def _start(self) -> Isolated:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *(PYTHON, "-m", "environments.isolated.host"),
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            cwd=self._directory,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self._directory),
                "PYTHONPATH": str(HERE),  # for the module beside this one
                GATEWAY_SOCKET: str(self.gateway.path),
            },
        )
        return Isolated("atropos", process)

    def close(self) -> None:
        self._runner.run(self._environment.aclose())
        self._runner.run(self.gateway.aclose())

    def load(self, name: str, config: dict[str, Any] | None = None, **args: Any) -> None:
        env = {"tokenizer_name": str(self._directory / "tokenizer")} | (config or {})
        path = name if ":" in name else f"atropos_envs:{name}"
        self._runner.run(self._environment.load({"path": path, "config": {"env": env}} | args))

    @property
    def version(self) -> str:
        return self._environment.version

    def problem(self, index: int = 0, split: Split = Split.TRAIN) -> Problem:
        return self._runner.run(self._environment.ask_problem(split, index))

    def problems(self, count: int) -> list[Problem]:
        """The first ones, the last one first: all asked for at once, while that is looked for."""

        async def act() -> list[Problem]:
            asked = (self._environment.ask_problem(Split.TRAIN, index, within_s=30) for index in reversed(range(count)))
            return list(await asyncio.gather(*asked))

        return self._runner.run(act())

    def count(self, split: Split) -> int:
        return self._runner.run(self._environment.ask_count(split))

    def play(self, replies: Sequence[str | Exception], n: int, *problems: Problem) -> list[list[PlayedRollout]]:
        """A group of each problem, all at once."""
        self.policy = HeardPolicy(replies)

        async def act() -> list[list[PlayedRollout]]:
            playing = (
                play_group(
                    self._environment,
                    problem,
                    self.policy,
                    SamplingParams(max_turns=4),
                    n,
                    deadline_s=60,
                    chat=TemplateChat(self.policy),
                    gateway=self.gateway,
                )
                for problem in problems
            )
            return list(await asyncio.gather(*playing))

        return self._runner.run(act())

    def play_one(self, replies: Sequence[str | Exception], n: int) -> list[PlayedRollout]:
        [group] = self.play(replies, n, self.problem())
        return group


def _write_tokenizer(directory: Path) -> None:
    """The tokens of ScriptedPolicy: bytes, and two that frame messages."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    vocabulary = {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(others)}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens(["<start>", "<end>"])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", clean_up_tokenization_spaces=False)
    fast.chat_template = TEMPLATE
    fast.save_pretrained(directory)
    path = directory / "tokenizer_config.json"
    path.write_text(path.read_text().replace("TokenizersBackend", "PreTrainedTokenizerFast"))
