"""Somebody's `BaseEnv` class, found and made as its own command line makes it: defaults, then YAML, then flags.

The class is not changed. What is made of it is a subclass that only differs in what it is given (our address, the key
of the group that asks, the group's size) and in where figures for wandb end.
"""

import contextlib
import importlib.util
import inspect
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

from environments.bridges.atropos_table import current_key, playing
from environments.errors import InvalidArguments, RegistryError
from environments.isolated.frames import TOKENIZER
from environments.library.splits import digest

JsonObject = dict[str, Any]

_UNMAPPED_SETTINGS = ("thinking_mode", "reasoning_effort", "max_reasoning_tokens")
"""They ask a provider for what no policy that is trained does."""
_SERVER_TYPES = ("openai", "vllm")


class Made(Exception):
    """The environment is there: raised where its command line would begin to serve."""

    def __init__(self, environment: Any) -> None:
        super().__init__()
        self.environment = environment


def find_class(path: str) -> Any:
    """The class of `module:Class` or `file.py:Class`; without a class, the one that the module defines.

    A relative file lies in the virtual environment. Raises RegistryError.
    """
    _stay_offline()
    place, _, name = path.rpartition(":") if ":" in path else (path, "", "")
    base_class = _imported("atroposlib.envs.base").BaseEnv
    module = _from_file(Path(_beside_python(place))) if place.endswith(".py") else _imported(place)
    if name:
        found = getattr(module, name, None)
        if not (isinstance(found, type) and issubclass(found, base_class)):
            raise InvalidArguments(f"{path}: {name} is not a BaseEnv class of {place}.")
        return found
    classes = [
        each
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, base_class) and each.__module__ == module.__name__
    ]
    if len(classes) != 1:
        known = ", ".join(each.__name__ for each in classes) or "none"
        raise InvalidArguments(f"{path}: say which class, as {place}:NAME. BaseEnv classes it defines: {known}.")
    return classes[0]


def make(found: Any, config: str | JsonObject, flags: list[str], server_type: str, seed: int) -> Any:
    """An instance, with `config` as its YAML and `flags` as its command line. Raises RegistryError."""
    random.seed(seed)
    import_module("numpy").random.seed(seed)
    subclass = _subclass(found, server_type)
    with _config_file(config) as path, _command_line([found.__name__, "serve", *flags]):
        try:
            subclass.get_cli_serve_config_cls().model_construct(config=path).run()
        except Made as made:
            return made.environment
        except RegistryError:
            raise
        except Exception as error:
            raise RegistryError(f"{found.__name__} cannot be made: {type(error).__name__}: {error}") from error
    raise RegistryError(f"{found.__name__} cannot be made: its command line ended without beginning to serve.")


def point_to(environment: Any, base_url: str) -> None:
    """Have its servers ask at an address, each request with the key of the group that it belongs to."""
    openai = import_module("openai")

    async def key() -> str:
        return current_key()

    for server in environment.server.servers:
        server.config.base_url = base_url
        if hasattr(server, "openai"):
            server.openai = openai.AsyncClient(api_key=key, base_url=base_url, timeout=server.config.timeout)


def version_of(found: Any, config: str | JsonObject, flags: list[str]) -> str:
    """Another one whenever the class, its settings or its library are."""
    try:
        source = inspect.getsource(sys.modules[found.__module__])
    except (OSError, TypeError):
        source = ""
    settings = Path(_beside_python(config)).read_text() if isinstance(config, str) and config else json.dumps(config)
    return f"{version('atroposlib')}-{digest(json.dumps([source, settings, flags]))[:12]}"


def _subclass(found: Any, server_type: str) -> Any:
    base_module = _imported("atroposlib.envs.base")

    class Figures(base_module.BaseEnv):  # type: ignore[misc, name-defined]  # known when somebody's is there
        """Where `super().wandb_log(...)` of the environment ends."""

        figures: JsonObject

        async def wandb_log(self, wandb_metrics: JsonObject | None = None) -> None:
            self.figures = wandb_metrics or {}

    class Guided(found, Figures):  # type: ignore[misc]
        """The environment itself."""

        def __init__(self, config: Any, server_configs: Any, slurm: bool = False, testing: bool = False) -> None:
            if slurm or testing:
                raise InvalidArguments("slurm and testing have no meaning here: leave them out of its config.")
            config.use_wandb = False
            named = _beside_python(config.tokenizer_name)
            # What its config names is a name of the hub as a rule, and there is none here.
            given = os.environ.get(TOKENIZER) or config.tokenizer_name
            config.tokenizer_name = _readable_by_any(named if os.path.isdir(named) else given)
            server = _server_config(server_configs, config.tokenizer_name, server_type)
            with _tokenizer_in_reach(server.tokenizer_name):
                super().__init__(
                    config=_depending(_checked(config), group_size=_group_size),
                    server_configs=[server],
                    slurm=False,
                    testing=False,
                )

        def env_manager(self) -> None:
            """The command line would serve now."""
            raise Made(self)

    return Guided


