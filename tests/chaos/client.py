"""What all clients of a storm share: they write down all they ask and hear, and go on until SIGTERM or the run is over.

A client that was killed is started again with the same words and goes on in its history, with new groups.
"""

import argparse
import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from tests.chaos.history import Act, Outcome, Recorder

PAUSE_S = 0.2
"""Before an unknown outcome is asked again."""
Hears = Callable[[httpx.Response], dict[str, Any]]
"""What to write down of an answer that is a success."""


class RunOver(Exception):
    """The run takes nothing more."""


class Client:
    """What all clients share: a connection, dice, a history, and the end."""

    def __init__(self, options: argparse.Namespace, transport: httpx.BaseTransport | None = None) -> None:
        self.options = options
        self.number: int = options.number
        self.dice = random.Random(f"{options.seed}/{options.number}")
        self.history = Recorder(options.history, options.run)
        self.halt = threading.Event()
        self.next_group = self.history.next_group
        self.http = httpx.Client(timeout=options.timeout, trust_env=False, transport=transport)

    def run(self) -> None:
        """Act until told to stop, or until the run is over."""
        signal.signal(signal.SIGTERM, lambda *_: self.halt.set())
        try:
            while not self.halt.is_set():
                self.act()
        except RunOver:
            pass

    def act(self) -> None:
        """One turn."""
        raise NotImplementedError

    def call(self, act: Act, method: str, url: str, hears: Hears, asked: dict[str, Any], **options: Any) -> Outcome:
        """Make one call and write it down; `hears` says what else to write of an answer that is a success.

        Raises RunOver on 410.
        """
        number = self.history.ask(act, **asked)
        detail: dict[str, Any] = {}
        try:
            answer = self.http.request(method, url, **options)
        except httpx.TransportError as error:
            outcome, detail = Outcome.UNKNOWN, {"detail": f"{type(error).__name__}: {error}"[:200]}
        else:
            outcome = outcome_of(answer)
            detail = hears(answer) if outcome is Outcome.OK else {"detail": f"{answer.status_code} {answer.text[:200]}"}
        self.history.hear(number, act, outcome, **detail)
        if outcome is Outcome.FAIL and detail["detail"].startswith("410"):
            raise RunOver
        return outcome

    def pause(self, seconds: float = PAUSE_S) -> None:
        """Wait, or not if it is time to stop."""
        self.halt.wait(self.dice.uniform(0.5, 1.5) * seconds)


def nothing(_answer: httpx.Response) -> dict[str, Any]:
    """A success says no more than that it is one."""
    return {}


def outcome_of(answer: httpx.Response) -> Outcome:
    """Whether what was asked happened. A 429 or a 4xx is a no; a 5xx says nothing."""
    if answer.is_success:
        return Outcome.OK
    return Outcome.UNKNOWN if answer.status_code >= 500 else Outcome.FAIL


def parser() -> argparse.ArgumentParser:
    """Options that every client takes."""
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("kind")
    made.add_argument("--url", required=True, help="of the control plane, or of a proxy before it")
    made.add_argument("--run", required=True)
    made.add_argument("--token", default="")
    made.add_argument("--number", type=int, required=True, help="of this client; no two of a run have the same")
    made.add_argument("--history", type=Path, required=True)
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--group-size", type=int, default=4, help="rollouts per group")
    made.add_argument("--batch-size", type=int, default=32, help="rollouts per step, where the trainer says it")
    made.add_argument("--rate", type=float, default=10.0, help="submissions per second, at most")
    made.add_argument("--timeout", type=float, default=15.0, help="seconds after which an answer is given up")
    return made
