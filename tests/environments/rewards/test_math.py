"""math: equal answers earn, and an answer that would take for ever costs its deadline and nobody else's."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from environments.rewards import math_workers
from environments.rewards.math_answer import answered, math
from environments.rewards.math_workers import MathWorkers
from tests.environments.rewards.replying import problem, rollout, score

pytestmark = pytest.mark.slow  # they start processes

FOR_EVER = r"\boxed{9^{9^{9^9}}}"
GONE_S = 15.0


@pytest.mark.parametrize(
    ("gold", "reply"),
    [
        ("42", "42"),
        (42, "So there are 42."),
        ("42", r"\boxed{42}"),
        ("1/2", r"it is $\boxed{\frac12}$, I think 7"),
        ("1/2", "That makes 2/4 of them."),
        ("0.5", "<answer>1/2</answer>"),
        ("1,234", "It costs 1234 dollars"),
        ("x^2-1", r"\boxed{(x-1)(x+1)}"),
        ("x+1", "1+x"),
        (r"\sqrt{8}", r"\boxed{2\sqrt{2}}"),
        (r"\{1,2\}", r"\boxed{2, 1}"),
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\boxed{\begin{bmatrix}1&2\\3&4\end{bmatrix}}"),
        ("12 meters", r"\boxed{12}"),
        (r"-\frac{1}{2}", r"\boxed{- \frac{1}{2}}"),
        ("Monday", r"\boxed{\text{monday}}"),
        ("Monday", "<answer>\n- Monday\n</answer>"),
        (["7", "8"], "8"),
    ],
)
def test_what_is_equal_earns(gold: object, reply: str) -> None:
    assert score("math", problem(answer=gold), reply) == 1


@pytest.mark.parametrize(
    ("gold", "reply"),
    [
        ("42", "41"),
        ("42", ""),
        ("42", r"\boxed{}"),
        ("42", r"\boxed{41} 42"),
        ("42", r"\boxed{42} \boxed{41}"),
        ("42", r"\boxed{41, 42}"),
        ("42", r"\boxed{41 \text{ or } 42}"),
        ("42", r"\boxed{\text{whatever you want}}"),
        ("42", r"\boxed{0/0}"),
        ("42", r"\boxed{\infty}"),
        ("42", "<think>42</think>"),
        ("1/2", r"\boxed{- \frac{1}{2}}"),
        ("1/2", "<answer>- 1/2</answer>"),
        ("x", r"\boxed{y}"),
        ("(0,1)", r"\boxed{[0,1]}"),
        ("Monday", r"\boxed{Mondya}"),
        ("42", r"\boxed{" + "1+" * 1_000 + "1}"),
    ],
)
def test_what_is_not_equal_does_not(gold: object, reply: str) -> None:
    assert score("math", problem(answer=gold), reply) == 0


@pytest.mark.parametrize(
    ("reply", "part"),
    [
        (r"3 \boxed{1} <answer>2</answer>", "1"),
        ("3 <answer> 2 </answer> 4", "2"),
        ("2x + 3y", "2x + 3y"),
        (r"\frac{1}{2}", r"\frac{1}{2}"),
        ("there are 3/4 of it", "3/4"),
        ("there are none", ""),
        ("It is 108000", "108000"),
        ("So x = 5", "5"),
        ("**18**", "18"),
        ("`18`", "18"),
        ("- 18", "18"),
        ("-18", "-18"),
        (r"\boxed{**18**}", "18"),
        (r"\boxed{ - 18 }", "- 18"),
        ("<answer>- 18</answer>", "- 18"),
        ("<answer>~18</answer>", "18"),
        ("2*3", "2*3"),
    ],
)
def test_the_part_of_a_reply_that_is_its_answer(reply: str, part: str) -> None:
    assert answered(reply) == part


def test_an_answer_that_takes_for_ever_is_wrong_at_its_deadline_and_the_next_is_decided() -> None:
    slow, fast = rollout(FOR_EVER), rollout(r"\boxed{2/4}")
    assert score("math", problem(answer="7"), slow, deadline_s=0.5) == 0
    assert slow.metrics["math_undecided"] == 1
    assert score("math", problem(answer="1/2"), fast) == 1
    assert fast.metrics["math_undecided"] == 0


def test_a_busy_machine_makes_no_right_answer_wrong() -> None:
    """A machine that gives a process no time is one that stops it."""

    async def asked() -> tuple[object, object]:
        first = await some.decide("1/2", "2/4", 10)
        [pid] = children(os.getpid(), "math_worker") - of_others
        os.kill(pid, signal.SIGSTOP)
        asyncio.get_running_loop().call_later(1.0, os.kill, pid, signal.SIGCONT)
        return first, await some.decide("1/3", "3/9", 0.5)

    of_others = children(os.getpid(), "math_worker")
    some = MathWorkers(1)
    assert asyncio.run(asked()) == ({"is_parsed": True, "is_equal": True},) * 2
    some.close()


def test_any_loop_in_any_thread_may_ask_at_once() -> None:
    found: list[float] = []

    async def many() -> None:
        asked = [math(problem(answer="1/2"), rollout(rf"\boxed{{{n}/{2 * n}}}")) for n in range(2, 12)]
        found.extend(await asyncio.gather(*asked))

    threads = [threading.Thread(target=lambda: asyncio.run(many())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert found == [1] * 30


def test_whoever_stops_waiting_leaves_the_process_usable() -> None:
    async def impatient() -> float:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(math(problem(answer="7"), rollout(FOR_EVER), deadline_s=1), 0.1)
        return await math(problem(answer="1/2"), rollout(r"\boxed{3/6}"))

    assert asyncio.run(impatient()) == 1


def test_a_process_is_replaced_before_it_remembers_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    async def asked() -> list[object]:
        return [await some.decide("1/2", f"{n}/{2 * n}", 10) for n in (2, 3)]

    monkeypatch.setattr(math_workers, "_MOST_ASKED", 1)
    of_others = children(os.getpid(), "math_worker")
    some = MathWorkers(1)
    assert asyncio.run(asked()) == [{"is_parsed": True, "is_equal": True}] * 2
    assert children(os.getpid(), "math_worker") - of_others == set()
    some.close()


def test_closing_ends_the_processes() -> None:
    async def asked() -> object:
        return await some.decide("1/2", "2/4", 10)

    of_others = children(os.getpid(), "math_worker")
    some = MathWorkers(1)
    assert asyncio.run(asked()) == {"is_parsed": True, "is_equal": True}
    [pid] = children(os.getpid(), "math_worker") - of_others
    some.close()
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.slow
@pytest.mark.parametrize("answer", ["2/4", "9^{9^{9^9}}"], ids=["idle", "busy"])
def test_no_process_outlives_a_driver_that_is_killed(answer: str) -> None:
    program = f"""
import asyncio
from environments.rewards.math_workers import workers
asyncio.run(workers().decide("1/2", "2/4", 60.0))
print("ready", flush=True)
asyncio.run(workers().decide("7", {answer!r}, 2.0))
input()
"""
    driver = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert driver.stdout is not None
    assert driver.stdout.readline() == b"ready\n"
    [worker] = children(driver.pid, "math_worker")
    driver.send_signal(signal.SIGKILL)
    driver.communicate()
    deadline = time.monotonic() + GONE_S
    while Path(f"/proc/{worker}").exists() and state(worker) != "Z":
        assert time.monotonic() < deadline, "the process is still there"
        time.sleep(0.02)


def children(parent: int, named: str) -> set[int]:
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            is_child = int((path / "stat").read_text().rpartition(")")[2].split()[1]) == parent
            if is_child and named.encode() in (path / "cmdline").read_bytes():
                found.add(int(path.name))
        except OSError:
            continue
    return found


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"
