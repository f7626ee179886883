"""Submitters and trainers of a run over the native API.

python -m tests.chaos.native_clients submitter|trainer --url URL --run KEY --token TOKEN --number N --history FILE
"""

import argparse
import hashlib
from collections.abc import Callable
from typing import Any

import httpx
import msgspec

from environments.types import PlayedGroup
from tests.chaos.client import Client, nothing, parser
from tests.chaos.history import Act, Outcome
from tests.chaos.load import make_group, packed, sent
from trainers.wire import EPOCH_HEADER, MSGPACK

OLD_VERSIONS = 3
"""So many versions more than the limit a submitter lags at most."""
FORMATS: list[tuple[str, Callable[[list[PlayedGroup]], bytes]]] = [
    ("application/json", msgspec.json.encode),
    (MSGPACK, msgspec.msgpack.encode),
    (MSGPACK, lambda groups: msgspec.msgpack.encode([packed(group) for group in groups])),
]


class Native(Client):
    """A client with a token."""

    def __init__(self, options: argparse.Namespace, transport: httpx.BaseTransport | None = None) -> None:
        super().__init__(options, transport)
        self.http.base_url = httpx.URL(f"{options.url}/api/v1/runs/{options.run}/")
        self.http.headers["Authorization"] = f"Token {options.token}"

    def look(self) -> tuple[int, int] | None:
        """(next step, most off-policy steps) of the run; None while nobody answers."""
        try:
            answer = self.http.get(f"{self.options.url}/api/v1/runs/{self.options.run}")
        except httpx.TransportError:
            return None
        if not answer.is_success:
            return None
        run = answer.json()
        return run["step"], run["config"]["algorithm"]["max_off_policy_steps"]


class Submitter(Native):
    """Sends groups of its own, one or a few at a time, in JSON or MessagePack, and again until it knows of them."""

    def __init__(self, options: argparse.Namespace, transport: httpx.BaseTransport | None = None) -> None:
        super().__init__(options, transport)
        self.version = 0

    def act(self) -> None:
        if self.next_group % 16 == 0 and (seen := self.look()):
            # Now and then older than the limit allows: such groups are stored, and must not be trained on.
            self.version = max(0, seen[0] - self.dice.choice([0, 0, 0, 1, seen[1], seen[1] + OLD_VERSIONS]))
        count = self.dice.choice([1, 1, 1, 2, 5])
        groups = [
            make_group(self.number, self.next_group + at, rollouts=self.options.group_size, version=self.version)
            for at in range(count)
        ]
        self.next_group += count
        while self.submit(groups) is Outcome.UNKNOWN and not self.halt.is_set():
            if self.dice.random() < 0.05:
                break  # nobody will ever tell what became of them
            self.pause()
        if self.dice.random() < 0.05:
            self.submit(groups)  # whatever became of it, it may be sent again
        self.halt.wait(self.dice.expovariate(self.options.rate))

    def submit(self, groups: list[PlayedGroup]) -> Outcome:
        media_type, encode = self.dice.choice(FORMATS)
        return self.call(
            Act.SUBMIT,
            "POST",
            "groups",
            nothing,
            {"groups": [sent(group) for group in groups]},
            content=encode(groups),
            headers={"Content-Type": media_type},
        )


class Trainer(Native):
    """Registers, trains steps for a while, pauses while others take over, finds out, registers again."""

    def __init__(self, options: argparse.Namespace, transport: httpx.BaseTransport | None = None) -> None:
        super().__init__(options, transport)
        self.epoch: int | None = None
        self.step = 0

    def act(self) -> None:
        if self.epoch is None:
            self.register()
        elif self.dice.random() < 0.02:
            self.pause(2.0)  # as if it hung: whoever registers meanwhile makes a zombie of it
        else:
            self.train()

    def register(self) -> None:
        def hears(answer: httpx.Response) -> dict[str, Any]:
            self.epoch = answer.json()["epoch"]
            return {"epoch": self.epoch}

        body = {"world_size": 1, "hostname": "chaos", "pid": self.number}
        if self.call(Act.REGISTER, "POST", "trainer", hears, {}, json=body) is not Outcome.OK:
            self.pause()
        self.find_step()

    def find_step(self) -> None:
        while not self.halt.is_set() and (seen := self.look()) is None:
            self.pause()
        self.step = seen[0] if not self.halt.is_set() and seen else self.step

    def train(self) -> None:
        sha256 = self.fetch()
        if sha256 and self.dice.random() < 0.1:
            sha256 = self.fetch() or sha256
        if not sha256 or self.epoch is None:
            return
        while not self.halt.is_set():
            outcome = self.acknowledge(sha256)
            if outcome is Outcome.OK:
                self.step += 1
                return
            if outcome is Outcome.FAIL:
                return self.give_way()
            self.pause()

    def acknowledge(self, sha256: str) -> Outcome:
        asked = {"epoch": self.epoch, "step": self.step, "sha256": sha256}
        body = {"metrics": {"loss/mean": self.dice.random()}, "batch_sha256": sha256}
        return self.call(Act.ACK, "POST", f"steps/{self.step}", nothing, asked, json=body, headers=self.fence())

    def fetch(self) -> str | None:
        """The hash of the body received, which must be the one that was promised; None when there was none."""
        received: list[str] = []

        def hears(answer: httpx.Response) -> dict[str, Any]:
            if answer.status_code == httpx.codes.NO_CONTENT:
                return {"step": self.step}
            received.append(hashlib.sha256(answer.content).hexdigest())
            return {"step": self.step, "sha256": received[0]}

        asked = {"epoch": self.epoch, "step": self.step}
        url = f"batches/{self.step}"
        outcome = self.call(Act.FETCH, "GET", url, hears, asked, params={"wait_s": 2}, headers=self.fence())
        if outcome is Outcome.FAIL:
            self.give_way()
        elif outcome is Outcome.UNKNOWN:
            self.pause()
        return received[0] if received else None

    def give_way(self) -> None:
        """Somebody else registered. Let it work before taking over again."""
        self.epoch = None
        self.pause(3.0)

    def fence(self) -> dict[str, str]:
        return {EPOCH_HEADER: str(self.epoch)}


if __name__ == "__main__":
    chosen = parser().parse_args()
    {"submitter": Submitter, "trainer": Trainer}[chosen.kind](chosen).run()
