"""A gateway that is killed again and again under agents that play: no acknowledged rollout is lost, none is twice."""

import contextlib
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import httpx
import pytest

from environments.types import Message, Problem
from rollouts.models import AgentSession, Rollout, Run
from rollouts.services.outside import sessions
from tests import store
from tests.factories import somebody
from tests.lanes import amount
from tests.workers.making import make_server, make_started_run
from tests.workers.stub_server import stub_server
from workers.database import with_connection

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

GROUP_SIZE = 4
KILLS = amount(4, 50)
TURNS = 3


class Keeper:
    """Keeps a gateway running on one listening socket, as `rollyard up` does, and kills it at random moments."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.kills = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep)

    def __enter__(self) -> "Keeper":
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stop.set()
        self._thread.join(60)
        self._listener.close()

    def _keep(self) -> None:
        fd = self._listener.fileno()
        command = [sys.executable, "-m", "controlplane.cli.main", "gateway", "--fd", str(fd)]
        environ = {**os.environ, "DATABASE_URL": store.url(), "DJANGO_SETTINGS_MODULE": "controlplane.settings"}
        rng = random.Random(7)
        while not self._stop.is_set():
            process = subprocess.Popen(command, env=environ, pass_fds=[fd])
            try:
                if self._answers() and self.kills < KILLS:
                    self._stop.wait(rng.uniform(0.05, 1.0))
                    self.kills += 1
                else:
                    self._stop.wait()
            finally:
                process.kill()
                process.wait()

    def _answers(self) -> bool:
        until = time.monotonic() + 60
        while time.monotonic() < until and not self._stop.is_set():
            with contextlib.suppress(httpx.TransportError):
                return httpx.get(f"{self.url}/health", timeout=30, trust_env=False).is_success
        return False


@pytest.fixture
def run() -> Iterator[Run]:
    with stub_server() as stub:
        run = make_started_run(sampling={"max_turns": 8})
        make_server(run, stub.url)
        yield run


def post(url: str, body: dict[str, object]) -> httpx.Response:
    """Ask until there is an answer, as the OpenAI SDK does: connections break, and a 503 is worth another try."""
    until = time.monotonic() + 120
    while True:
        with contextlib.suppress(httpx.TransportError):
            answer = httpx.post(url, json=body, timeout=30, trust_env=False)
            if answer.status_code < 500:
                return answer
        assert time.monotonic() < until, "the gateway does not come back"


def test_every_session_that_was_finished_is_in_its_group_exactly_once(run: Run) -> None:
    acknowledged: list[tuple[str, float]] = []
    faults: list[str] = []
    problem = Problem(key="p", messages=[Message("user", "?")])

    def play(keeper: Keeper, number: int) -> None:
        while keeper.kills < KILLS:
            group = f"g-{number}-{keeper.kills}-{time.monotonic_ns()}"
            for member in range(GROUP_SIZE):
                options = {"environment": "mine", "deadline_s": 600.0, "actor": "api:a", "owner": somebody()}
                opened = sessions.open_session(run, problem, group=group, group_size=GROUP_SIZE, **options)  # type: ignore[arg-type]
                messages: list[dict[str, str]] = [{"role": "user", "content": "?"}]
                for turn in range(TURNS):
                    answer = post(f"{keeper.url}/s/{opened.key}/v1/chat/completions", {"messages": messages})
                    if not answer.is_success:
                        return faults.append(answer.text)
                    messages += [answer.json()["choices"][0]["message"], {"role": "user", "content": f"{turn}?"}]
                reward = number + member / 10
                answer = post(f"{keeper.url}/s/{opened.key}/finish", {"reward": reward})
                # What was finished while nobody heard the answer is known: the same again changes nothing.
                if not answer.is_success:
                    return faults.append(answer.text)
                acknowledged.append((group, reward))
        return None

    with Keeper() as keeper:
        agents = [threading.Thread(target=with_connection, args=(play, keeper, number)) for number in range(4)]
        for agent in agents:
            agent.start()
        for agent in agents:
            agent.join(280)
            assert not agent.is_alive(), "a session is stuck"
    assert faults == []
    assert keeper.kills == KILLS
    columns = ("group__key", "reward", "error__message", "trained_token_count")
    stored = list(Rollout.objects.filter(group__run=run).order_by("group__key", "index").values_list(*columns))
    expected = sorted(acknowledged)
    assert [group for group, *_ in stored] == [group for group, _ in expected]
    for (_, reward, why, sampled), (_, told) in zip(stored, expected, strict=True):
        # A gateway that was killed between the last request and the end knows no token: told, and no reward.
        assert (reward, sampled > 0) == (told, True) if why is None else "restarted" in why
    assert any(why is None for *_, why, _ in stored), "some came through: how many is the machine's speed"
    assert not AgentSession.objects.filter(run=run, grouped_at=None).exists()
