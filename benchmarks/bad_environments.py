"""What forty broken environments cost the good one beside them, in pairs: its groups a second alone, and among them.

    python -m benchmarks.bad_environments --pairs 3 --seconds 30

A driver with a real store plays both against a server that takes a while for each reply, as a policy does. Measured is
what comes after every broken one has failed five times: by then each plays one group at a time, and pauses in between.
Prints one JSON object.
"""

import argparse
import os
import subprocess
import sys

MEASURED = "tests/workers/throughput_beside_bad_ones.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30.0)
    options = parser.parse_args()
    # By pytest, which knows how to make a store.
    told = {"BAD_ENVIRONMENTS_PAIRS": str(options.pairs), "BAD_ENVIRONMENTS_SECONDS": str(options.seconds)}
    command = [sys.executable, "-m", "pytest", "-q", MEASURED]
    raise SystemExit(subprocess.run(command, env=os.environ | told, check=False).returncode)


if __name__ == "__main__":
    main()
