"""Who plays and trains over HTTP while processes are killed: agents outside, and the trainer of the run."""

import json
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec

from environments.client import SessionClient
from environments.client.http import Refused, Unreachable
from environments.client.session_client import PlayableSession
from tests.chaos import native_clients
from tests.chaos.client import outcome_of, parser
from tests.chaos.history import Outcome
from trainers.wire import PolicyVersionIn

ENVIRONMENT = "calculator"
GROUP_SIZE = 4
LEFT_OUT_OF = 3
"""One group of so many has a session that is never finished."""
SHORT_S, LONG_S = 3.0, 600.0
"""Deadlines of a session that is left, and of one that is finished."""
BETWEEN_GROUPS_S = 1.5
"""On average. What comes from outside counts as generated: more than is trained, and the drivers would have a rest."""
PATIENCE_S = 90.0
"""So long an agent asks again: whatever is killed is back by then."""
_PAUSE_S = 0.1


class Acknowledged(NamedTuple):
    """A session whose end was answered 200."""

    group: str
    member: int
    """Its place in the group."""
    reward: float


class Agent:
    """Plays groups of sessions from outside, turn by turn with the tool, and remembers what it was told."""

    def __init__(self, url: str, token: str, run: str, *, number: int, seed: int) -> None:
        self.acknowledged: list[Acknowledged] = []
        self.left: list[tuple[str, int]] = []
        """(group, place) of sessions that were never finished."""
        self.turns = 0
        self._number = number
        self._dice = random.Random(f"{seed}/agent/{number}")
        self._client = SessionClient(url, token, run)

    def play_until(self, halt: threading.Event) -> None:
        """One group after another, the last one to its end. Raises AssertionError for what never should be."""
        groups = 0
        with self._client, httpx.Client(timeout=30, trust_env=False) as http:
            while not halt.is_set():
                name, index = f"agent-{self._number}-{groups}", 1000 * self._number + groups
                # The last one, for a group of which every session has lapsed takes no more.
                left = GROUP_SIZE - 1 if self._dice.randrange(LEFT_OUT_OF) == 0 else None
                # All before any is played: they are known by their places, which are in the order of their opening.
                opened = [self._open(name, index, is_left=member == left) for member in range(GROUP_SIZE)]
                for member, session in enumerate(opened):
                    self._play(http, session, member, is_left=member == left)
                groups += 1
                halt.wait(self._dice.expovariate(1 / BETWEEN_GROUPS_S))

    def _open(self, group: str, index: int, *, is_left: bool) -> PlayableSession:
        return self._client.open(
            environment=ENVIRONMENT,
            index=index,
            group=group,
            group_size=GROUP_SIZE,
            deadline_s=SHORT_S if is_left else LONG_S,
        )

    def _play(self, http: httpx.Client, session: PlayableSession, member: int, *, is_left: bool) -> None:
        messages: list[dict[str, Any]] = [{"role": "user", "content": session.problem.messages[0].text}]
        body = {"model": "policy", "messages": messages, "tools": session.problem.tools}
        url = f"{session.base_url}/chat/completions"
        if is_left:
            with suppress(httpx.TransportError):  # whatever comes of one turn: nobody will ask for a second
                http.post(url, json=body)
            return self.left.append((session.group, member))
        while True:
            said = _asked(http, url, body)
            messages.append(said)
            self.turns += 1
            if not said.get("tool_calls"):
                break
            results = [_result(call) for call in said["tool_calls"]]
            messages += results
        # Exact as a 32-bit number, and of no other member: the store must have this one.
        reward = (len(messages) + member / GROUP_SIZE) / 16
        _finished(session, reward)
        self.acknowledged.append(Acknowledged(session.group, member, reward))
        return None


def _asked(http: httpx.Client, url: str, body: dict[str, Any]) -> dict[str, Any]:
    """The next message, asked for until it is there, as SDKs do: connections break, and a 503 is worth another try."""
    give_up_at = time.monotonic() + PATIENCE_S
    while True:
        with suppress(httpx.TransportError):
            answer = http.post(url, json=body)
            if answer.is_success:
                message: dict[str, Any] = answer.json()["choices"][0]["message"]
                return {name: value for name, value in message.items() if value is not None}
            assert answer.status_code >= 500, f"{answer.status_code} {answer.text[:500]}"
        assert time.monotonic() < give_up_at, f"{url} gives no reply any more"
        time.sleep(_PAUSE_S)  # between two tries, of a condition that is the answer itself


def _finished(session: PlayableSession, reward: float) -> None:
    """Finish until that is acknowledged; the same again changes nothing."""
    give_up_at = time.monotonic() + PATIENCE_S
    while True:
        try:
            session.finish(reward)
            return
        except Unreachable:
            pass
        except Refused as refused:
            if refused.status < 500:
                raise
        assert time.monotonic() < give_up_at, "nobody acknowledges the end of a session any more"
        time.sleep(_PAUSE_S)


def _result(call: dict[str, Any]) -> dict[str, Any]:
    arguments = json.loads(call["function"]["arguments"])
    return {"role": "tool", "content": str(arguments["a"] + arguments["b"]), "tool_call_id": call["id"]}


class AnnouncingTrainer(native_clients.Trainer):
    """Trains every step of a run, with a new policy version behind each, and ends."""

    def __init__(self, url: str, token: str, run: str, *, seed: int, history: Path, weights: Path, steps: int) -> None:
        words = ["trainer", "--url", url, "--run", run, "--token", token, "--number", "1"]
        super().__init__(parser().parse_args([*words, "--history", str(history), "--seed", str(seed)]))
        self.may_train: Callable[[], int] = lambda: 0
        """Steps that may be trained now."""
        self._weights = weights
        self._steps = steps

    def train_all(self) -> None:
        """Until the run's last step is acknowledged, and its end said."""
        while not self.halt.is_set():
            self.act()
        self.http.close()

    def act(self) -> None:
        if self.epoch is None:
            self.register()
        elif self.step == self._steps:
            self._finish()
        elif self.step < self.may_train():
            self.train()
        else:
            self.pause(0.05)

    def acknowledge(self, sha256: str) -> Outcome:
        if (outcome := self._announce(self.step + 1)) is not Outcome.OK:
            return outcome
        return super().acknowledge(sha256)

    def _announce(self, version: int) -> Outcome:
        """The files of a version that only look like weights, and the word that they are there."""
        path = self._weights / f"step_{version}"
        path.mkdir(parents=True, exist_ok=True)
        (path / "config.json").write_text("{}")
        (path / "model.safetensors").write_bytes(b"")
        told = PolicyVersionIn(version=version, path=str(path), manifest_sha256="0" * 64, size_bytes=1)
        return outcome_of(self.http.post("policy-versions", json=msgspec.to_builtins(told), headers=self.fence()))

    def _finish(self) -> None:
        if self.http.post("trainer/finish", headers=self.fence()).is_success:
            self.halt.set()
        else:
            self.pause()
