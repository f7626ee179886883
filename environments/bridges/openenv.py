"""openenv: an environment behind a server of OpenEnv, asked through OpenEnv's own clients.

    environments = [{name = "openenv", python = "wordle", args = {
        app = "wordle_env.server.app:app", action = "wordle_env.models:WordleAction", action_field = "guess" }}]

The server is started here, on the loopback of this process, unless `base_url` names one that runs. A problem is a seed,
given to `reset`; the reward of an episode is the sum of the rewards of its steps.
"""

import asyncio
import dataclasses
import json
import time
from importlib import import_module
from typing import Annotated, Any

from msgspec import Meta

from environments.bridges.openenv_server import serve
from environments.bridges.stepped import InvalidAction, Outcome, Stepped, SteppedArgs, figures, named
from environments.errors import ToolError
from environments.types import JsonObject

_FULL_DEADLINE_S = 120.0
"""For a server that serves others to have a place for one more."""
_AGAIN_AFTER_S = 0.05
_MOST_AGAIN_S = 1.0
_MOST_FAULTS = 3
"""Of an action's fields that the policy is told of."""


class OpenEnvArgs(SteppedArgs, frozen=True, kw_only=True):
    """Arguments of openenv."""

    app: Annotated[
        str, Meta(description="The server's ASGI application, as `module:attribute`; it is started in this process.")
    ] = ""
    factory: Annotated[bool, Meta(description="Whether `app` is a function that makes the application.")] = False
    base_url: Annotated[
        str, Meta(description="In place of `app`: the address of a server that this process reaches.")
    ] = ""
    sessions: Annotated[
        int, Meta(ge=1, description="Episodes at a time: at most the `max_concurrent_envs` of the server.")
    ] = 1
    client: Annotated[
        str, Meta(description="The environment's own client class, as `module:Class`; empty: OpenEnv's for any.")
    ] = ""
    action: Annotated[str, Meta(description="The environment's action class, as `module:Class`; empty: any JSON.")] = ""
    action_field: Annotated[
        str,
        Meta(description="Field of the action that the reply's text becomes; empty: the reply is the action in JSON."),
    ] = ""
    observation_field: Annotated[
        str, Meta(description="The one field of an observation that the policy is shown; empty: all of them, in JSON.")
    ] = ""
    reset: Annotated[JsonObject, Meta(description="What `reset` is given besides the seed.")] = {}


class OpenEnvEpisode:
    """One session with the server."""

    def __init__(self, environment: "OpenEnv", seed: int) -> None:
        self._environment = environment
        self._seed = seed
        self._client: Any = None
        self._has_place = False
        self._return = 0.0
        self._is_over = False
        self._metrics: dict[str, float] = {}

    async def start(self) -> str:
        """As `SteppedEpisode.start`."""
        await self._environment.places.acquire()
        self._has_place = True
        give_up_at, again_after_s = time.monotonic() + _FULL_DEADLINE_S, _AGAIN_AFTER_S
        while True:
            self._client = self._environment.new_client()
            try:
                return self._told(await self._client.reset(seed=self._seed, **self._environment.args.reset))
            except Exception as error:
                await self._client.close()
                if not _is_full(error):
                    raise
                if time.monotonic() > give_up_at:
                    raise ToolError(
                        f"the server took no further session for {_FULL_DEADLINE_S:.0f} s ({error}): "
                        "lower `sessions` to its max_concurrent_envs, or raise that"
                    ) from error
            await asyncio.sleep(again_after_s)
            again_after_s = min(2 * again_after_s, _MOST_AGAIN_S)

    async def act(self, action: str) -> str:
        """As `SteppedEpisode.act`."""
        taken = self._environment.read(action)
        try:
            result = await self._client.step(taken)
        except RuntimeError as error:
            if "VALIDATION_ERROR" in str(error):  # the client makes one class of all that a server answers
                raise InvalidAction(f"That is not an action. {self._environment.described()}") from error
            raise
        return self._told(result)

    def outcome(self) -> Outcome:
        """The sum of the rewards so far."""
        return Outcome(self._return, {**self._metrics, "return": self._return}, self._is_over)

    async def close(self) -> None:
        """As `SteppedEpisode.close`."""
        try:
            if self._client is not None:
                await self._client.close()
        finally:
            if self._has_place:
                self._environment.places.release()

    def _told(self, result: Any) -> str:
        self._return += float(result.reward or 0.0)
        self._is_over = bool(result.done)
        observation = _fields(result.observation)
        self._metrics = figures(observation.get("metadata"), "info")
        field = self._environment.args.observation_field
        if not field:
            kept = {key: value for key, value in observation.items() if key not in ("done", "reward", "metadata")}
            return json.dumps(kept, default=str, ensure_ascii=False)
        if field not in observation:
            raise KeyError(f"observation_field {field!r} is not in the observation, which has {', '.join(observation)}")
        value = observation[field]
        return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)


