"""gymnasium: any Gymnasium environment whose observations and actions can be written as text.

    environments = [{name = "gymnasium", python = "gymnasium", args = {id = "FrozenLake-v1", observe = "render"}}]

A problem is a seed. The reward of an episode is its return: the sum of the rewards of its steps.
"""

import re
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any, Literal

from msgspec import Meta

from environments.bridges import spaces
from environments.bridges.stepped import Outcome, OwnThread, Stepped, SteppedArgs, figures
from environments.types import JsonObject

_HIGHLIGHT = re.compile("\x1b\\[0?m"), re.compile("\x1b\\[[0-9;]+m")
"""How a terminal ends and begins a colour, which in a drawing often says where one is."""


class GymnasiumArgs(SteppedArgs, frozen=True, kw_only=True):
    """Arguments of gymnasium."""

    id: Annotated[str, Meta(min_length=1, description="Id of the environment, as `gymnasium.make` takes it.")]
    options: Annotated[JsonObject, Meta(description="Further arguments of `gymnasium.make`.")] = {}
    module: Annotated[str, Meta(description="Module to import first, because it registers the id.")] = ""
    observe: Annotated[
        Literal["observation", "render"],
        Meta(description="What the policy is shown: the observation, or what render mode `ansi` draws."),
    ] = "observation"
    action_names: Annotated[
        list[str], Meta(description="Names of the actions of a Discrete space, in order; they are what is replied.")
    ] = []


class GymnasiumEpisode:
    """One episode of a Gymnasium environment."""

    def __init__(self, make: Callable[[], Any], seed: int, args: GymnasiumArgs) -> None:
        self._make = make
        self._seed = seed
        self._args = args
        self._thread = OwnThread()
        self._made: Any = None
        self._return = 0.0
        self._metrics: dict[str, float] = {}
        self._is_over = False

    async def start(self) -> str:
        """As `SteppedEpisode.start`."""
        return await self._thread.run(self._start)

    async def act(self, action: str) -> str:
        """As `SteppedEpisode.act`."""
        taken = spaces.read(self._made.action_space, action, self._args.action_names)
        return await self._thread.run(self._act, taken)

    def outcome(self) -> Outcome:
        """The return so far."""
        return Outcome(self._return, {**self._metrics, "return": self._return}, self._is_over)

    async def close(self) -> None:
        """As `SteppedEpisode.close`."""
        self._thread.end(self._close)

    def _close(self) -> None:
        if self._made is not None:
            self._made.close()

    def _start(self) -> str:
        self._made = self._make()
        observation, _ = self._made.reset(seed=self._seed)
        return self._shown(observation)

    def _act(self, action: Any) -> str:
        observation, reward, terminated, truncated, info = self._made.step(action)
        self._return += float(reward)
        self._is_over = bool(terminated or truncated)
        self._metrics = {"terminated": float(terminated), "truncated": float(truncated), **figures(info, "info")}
        return self._shown(observation)

    def _shown(self, observation: Any) -> str:
        if self._args.observe == "observation":
            return spaces.written(self._made.observation_space, observation)
        end, begin = _HIGHLIGHT
        return begin.sub("[", end.sub("]", str(self._made.render()))).strip("\n")


class GymnasiumText(Stepped[GymnasiumArgs]):
    """Play an environment of Gymnasium."""

    name = "gymnasium"
    args_type = GymnasiumArgs
    library = "gymnasium"

    def __init__(self, args: GymnasiumArgs) -> None:
        """Raises ValueError, which names the space that cannot be mapped, or what cannot be made."""
        super().__init__(args)
        self._library = import_module("gymnasium")
        try:
            if args.module:
                import_module(args.module)
            made = self._make()
        except Exception as error:
            raise ValueError(f"gymnasium.make({args.id!r}) failed: {type(error).__name__}: {error}") from error
        try:
            self._action_space = made.action_space
            spaces.check(self._action_space, "the action space")
            if args.observe == "observation":
                spaces.check(made.observation_space, "the observation space")
            self._check_names()
        finally:
            made.close()

    def _title(self) -> str:
        return self.args.id

    def _instructions(self) -> str:
        action = spaces.described(self._action_space, self.args.action_names)
        return f"{action} Reply with <action>...</action>."

    def _open(self, seed: int) -> GymnasiumEpisode:
        return GymnasiumEpisode(self._make, seed, self.args)

    def _make(self) -> Any:
        drawn = {"render_mode": "ansi"} if self.args.observe == "render" else {}
        return self._library.make(self.args.id, **drawn, **self.args.options)

    def _check_names(self) -> None:
        names, space = self.args.action_names, self._action_space
        if names and not isinstance(space, self._library.spaces.Discrete):
            raise ValueError(f"action_names are for a Discrete space, and the action space is {space}")
        if names and (len(names) != space.n or len(set(names)) != len(names)):
            raise ValueError(f"action_names has to have {space.n} different names, it has {len(names)}")
