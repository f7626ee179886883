"""Steps of the real trainer under torchrun on micro-batches of 16k tokens: tokens a second, share of the peak, memory.

`benchmarks/trainer.py` does the work; the lengths of its rollouts are spread, as those of generated answers are.
"""

import json
import subprocess
import sys

from benchmarks.gpu.setting import finish, model_in, options


def main() -> None:
    asked = options()
    size = asked.size
    sizes = {
        "--vocabulary": size.vocabulary,
        "--rollouts": 4 if asked.small else 16,
        "--group-size": 2 if asked.small else 8,
        "--prompt": size.tokens // 32,
        "--completion": size.tokens // 4,
        "--longest": size.tokens - size.tokens // 32,
        "--warmup": 1 if asked.small else 2,
        "--steps": 1 if asked.small else 4,
    }
    command = [sys.executable, "-m", "benchmarks.trainer", f"--kind={asked.kind}", f"--device={asked.device}"]
    command += [f"--dtype={asked.dtype}", f"--model={model_in(asked.work, size)}"]
    command += [f"{name}={value}" for name, value in sizes.items()]
    command += [f"--set={word}" for word in (f"trainer.seq_len={size.tokens}", *asked.set)]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    print(done.stdout)
    if done.returncode:
        finish({}, f"exit status {done.returncode}")
    found = json.loads(done.stdout.splitlines()[-1])["figures"]["ours"]["spread"]
    finish({name: spread["median"] for name, spread in found.items()})


if __name__ == "__main__":
    main()
