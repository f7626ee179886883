"""The tasks of one split of a taskset, and verifiers' episodes of them.

Imports verifiers: for its virtual environment alone.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import renderers
import verifiers.v1 as vf  # type: ignore[import-not-found]
from verifiers.v1.dialects.chat import message_to_wire  # type: ignore[import-not-found]

from environments.bridges.verifiers_seats import NOT_HERE, Composition, untrained
from environments.env import SessionAddress
from environments.errors import BudgetError, PolicyError, PolicyUnavailable, ToolError
from environments.types import JsonObject, Message, Problem, Split

_KEYLESS = "ROLLYARD_NO_KEY"
"""A variable that nobody sets: an address has its key in it, and verifiers would look for one of its hub."""
_MODEL = "policy"
_MOST_TRACEBACK = 2_000
_NOT_SCORED = ("finalize_timeout", "scoring_timeout")
"""How a trace may have been stopped. One that the policy's own time ran out on is scored as it is."""


class VerifiersFault(Exception):
    """An error that verifiers recorded. Its class has the name of the recorded one."""

    remote_traceback = ""


class SplitTasks:
    """The tasks of a split, and who plays them. Belongs to one event loop once it has played."""

    def __init__(
        self,
        composition: Composition,
        split: Split,
        wanted: JsonObject,
        *,
        elsewhere: bool,
        belongs: Callable[[str], bool],
        max_concurrency: int,
    ) -> None:
        """`wanted` is verifiers' `select`; of what it names, the tasks whose key `belongs` are of the split.

        Raises ValueError.
        """
        tasks = _selected(composition.env.taskset, wanted, elsewhere=elsewhere)
        own = [(task, key) for task, key in zip(tasks, _keys(tasks), strict=True) if belongs(key)]
        self.tasks = [task for task, _ in own]
        self._keys = [key for _, key in own]
        self._split = split
        self._composition = composition
        self._gate = asyncio.Semaphore(max_concurrency)
        self._starting = asyncio.Lock()
        self._served = contextlib.AsyncExitStack()
        self._is_served = False

    def problem(self, index: int) -> Problem:
        """Task `index`, as a problem. Raises ValueError for a prompt that is no text."""
        data = self.tasks[index].data
        messages = [Message("system", data.system_prompt)] if data.system_prompt else []
        if isinstance(data.prompt, str):
            messages.append(Message("user", data.prompt))
        else:
            messages += [_message(message_to_wire(each)) for each in data.prompt or ()]
        return Problem(
            key=self._keys[index],
            messages=messages,
            data={"split": str(self._split), "index": index},
            tools=self._composition.tools,
        )

    async def play(self, problem: Problem, asking: Any) -> JsonObject:
        """Have verifiers play an episode; returns its outcome. Raises what broke it, ValueError."""
        index = problem.data["index"]
        if index >= len(self._keys) or self._keys[index] != problem.key:
            raise ValueError(f"task {index} is not {problem.key} here: the taskset has others each time it is loaded")
        return outcome(await self._episode(self.tasks[index], asking), self._composition.seats)

    async def _episode(self, task: Any, asking: Any) -> Any:
        """An episode of verifiers. What went wrong is in it, but for what cannot be one rollout: raises ValueError."""
        plays, refusals = 0, list[ValueError]()
        seats = self._composition.seats

        def check(trace: Any) -> None:
            """Before a seat plays. What this raises ends the episode, in whatever its environment makes of it."""
            nonlocal plays
            seat = trace.agent.name
            plays += seat in seats
            if seat in seats and not trace.agent.trainable:
                refusals.append(ValueError(untrained(seat)))
            elif seat in seats and plays > 1 and not self._composition.shared:
                refusals.append(
                    ValueError(
                        f"seat {seat!r} plays several times in an episode, and a rollout has one reward; with seats: "
                        "shared their mean reward trains each"
                    )
                )
            if refusals:
                raise refusals[0]

        env = self._composition.env
        async with self._gate:
            async with self._starting:
                if not self._is_served:
                    await self._served.enter_async_context(env.serving())
                    # A server of verifiers for all episodes would keep a client for every address it ever saw.
                    env._interception = None
                    self._is_served = True
            episode = await env.run_episode(task, asking, on_trace=check)
        if refusals:
            raise refusals[0]
        return episode


class Asking:
    """How verifiers asks the policy: with its client for providers, or with its client for training."""

    def __init__(self, client: str, tokenizer: Path, renderer: str) -> None:
        """`tokenizer` and `renderer` are for `train`, which makes tokens itself. Raises ValueError."""
        self._config: JsonObject = {"api_key_var": _KEYLESS}
        self._client = vf.EvalClientConfig
        if client == "train":
            self._client = vf.TrainClientConfig
            self._config |= {"renderer": _renderer(renderer), "renderer_model_name": str(tokenizer)}
            if not (tokenizer / "tokenizer.json").is_file():
                raise ValueError(f"tokenizer: {tokenizer} holds no tokenizer.json that this environment can read")

    def at(self, address: SessionAddress) -> Any:
        """The same at a session, as verifiers wants it."""
        return vf.ModelContext(_MODEL, self._client(base_url=address.base_url, **self._config))


