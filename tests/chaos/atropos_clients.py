"""Environments and trainers of a run over the Atropos-compatible API, which knows no keys, steps or acknowledgements.

    python -m tests.chaos.atropos_clients environment|trainer --url ATROPOS_URL --run KEY --number N --history FILE

Groups are told apart by their first tokens, batches by their bytes. Each goes on until SIGTERM or the end of the run.
"""

import argparse
import gzip
import hashlib
import json
from typing import Any

import httpx

from environments.types import PlayedGroup
from tests.chaos.client import Client, nothing, parser
from tests.chaos.history import Act, Outcome
from tests.chaos.load import make_group, sent

IGNORED = -100
"""In a mask: not trained on."""
PROMPT_LOGPROB = 1.0
"""What environments send where nothing was sampled."""


class Environment(Client):
    """Registers, then sends its groups alone or in lists, plain or compressed, and now and then once more."""

    def __init__(self, options: argparse.Namespace, transport: httpx.BaseTransport | None = None) -> None:
        super().__init__(options, transport)
        self.env_id: int | None = None

    def act(self) -> None:
        if self.env_id is None:
            self.introduce()
            return
        count = self.dice.choice([1, 1, 1, 3])
        size = self.options.group_size
        groups = [make_group(self.number, self.next_group + at, rollouts=size) for at in range(count)]
        self.next_group += count
        if self.submit(groups) is Outcome.UNKNOWN:
            self.pause()
            if self.dice.random() < 0.5:
                self.submit(groups)  # there is no key: it may be stored twice now, but not more often
        self.halt.wait(self.dice.expovariate(self.options.rate))

    def introduce(self) -> None:
        """Ask to take part until a trainer has started. Not in the history: nothing depends on it."""
        introduction = {"max_token_length": 512, "desired_name": f"outside-{self.number}", "weight": 1.0}
        try:
            answer = self.http.post(
                f"{self.options.url}/register-env", json={**introduction, "group_size": self.options.group_size}
            )
        except httpx.TransportError:
            return self.pause()
        if answer.is_success and answer.json()["status"] == "success":
            self.env_id = answer.json()["env_id"]
        else:
            self.pause(1.0)

    def submit(self, groups: list[PlayedGroup]) -> Outcome:
        items = [{**_item(group), "env_id": self.env_id} for group in groups]
        path, content = ("scored_data", items[0]) if len(items) == 1 else ("scored_data_list", items)
        body, headers = json.dumps(content).encode(), {"Content-Type": "application/json"}
        if self.dice.random() < 0.5:
            body, headers = gzip.compress(body), {**headers, "Content-Encoding": "gzip"}
        return self.call(
            Act.SUBMIT,
            "POST",
            f"{self.options.url}/{path}",
            nothing,
            {"groups": [sent(group, keyed=False) for group in groups]},
            content=body,
            headers=headers,
        )


class Trainer(Client):
    """Registers and asks for batches. To ask again is to acknowledge."""

    def __init__(self, options: argparse.Namespace, transport: httpx.BaseTransport | None = None) -> None:
        super().__init__(options, transport)
        self.is_registered = False

    def act(self) -> None:
        if not self.is_registered:
            self.register()
        elif self.fetch() is None:
            self.pause()

    def register(self) -> None:
        terms = {
            "wandb_group": "",
            "wandb_project": "",
            "batch_size": self.options.batch_size,
            "max_token_len": 512,
            "checkpoint_dir": "/checkpoints",
            "save_checkpoint_interval": 0,
            "starting_step": 0,
            "num_steps": 1_000_000,
        }
        # Epochs are none of this protocol: whoever registers joins those who did.
        outcome = self.call(Act.REGISTER, "POST", f"{self.options.url}/register", nothing, {}, json=terms)
        self.is_registered = outcome is Outcome.OK
        if not self.is_registered:
            self.pause()

    def fetch(self) -> str | None:
        """The hash of the body received; None when there was no batch."""
        received: list[str] = []

        def hears(answer: httpx.Response) -> dict[str, Any]:
            batch = answer.json()["batch"]
            if not batch:
                return {}
            received.append(hashlib.sha256(answer.content).hexdigest())
            return {"sha256": received[0], "markers": [tuple(item["tokens"][0][:2]) for item in batch]}

        self.call(Act.FETCH, "GET", f"{self.options.url}/batch", hears, {})
        return received[0] if received else None


def _item(group: PlayedGroup) -> dict[str, Any]:
    """The group as Atropos' environments send it."""
    rollouts = group.rollouts
    return {
        "tokens": [each.token_ids for each in rollouts],
        "masks": [
            [token if trained else IGNORED for token, trained in zip(each.token_ids, each.loss_mask, strict=True)]
            for each in rollouts
        ],
        "inference_logprobs": [
            [
                logprob if trained else PROMPT_LOGPROB
                for logprob, trained in zip(each.inference_logprobs, each.loss_mask, strict=True)
            ]
            for each in rollouts
        ],
        "scores": [each.reward for each in rollouts],
    }


if __name__ == "__main__":
    chosen = parser().parse_args()
    {"environment": Environment, "trainer": Trainer}[chosen.kind](chosen).run()
