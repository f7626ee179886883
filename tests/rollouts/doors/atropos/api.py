"""A client of one run's Atropos-compatible API, and what its environments and trainers send."""

import asyncio
from typing import Any

import httpx

from rollouts.doors.atropos.app import application
from rollouts.models import Run
from rollouts.states import RunState
from tests.factories import make_run

JsonObject = dict[str, Any]


class Api:
    """Requests as unmodified clients make them, through the ASGI application."""

    def __init__(self, run: Run | None = None) -> None:
        self.run = run or make_external_run()
        self.base = f"http://testserver/atropos/{self.run.address.key}"

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """The answer, whatever its status; errors of the application are raised."""

        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(app=application)  # type: ignore[arg-type]
            async with httpx.AsyncClient(transport=transport) as client:
                return await client.request(method, self.base + path, **options)

        return asyncio.run(ask())

    def get(self, path: str, **options: Any) -> Any:
        """The JSON of a 200."""
        return self._content(self.request("GET", path, **options))

    def post(self, path: str, content: Any) -> Any:
        """The JSON of a 200."""
        return self._content(self.request("POST", path, json=content))

    def _content(self, response: httpx.Response) -> Any:
        assert response.status_code == 200, response.text
        assert response.headers["content-type"] == "application/json"
        return response.json()

    def register(self, **terms: Any) -> JsonObject:
        """A trainer registers."""
        content: JsonObject = self.post("/register", registration(**terms))
        return content

    def start(self, **terms: Any) -> None:
        """A trainer registers and asks for a batch, in vain: environments may register."""
        self.register(**terms)
        assert self.get("/batch") == {"batch": None}

    def register_env(self, name: str = "gsm8k", **values: Any) -> JsonObject:
        """An environment registers."""
        content: JsonObject = self.post("/register-env", introduction(name, **values))
        return content

    def submit(self, **values: Any) -> JsonObject:
        """An environment sends a group."""
        content: JsonObject = self.post("/scored_data", item(**values))
        return content

    def status_env(self, env_id: int) -> JsonObject:
        """As Atropos' environments ask for it: a body on a GET."""
        content: JsonObject = self.get("/status-env", json={"env_id": env_id})
        return content


def make_external_run(**columns: Any) -> Run:
    """A run whose trainer and environments come from outside. Its address is for clients that reset by GET."""
    columns = {"state": RunState.STARTING, "epoch": 0, "live_version": -1} | columns
    run = make_run(preset="external-trainer", **columns)
    run.address.resets_on_get = True
    run.address.save()
    return run


def registration(**terms: Any) -> JsonObject:
    """What a trainer sends."""
    return {
        "wandb_group": "group",
        "wandb_project": "project",
        "batch_size": 4,
        "max_token_len": 512,
        "checkpoint_dir": "/checkpoints",
        "save_checkpoint_interval": 10,
        "starting_step": 0,
        "num_steps": 100,
        **terms,
    }


def introduction(name: str = "gsm8k", **values: Any) -> JsonObject:
    """What an environment sends."""
    return {"max_token_length": 512, "desired_name": name, "weight": 1.0, "group_size": 2, **values}


def item(*, size: int = 2, tag: int = 7, length: int = 3, **values: Any) -> JsonObject:
    """A group of ``size`` sequences, of which the last tokens are trained on."""
    tokens = [[tag, *range(10, 9 + length)] for _ in range(size)]
    return {
        "tokens": tokens,
        "masks": [[-100, *row[1:]] for row in tokens],
        "scores": [float(index % 2) for index in range(size)],
        "env_id": None,
        **values,
    }


def tags(batch: list[JsonObject]) -> list[int]:
    """The tags of a batch's groups, in its order."""
    return [each["tokens"][0][0] for each in batch]
