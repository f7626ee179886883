"""Crash points: what the variable may say, and that a process dies where it says and nowhere else."""

import os
import signal
import subprocess
import sys

import pytest

from rollouts import crashpoints
from rollouts.crashpoints import CrashPoint

REACH = "import sys; from rollouts.crashpoints import CrashPoint, crash_point\n"
REACH += "for name in sys.argv[1:]: print(name, flush=True); crash_point(CrashPoint(name))"


def reach(spec: str, *names: str, seed: str = "") -> tuple[int, list[str]]:
    """Exit status of a process that reaches these points, and those it reached."""
    environ = {**os.environ, crashpoints.VARIABLE: spec, crashpoints.SEED_VARIABLE: seed}
    argv = [sys.executable, "-c", REACH, *names]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=30)
    return done.returncode, done.stdout.split()


def test_a_process_is_killed_at_the_point_that_is_named() -> None:
    assert reach("before_ack", "before_insert", "before_ack", "before_ack") == (
        -signal.SIGKILL,
        ["before_insert", "before_ack"],
    )


def test_a_number_says_which_time() -> None:
    assert reach("before_ack:2", "before_ack", "before_insert", "before_ack", "before_ack") == (
        -signal.SIGKILL,
        ["before_ack", "before_insert", "before_ack"],
    )


def test_a_probability_with_a_seed_dies_at_the_same_time_again() -> None:
    status, reached = reach("mid_body%0.2", *["mid_body"] * 200, seed="7")
    assert status == -signal.SIGKILL
    assert reach("mid_body%0.2", *["mid_body"] * 200, seed="7") == (status, reached)


def test_without_the_variable_every_point_is_passed() -> None:
    assert reach("", *CrashPoint) == (0, list(CrashPoint))


@pytest.mark.parametrize("spec", ["nowhere", "before_ack:0", "before_ack%2", "before_ack:", "before_ack:1%0.5", ":1"])
def test_a_variable_that_means_nothing_is_refused_with_the_names_there_are(spec: str) -> None:
    with pytest.raises(ValueError, match=r"NAME%PROBABILITY.*before_insert, after_insert"):
        crashpoints.parse(spec)
