"""An environment of verifiers, composed so that it plays in this process: who sits where, and what is refused.

Imports verifiers: for its virtual environment alone. What would leave the room is refused by name, when it is made.
"""

import asyncio
import hashlib
import importlib.metadata
import os
import sys
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import verifiers.v1 as vf  # type: ignore[import-not-found]
from mcp.server.mcpserver import MCPServer  # type: ignore[import-not-found,unused-ignore]
from verifiers.v1.configs.agent import agent_config_fields  # type: ignore[import-not-found]

from environments.bridges.verifiers_chat import HARNESS
from environments.types import JsonObject

_CHATS = (HARNESS, "null")
"""Programs that only talk and call tools: the second is verifiers' own, for which uv makes an environment."""
NOT_HERE = (
    "not in a room, where the chat loop and its tool servers are all there is; with elsewhere: true it is let, and has "
    "to find there what it needs"
)
"""Why something is refused."""

T = TypeVar("T")


class Composition:
    """A taskset, and the seats that play it."""

    def __init__(self, taskset_id: str, config: JsonObject, *, elsewhere: bool, shared: bool) -> None:
        """`config` is the `env` block of verifiers; `elsewhere` lets it leave the room, `shared` have several seats.

        Raises ValueError for what cannot be played here, and whatever the taskset's own code raises.
        """
        try:
            kind = vf.env_config_type(taskset_id, config.get("id", ""))
            program = vf.default_harness_id(taskset_id)
            block = dict(config) | {"taskset": dict(config.get("taskset", {})) | {"id": taskset_id}}
            for seat, default in agent_config_fields(kind.model_construct()).items():
                block[seat] = _placed(seat, default, dict(config.get(seat, {})), program, elsewhere=elsewhere)
            self.env = vf.load_environment(kind.model_validate(block))
        except ModuleNotFoundError as error:
            raise ValueError(
                f"id {taskset_id!r}: {error} The package of a taskset, also of one on a hub, is installed where the "
                "environment runs, by rollyard envs install verifiers --with PACKAGE; its id is the name of its module"
            ) from error
        taskset = self.env.taskset
        toolsets = [
            *type(taskset).toolsets(taskset.config),
            *type(taskset).task_type().toolsets(taskset.config.task),
        ]
        if not elsewhere:
            _refuse_elsewhere(self.env, toolsets)
        self.shared = shared
        specs = agent_config_fields(self.env.config)
        self.seats = [seat for seat, spec in specs.items() if spec.client is None and spec.model is None]
        """Those that the policy plays."""
        for seat in self.seats:
            _refuse_retries(seat, specs[seat].retries)
        if len(specs) > 1:
            self._check_seats()
        self.tools = _listed(toolsets)
        """What the policy may call, as far as it is known before a tool server runs."""

    def _check_seats(self) -> None:
        name = f"environment {self.env.config.env_id!r}"
        if not self.seats:
            raise ValueError(f"{name}: each of its seats has a model of its own, the policy plays none")
        if len(self.seats) > 1 and not self.shared:
            raise ValueError(
                f"{name} has the seats {', '.join(self.seats)}, and a rollout has one reward; with seats: shared the "
                "policy plays all of them, and their mean reward trains each"
            )
        seats = vf.Agents(self.env.config, lambda seat, spec: SimpleNamespace(name=seat, config=spec, trainable=True))
        try:
            in_own_loop(self.env.setup(seats))
        except Exception:  # noqa: BLE001 - it wants more of a seat than its name: what it trains shows when it plays
            return
        for seat in self.seats:
            if not getattr(seats, seat).trainable:
                raise ValueError(untrained(seat))


def module_of(name: str) -> str:
    """The id of a taskset as verifiers takes it; of a directory, which becomes importable, here and in tool servers.

    A directory is a package itself, or holds the package or module of its own name. Raises ValueError.
    """
    directory = _directory(name)
    if directory is None:
        return name
    if not directory.is_dir():
        raise ValueError(f"id: there is no directory {directory} where this environment runs")
    place = str(directory.parent if (directory / "__init__.py").is_file() else directory)
    if place not in sys.path:
        sys.path.insert(0, place)
        known = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join([place, *([known] if known else [])])
    return directory.name


def version_of(name: str) -> str:
    """Of verifiers and of the taskset: another one may mean other tasks or other scores."""
    own = f"verifiers {importlib.metadata.version('verifiers')}"
    if directory := _directory(name):
        digest = hashlib.sha256()
        for path in sorted(directory.rglob("*.py")):
            digest.update(path.relative_to(directory).as_posix().encode() + b"\0" + path.read_bytes())
        return f"{own}, {directory.name} {digest.hexdigest()[:12]}"
    module = name.rsplit("/", 1)[-1].partition("@")[0].replace("-", "_").lower()
    for package in importlib.metadata.packages_distributions().get(module.partition(".")[0], ()):
        if package != "verifiers":
            return f"{own}, {package} {importlib.metadata.version(package)}"
    return own


