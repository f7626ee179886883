"""A stub trainer: takes each batch as it is formed, and announces weights; it computes nothing.

    python -m benchmarks.scale_load.trainer RUN STEP_S

It calls what the API calls for a trainer: forming and encoding the batch is the control plane's work.
"""

import hashlib
import sys
import threading
import time
from typing import Any

import django

from benchmarks.scale_load.ground import write_weights
from benchmarks.scale_load.programs import answer

_PAUSE_S = 0.5


class Trainer:
    """Steps, one after the other."""

    def __init__(self, run: Any, step_s: float) -> None:
        self._run = run
        self._step_s = step_s
        self.seconds: list[float] = []
        self.sizes: list[int] = []

    def train(self, ending: threading.Event) -> None:
        """Step until told to end."""
        from rollouts.services.runs import trainer_writes

        registered = trainer_writes.register_trainer(self._run, world_size=1, hostname="stub", pid=1, actor="benchmark")
        self._run.refresh_from_db()
        step = 0
        while not ending.is_set():
            if self._step(registered.epoch, step):
                step += 1
                ending.wait(self._step_s)
            else:
                ending.wait(_PAUSE_S)

    def _step(self, epoch: int, step: int) -> bool:
        from rollouts.services.batches import forming
        from rollouts.services.runs import policies, trainer_writes
        from trainers.wire import PolicyVersionIn, StepAck

        began = time.monotonic()
        outgoing = forming.fetch(self._run, epoch=epoch, step=step)
        if outgoing is None:
            return False
        self.seconds.append(time.monotonic() - began)
        self.sizes.append(len(outgoing.body))
        said = {f"benchmark/{at}": 0.5 for at in range(12)}
        trainer_writes.ack_step(
            self._run, epoch=epoch, step=step, ack=StepAck(batch_sha256=outgoing.sha256, metrics=said)
        )
        path = self._run.directory / "weights" / f"step_{step + 1}"
        write_weights(path)
        written = PolicyVersionIn(
            version=step + 1, path=str(path), manifest_sha256=hashlib.sha256(b"").hexdigest(), size_bytes=0
        )
        policies.announce(self._run, epoch=epoch, version_in=written)
        return True

    def told(self) -> dict[str, Any]:
        """Since the last time this was asked: seconds until a batch was formed and encoded, and its bytes."""
        seconds, sizes = self.seconds, self.sizes
        self.seconds, self.sizes = [], []
        return {"batch_s": seconds, "batch_bytes": sizes}


def main() -> None:
    django.setup()
    from rollouts.models import Run

    trainer = Trainer(Run.objects.get(key=sys.argv[1]), float(sys.argv[2]))
    ending = threading.Event()
    threading.Thread(target=answer, args=({"told": trainer.told}, ending), daemon=True).start()
    trainer.train(ending)


if __name__ == "__main__":
    main()