def _renderer(name: str) -> Any:
    try:
        config = renderers.config_from_name(name)
    except (KeyError, ValueError) as error:
        raise ValueError(f"renderer: renderers knows none named {name!r}") from error
    if config is not None and "thinking_retention" in type(config).model_fields:
        # By default a further question drops the reasoning behind, and with it tokens that were sampled.
        config = config.model_copy(update={"thinking_retention": "all"})
    return config


def outcome(episode: Any, seats: Sequence[str]) -> JsonObject:
    """What an episode is scored with: `reward` and `metrics`, or the arguments of `classed` as `fault`.

    Raises the error of an episode that broke before verifiers scored it.
    """
    traces = [trace for trace in episode.traces if trace.agent.name in seats]
    broken = [trace for trace in episode.traces if not trace.ok]
    if episode.errors or broken:
        error = episode.last_error or broken[-1].last_error
        fault = {
            "kind": error.type,
            "message": error.message,
            "traceback": (error.traceback or "")[-_MOST_TRACEBACK:],
            "status": error.status_code,
        }
        if not episode.errors and broken[-1].timing.scoring.start:
            return {"fault": fault}
        if episode.is_timeout:
            raise BudgetError(error.message)
        raise classed(**fault)
    for trace in traces:
        # To verifiers such a trace is fine, and its reward is the sum of what there is.
        if trace.stop_condition in _NOT_SCORED or None in trace.rewards.values():
            message = f"verifiers ended it by {trace.stop_condition} before it was scored"
            return {"fault": {"kind": "TimeoutError", "message": message, "traceback": "", "status": None}}
    return {"reward": sum(trace.reward for trace in traces) / len(traces), "metrics": _metrics(traces)}


def classed(kind: str, message: str, traceback: str, status: int | None) -> Exception:
    """An error that verifiers recorded, as one of ours where it is not the taskset's code that has to be mended."""
    if kind == "ProviderError":
        return (PolicyUnavailable if status in (503, 504) else PolicyError)(f"{kind}: {message}")
    if kind in ("ToolsetError", "SandboxError"):
        return ToolError(f"{kind}: {message}")
    name = kind if kind.isidentifier() else "VerifiersFault"
    fault: Exception = type(name, (VerifiersFault,), {"remote_traceback": traceback})(message)
    return fault


def _selected(taskset: Any, wanted: JsonObject, *, elsewhere: bool) -> list[Any]:
    view = taskset.select(vf.SelectConfig.model_validate(wanted))
    if not view.bounded:
        raise ValueError(
            f"{type(taskset).__name__} has tasks without end: say how many, as in "
            'splits: {"train": {"select": {"limit": 1000}}, "eval": {"select": {"skip": 1000, "limit": 100}}}'
        )
    tasks = list(view)
    for task in () if elsewhere else tasks:
        if task.data.image or task.data.network_block or "*" not in task.data.network_allow:
            wish = f"the image {task.data.image!r}" if task.data.image else "a network with rules"
            raise ValueError(f"task {task.data.idx} wants {wish}: {NOT_HERE}")
    return tasks


def _keys(tasks: Sequence[Any]) -> list[str]:
    """Their own ids where all have different ones, else what verifiers knows them by."""
    ids = [task.data.id for task in tasks]
    if all(ids) and len(set(ids)) == len(ids):
        return ids
    return [str(task.key) for task in tasks]


def _message(wire: JsonObject) -> Message:
    content = wire.get("content")
    if isinstance(content, list) and any(part.get("type") != "text" for part in content):
        raise ValueError("a prompt has an image: sessions take text")
    return msgspec.convert({key: value for key, value in wire.items() if value is not None}, Message)


def _metrics(traces: Sequence[Any]) -> dict[str, float]:
    """The parts of the reward, weighted as they are in it, and the metrics; of several seats, means by seat."""
    found: dict[str, list[float]] = {}
    for trace in traces:
        prefix = f"{trace.agent.name}/" if len(traces) > 1 else ""
        parts = {f"{prefix}reward/{name}": part.value for name, part in trace.rewards.items() if part is not None}
        figures = {f"{prefix}{name}": value for name, value in trace.metrics.items() if value is not None}
        for name, value in (parts | figures).items():
            found.setdefault(name, []).append(float(value))
    return {name: sum(values) / len(values) for name, values in found.items()}