class OpenEnv(Stepped[OpenEnvArgs]):
    """Play an environment of OpenEnv."""

    name = "openenv"
    args_type = OpenEnvArgs
    library = "openenv-core"

    def __init__(self, args: OpenEnvArgs) -> None:
        """Starts the server of `app`. Raises ValueError, which says what does not fit together."""
        super().__init__(args)
        if bool(args.app) == bool(args.base_url):
            raise ValueError("give either app, which is started here, or base_url, of a server that runs already")
        if args.client and not args.action:
            raise ValueError("client needs action: a client of its own takes actions of its own class")
        core = import_module("openenv.core")
        self._client_class = named(args.client, "client") if args.client else core.GenericEnvClient
        self._action_class = named(args.action, "action") if args.action else None
        self._check_action()
        self.places = asyncio.Semaphore(args.sessions)
        self._base_url = args.base_url or serve(named(args.app, "app"), factory=args.factory)

    def new_client(self) -> Any:
        """A client of the server, not connected."""
        return self._client_class(base_url=self._base_url)

    def read(self, text: str) -> Any:
        """The action that a reply means. Raises InvalidAction."""
        if self.args.action_field:
            fields: Any = {self.args.action_field: text}
        else:
            try:
                fields = json.loads(text)
            except (ValueError, RecursionError):
                fields = None
        if not isinstance(fields, dict):
            raise InvalidAction(f"{text[:200]!r} is no JSON object. {self.described()}")
        if self._action_class is None:
            return fields
        try:
            return self._made(fields)
        except (ValueError, TypeError) as error:  # pydantic's ValidationError is a ValueError
            raise InvalidAction(f"That is not an action: {_why(error)}. {self.described()}") from error

    def described(self) -> str:
        """What an action is, in a sentence."""
        if self.args.action_field:
            return "Reply with the action as text, or with <action>...</action>."
        schema = self._schema()
        return "Reply with the action as a JSON object" + (f" of this schema: {json.dumps(schema)}" if schema else ".")

    def _title(self) -> str:
        return self.args.app or self.args.client or self.args.base_url

    def _instructions(self) -> str:
        return self.described()

    def _open(self, seed: int) -> OpenEnvEpisode:
        return OpenEnvEpisode(self, seed)

    def _first(self, seed: int) -> None:
        """A server may have a place for one session alone: not one to look, and another to play."""
        return None

    def _made(self, fields: JsonObject) -> Any:
        assert self._action_class is not None
        validate = getattr(self._action_class, "model_validate", None)
        return validate(fields) if validate else self._action_class(**fields)

    def _schema(self) -> JsonObject | None:
        if self._action_class is None or not hasattr(self._action_class, "model_json_schema"):
            return None
        schema: JsonObject = self._action_class.model_json_schema()
        # Every action has metadata, which is nothing that a policy has to say.
        properties = {name: each for name, each in schema.get("properties", {}).items() if name != "metadata"}
        return {
            "type": "object",
            "properties": properties,
            **{key: each for key, each in schema.items() if key in ("required", "$defs")},
        }

    def _check_action(self) -> None:
        field, action = self.args.action_field, self._action_class
        if action is None or not field:
            return
        known = getattr(action, "model_fields", None)
        if known is None and dataclasses.is_dataclass(action):
            known = {each.name for each in dataclasses.fields(action)}
        if known is not None and field not in known:
            raise ValueError(f"action_field {field!r} is no field of {self.args.action}, which has {', '.join(known)}")


def _why(error: Exception) -> str:
    if not hasattr(error, "errors"):
        return str(error)
    # pydantic's own text has links to its documentation.
    return "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()[:_MOST_FAULTS])


def _fields(observation: Any) -> JsonObject:
    if hasattr(observation, "model_dump"):
        return dict(observation.model_dump(mode="json"))
    if dataclasses.is_dataclass(observation) and not isinstance(observation, type):
        return dataclasses.asdict(observation)
    return dict(observation) if isinstance(observation, dict) else {"observation": observation}


def _is_full(error: Exception) -> bool:
    """Whether a server had no place: it says so and hangs up, and sometimes only the second arrives."""
    return "CAPACITY_REACHED" in str(error) or type(error).__name__.startswith("ConnectionClosed")
