"""A small storm, a longer one in the long lane. Any: `python -m tests.chaos.storm --kills 1000 --cuts 200`."""

import itertools
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.alive import KINDS
from tests.chaos.storm import schedule
from tests.lanes import amount, long_lane

KILLS, CUTS = amount(len(KINDS), 200), amount(10, 40)


def test_a_seed_names_one_schedule_in_which_every_kind_is_killed() -> None:
    planned = list(schedule(7, 200))
    assert planned == list(schedule(7, 200)) != list(schedule(8, 200))
    assert {strike.kind for strike in planned[: len(KINDS)]} == set(KINDS), "a round kills each kind once"
    assert planned[:50] == list(itertools.islice(schedule(7, 1000), 50)), "a longer storm begins like a shorter one"


@long_lane("tests/e2e/test_kill.py kills the same processes around a real run")
@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.timeout(amount(1500, 4000))
def test_a_small_storm_breaks_no_promise(tmp_path: Path) -> None:
    seed = os.environ.get("ROLLYARD_STORM_SEED", str(random.SystemRandom().randrange(10**6)))
    print(f"ROLLYARD_STORM_SEED={seed}")
    argv = [sys.executable, "-m", "tests.chaos.storm", "--seed", seed, "--kills", str(KILLS), "--cuts", str(CUTS)]
    argv += ["--keep", str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=amount(1400, 3900), check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stderr[-4000:]
    summary = json.loads(done.stdout.splitlines()[-1])
    assert sum(summary["kills"].values()) == KILLS
    assert min(summary["kills"][kind] for kind in KINDS) >= KILLS // len(KINDS)
    assert summary["cuts"] >= CUTS
    for protocol in ("native", "atropos"):
        heard = summary[protocol]
        assert heard["violations"] == []
        assert min(heard["acknowledged"], heard["steps"]) > 0, f"{protocol} was not under load"