def in_own_loop(work: Coroutine[Any, Any, T]) -> T:
    """What a coroutine gives, for whoever cannot wait for it."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


def untrained(seat: str) -> str:
    """Why the policy may not play a seat that its environment holds fixed."""
    return (
        f"seat {seat!r} is not to be trained, and whatever is sampled at a session's address is: give it a model of "
        f'its own, with elsewhere: true and args: {{"{seat}": {{"model": ..., "client": ...}}}}'
    )


def _directory(name: str) -> Path | None:
    path = Path(name).expanduser()
    return path.resolve() if name.startswith((".", "/", "~")) or path.is_dir() else None


def _placed(seat: str, default: Any, given: JsonObject, program: str, *, elsewhere: bool) -> JsonObject:
    """The config of a seat: the chat loop in this process, unless something else was asked for."""
    chosen: JsonObject = given.get("harness") or {}
    wanted = chosen.get("id") or (default.harness.id if default.harness is not None else "")
    if not wanted and program != "bash":
        wanted = program  # the taskset's own; of all others verifiers' default is a shell
    declares_place = "runtime" in default.model_fields_set
    place = (given.get("runtime") or {}).get("type") or (default.runtime.type if declares_place else "subprocess")
    if not elsewhere and wanted and wanted not in _CHATS:
        raise ValueError(f"seat {seat!r} is played by the program {wanted!r}: {NOT_HERE}")
    if not elsewhere and place != "subprocess":
        raise ValueError(f"seat {seat!r} is played in a runtime of type {place!r}: {NOT_HERE}")
    placed = dict(given)
    if not wanted or wanted in _CHATS:
        known = default.harness.model_dump() if default.harness is not None else {}
        placed["harness"] = known | chosen | {"id": HARNESS}
    if "runtime" not in given and not declares_place:
        placed["runtime"] = {"type": "subprocess"}
    return placed


def _refuse_elsewhere(env: Any, toolsets: Sequence[Any]) -> None:
    """Raise ValueError for what would start or ask something outside of this process and its children."""
    task = type(env.taskset).task_type()
    if task.NEEDS_CONTAINER:
        raise ValueError(f"tasks of type {task.__name__} need a container: {NOT_HERE}")
    for toolset in toolsets:
        if toolset.config.url:
            raise ValueError(f"tool server {toolset.server_name!r} is at {toolset.config.url}: {NOT_HERE}")
        if (place := toolset.config.runtime.type) != "subprocess":
            raise ValueError(f"tool server {toolset.server_name!r} runs in a runtime of type {place!r}: {NOT_HERE}")
    if judges := env.taskset.config.task.judges:
        raise ValueError(f"judge {judges[0].id!r} asks a model of its own: {NOT_HERE}")
    for seat, spec in agent_config_fields(env.config).items():
        if spec.client is not None or spec.model is not None:
            raise ValueError(f"seat {seat!r} has a model of its own: {NOT_HERE}")


def _refuse_retries(seat: str, retries: Any) -> None:
    """Raise ValueError where verifiers would play a seat again: what it sampled before is of the same rollout."""
    if retries.max_retries or any(rule.max_retries for rule in retries.rules):
        raise ValueError(
            f"seat {seat!r} has retries, and what a try that broke has sampled would train with the next one's reward. "
            f'Leave them out, or say args: {{"{seat}": {{"retries": {{"max_retries": 0, "rules": []}}}}}}: what breaks '
            "costs its own rollout alone"
        )


def _listed(toolsets: Sequence[Any]) -> list[JsonObject]:
    """Schemas of tools, as the tool servers will say them; none of those that find their tools when they start."""

    async def listed(toolset: Any) -> list[JsonObject]:
        name = toolset.server_name
        server = MCPServer(name or type(toolset).__name__, log_level="WARNING")
        toolset.register(server)
        return [_schema(f"{name}_{tool.name}" if name else tool.name, tool) for tool in await server.list_tools()]

    plain = [each for each in toolsets if type(each).register is vf.Toolset.register and not each.config.url]
    return [schema for toolset in plain for schema in in_own_loop(listed(toolset))]


def _schema(name: str, tool: Any) -> JsonObject:
    function = {"name": name, "description": tool.description or "", "parameters": tool.input_schema}
    return {"type": "function", "function": function}
