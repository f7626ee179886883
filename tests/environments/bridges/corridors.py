"""Environments of Gymnasium for the tests: one speaks, one begins otherwise each time, one cannot be written."""

import itertools
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

_starts = itertools.count()


class Corridor(gymnasium.Env[Any, Any]):
    """Walk to the end of a corridor whose length the seed chose, by words."""

    observation_space = spaces.Dict(
        {"seen": spaces.Text(40, charset="abcdefghijklmnopqrstuvwxyz 0123456789"), "left": spaces.Box(0, 9, (1,))}
    )
    action_space = spaces.Dict({"word": spaces.Text(8), "steps": spaces.MultiDiscrete([3, 2])})

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._left = 2 + (seed or 0) % 3
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        if action["word"] == "crash":
            raise RuntimeError("the ceiling came down")
        if action["word"] == "sleep":
            time.sleep(0.5)
        self._left -= int(action["steps"].sum())
        is_out = self._left <= 0
        return self._seen(), 1.0 if is_out else -0.1, is_out, False, {"bonus": np.float32(0.5), "note": "none"}

    def _seen(self) -> Any:
        return {"seen": f"{self._left} to go", "left": np.array([self._left / 3], dtype=np.float32)}


class Restless(Corridor):
    """Begins otherwise each time."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=next(_starts))


class Picture(Corridor):
    """Is seen as pixels."""

    observation_space = spaces.Box(0, 255, (64, 64, 3), np.uint8)


class Listing(Corridor):
    """Takes as many actions as one likes."""

    action_space = spaces.Sequence(spaces.Discrete(2))


for _made in (Corridor, Restless, Picture, Listing):
    gymnasium.register(f"{_made.__name__}-v0", entry_point=_made, disable_env_checker=True)