def _readable_by_any(tokenizer: str) -> str:
    """A directory from which any transformers reads the same tokenizer: the fifth writes a class of its own."""
    settings = Path(tokenizer, "tokenizer_config.json")
    if not settings.is_file():
        return tokenizer
    told = json.loads(settings.read_text())
    if told.get("tokenizer_class") != "TokenizersBackend":
        return tokenizer
    copied = Path(tempfile.mkdtemp(prefix="tokenizer-"))
    for name in ("tokenizer.json", "chat_template.jinja", "special_tokens_map.json"):
        if (file := Path(tokenizer, name)).is_file():
            shutil.copyfile(file, copied / name)
    (copied / settings.name).write_text(json.dumps(told | {"tokenizer_class": "PreTrainedTokenizerFast"}))
    return str(copied)


@contextlib.contextmanager
def _tokenizer_in_reach(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if os.path.isdir(name):
            raise  # something else that it reads
        raise InvalidArguments(
            f"tokenizer {name}: {type(error).__name__}: {error}. There is no hub here: set env.tokenizer_name to a "
            "directory that this process can read, with the tokenizer of the run's model."
        ) from error


def _checked(config: Any) -> Any:
    if unmapped := [name for name in _UNMAPPED_SETTINGS if getattr(config, name, None)]:
        raise InvalidArguments(f"{', '.join(unmapped)}: the policy samples as its trainer expects. Leave it out.")
    return config


def _server_config(given: Any, tokenizer: str, server_type: str) -> Any:
    """The settings of the one server there is."""
    configs = given if isinstance(given, list) else [given]
    models = sorted({each.model_name for each in configs})
    if len(models) > 1:
        raise InvalidArguments(
            f"Its servers have the models {', '.join(models)}; here all are the policy. A judge has to be code."
        )
    kind = server_type or configs[0].server_type
    if kind not in _SERVER_TYPES:
        raise InvalidArguments(f"server_type {kind!r} is not spoken here: {' or '.join(_SERVER_TYPES)} is.")
    values = configs[0].model_dump() | {"server_type": kind, "health_check": False, "n_kwarg_is_ignored": False}
    if values["tokenizer_name"] == "none":
        values["tokenizer_name"] = tokenizer
    config_class = import_module("atroposlib.envs.server_handling.server_baseline").APIServerConfig
    return _depending(config_class(**values), api_key=lambda _: current_key())


def _group_size(own: int) -> int:
    table = playing.get()
    return own if table is None else len(table.seats)


def _depending(config: Any, **values: Callable[[Any], Any]) -> Any:
    """The same settings, some of which depend on the group that asks. They are read wherever Atropos likes."""
    kind: Any = type(config)

    def read(self: Any, name: str) -> Any:
        value = kind.__getattribute__(self, name)
        return values[name](value) if name in values else value

    made: Any = type(kind.__name__, (kind,), {"__getattribute__": read, "__module__": kind.__module__})
    known = {name: getattr(config, name) for name in kind.model_fields}
    return made.model_construct(**known, **(config.model_extra or {}))


def _imported(name: str) -> Any:
    try:
        return import_module(name)
    except Exception as error:
        raise RegistryError(f"{name} cannot be imported by {sys.prefix}: {type(error).__name__}: {error}.") from error


def _from_file(path: Path) -> ModuleType:
    """The module of a file, whose neighbours it may import, as when Python runs it."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise InvalidArguments(f"{path} is no Python file that this process can read.")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise RegistryError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
    return module


def _beside_python(path: str) -> str:
    """A relative path in the virtual environment."""
    return os.path.join(sys.prefix, path)


@contextlib.contextmanager
def _config_file(config: str | JsonObject) -> Iterator[str | None]:
    """The file that `--config` names."""
    if isinstance(config, str):
        yield _beside_python(config) if config else None
        return
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        json.dump(config, file)  # which is YAML too
        file.flush()
        yield file.name


@contextlib.contextmanager
def _command_line(argv: list[str]) -> Iterator[None]:
    """Atropos reads its flags from there and nowhere else."""
    before, sys.argv = sys.argv, argv
    try:
        yield
    finally:
        sys.argv = before


def _stay_offline() -> None:
    """A tokenizer that is not there fails at once, and not after waiting for a network that is not there either."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("WANDB_MODE", "disabled")
