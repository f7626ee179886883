"""What a plain account's sandbox does, as JSON: started by a test as that account, with the packages beside it."""

import asyncio
import json
import os

from environments.sandbox.tools import SandboxLimits, run

_LOOKS = """
import json, os
open("kept", "w").write("k")
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
seen = {"uid": os.getuid(), "root": os.listdir("/"), "given": open("given").read(), "caps": status["CapEff"]}
print(json.dumps(seen))
"""
_BOMB = """
import os
while True:
    try:
        os.fork()
    except OSError:
        print(len([name for name in os.listdir("/proc") if name.isdigit()]), flush=True)
"""
_HOG = """
import os, time
for _ in range(8):
    if not os.fork():
        kept = b"x" * 60 * 2**20
        time.sleep(60)
time.sleep(60)
"""


async def main() -> None:
    """Run three programs, and say what came of them."""
    seen = await run(["python3", "-c", _LOOKS], {"given": "g"}, returns=["kept"])
    bounds = SandboxLimits(wall_s=0.5, processes=16, output_bytes=10**9, cpu_s=60)
    bomb = await run(["python3", "-c", _BOMB], limits=bounds)
    hog = await run(["python3", "-c", _HOG], limits=SandboxLimits(wall_s=20, memory_bytes=256 * 2**20))
    told = {**json.loads(seen.output), "kept": seen.files["kept"].decode(), "bomb": bomb.ended, "hog": hog.ended}
    print(json.dumps({**told, "most": max(map(int, bomb.output.split()[:-1])), "we": os.getuid()}))


if __name__ == "__main__":
    asyncio.run(main())
