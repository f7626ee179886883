"""The whole reverse-text demo with trainers on whatever device there is, served by the vLLM that is installed."""

import json
import os
import subprocess
import sys

from benchmarks.gpu.setting import finish, options

_SMALL = ["sft.max_steps=12", "max_steps=3", "evaluation.problems=16", "batch.batch_size=32"]


def main() -> None:
    asked = options()
    # Trainer and server share the only GPU.
    chosen = ["trainer.device=auto", "sft.trainer.device=auto", "inference.gpu_memory_utilization=0.4"]
    words = [word for value in (*chosen, *(_SMALL if asked.small else [])) for word in ("--set", value)]
    command = [sys.executable, "-m", "controlplane.cli.demo", "--exit-when-done", "--json", "--port=auto", *words]
    kept = {name: value for name, value in os.environ.items() if name not in {"DATABASE_URL", "REDIS_URL"}}
    environ = kept | {"ROLLYARD_HOME": str(asked.work / "home"), "DJANGO_SETTINGS_MODULE": "controlplane.settings"}
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True, env=environ)
    print(done.stdout)
    lines = done.stdout.splitlines()
    figures = json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {}
    finish(figures, "" if done.returncode == 0 or asked.small else f"exit status {done.returncode}")


if __name__ == "__main__":
    main()
