"""Resolve run configs: defaults < environment < preset < TOML files, left to right < inline values < overrides.

Every leaf of the result knows where it came from (`Resolved.origins`), so that a person can ask why a run has a value.
The tree itself and its checks: `trainers/run_config/`. Imports neither torch nor transformers: the web server and the
workers parse configs too.
"""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trainers.origins import COMMAND_LINE, DEFAULT, REQUEST, Origin, OriginKind
from trainers.run_config import ConfigProblem, CrossFieldError, RunConfig

__all__ = [
    "ConfigError",
    "ConfigProblem",
    "Resolved",
    "RunConfig",
    "load_preset",
    "parse_override",
    "preset_names",
    "resolve",
]

_ENVIRON_PREFIX = "ROLLYARD__"
_PRESETS = Path(__file__).parent / "presets"


class ConfigError(ValueError):
    """The run config makes no sense; `problems` names each key and what to do about it."""

    def __init__(self, problems: Sequence[ConfigProblem]) -> None:
        super().__init__("\n".join(f"{path}: {message}" if path else message for path, message in problems))
        self.problems = list(problems)


@dataclass(frozen=True)
class Resolved:
    """A valid config and where each of its leaves came from."""

    config: RunConfig
    origins: dict[str, Origin]
    """By dotted key."""


def preset_names() -> list[str]:
    """Names of the shipped presets, sorted."""
    return sorted(path.stem for path in _PRESETS.glob("*.toml"))


def load_preset(name: str) -> dict[str, Any]:
    """Raw values of a shipped preset. Raises ConfigError when there is none of that name."""
    if name not in preset_names():
        known = ", ".join(preset_names())
        raise ConfigError([ConfigProblem("preset", f"{name!r} is not a preset. Known: {known}.")])
    return tomllib.loads((_PRESETS / f"{name}.toml").read_text(encoding="utf-8"))


def parse_override(text: str) -> tuple[str, Any]:
    """Split `a.b=c`; c is read as a TOML value (or `null`), and is a plain string when it is none."""
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise ConfigError([ConfigProblem(key.strip(), f"{text!r} is no override. Write key.subkey=value.")])
    return key.strip(), _parse_value(value.strip())


def resolve(
    preset: str | None = None,
    files: Iterable[str | Path] = (),
    overrides: Mapping[str, Any] | Iterable[str] = (),
    environ: Mapping[str, str] | None = None,
    *,
    inline: Mapping[str, Any] | None = None,
    inline_from: Origin = REQUEST,
    overrides_from: Origin = COMMAND_LINE,
) -> Resolved:
    """Merge all sources, validate, and say where each leaf came from. Raises ConfigError with every problem found.

    Tables merge key by key, lists replace each other whole; `environments.0.args.words=2` reaches into a list. A table
    with another `type` replaces the table it is merged into, because it is another variant. `overrides` is a mapping of
    dotted keys to values, or `a.b=c` strings; `inline` is a nested mapping, such as the body of an API request.
    `inline_from` and `overrides_from` say who gave those two.
    """
    tree: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    for name, text in sorted((environ or {}).items()):
        if name.startswith(_ENVIRON_PREFIX):
            key = name.removeprefix(_ENVIRON_PREFIX).lower().replace("__", ".")
            _set(tree, origins, key, _parse_value(text), Origin(OriginKind.ENVIRON, name))
    if preset is not None:
        _merge(tree, origins, load_preset(preset), Origin(OriginKind.PRESET, preset))
    for file in files:
        _merge(tree, origins, _read_file(Path(file)), Origin(OriginKind.FILE, str(file)))
    if inline is not None:
        _merge(tree, origins, inline, inline_from)
    pairs = overrides.items() if isinstance(overrides, Mapping) else map(parse_override, overrides)
    for key, value in pairs:
        _set(tree, origins, key, value, overrides_from)
    try:
        config = RunConfig.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(_problems(error, tree)) from None
    leaves = _leaves(config.model_dump(mode="json"))
    return Resolved(config=config, origins={key: _origin(origins, key) for key in leaves})


def _parse_value(text: str) -> Any:
    if text == "null":  # TOML has no null, and a preset's optional section must be removable
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _read_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError([ConfigProblem("", f"cannot read {path}: {error.strerror}.")]) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError([ConfigProblem("", f"{path} is not TOML: {error}.")]) from None


def _merge(
    tree: dict[str, Any], origins: dict[str, Origin], values: Mapping[str, Any], origin: Origin, at: str = ""
) -> None:
    if "type" in values and "type" in tree and values["type"] != tree["type"]:
        tree.clear()
        _forget(origins, at.rstrip("."))
    for name, value in values.items():
        key = f"{at}{name}"
        if isinstance(value, Mapping):
            if not isinstance(tree.get(name), dict):
                tree[name] = {}
            _merge(tree[name], origins, value, origin, f"{key}.")
        else:
            tree[name] = deepcopy(value)
            _forget(origins, key)
            origins[key] = origin


def _set(tree: dict[str, Any], origins: dict[str, Origin], key: str, value: Any, origin: Origin) -> None:
    *parents, last = key.split(".")
    node: Any = tree
    for depth, name in enumerate(parents):
        if isinstance(node, list):
            node = _item(node, name, key)
            continue
        if node.get(name) is None:
            node[name] = {}
        node = node[name]
        if not isinstance(node, dict | list):
            raise ConfigError([ConfigProblem(".".join(parents[: depth + 1]), f"has no key below it ({key}).")])
    if isinstance(node, list):
        _item(node, last, key)
        node[int(last)] = value
        origins[key] = origin
    else:
        _merge(node, origins, {last: value}, origin, "".join(f"{name}." for name in parents))


def _item(items: list[Any], index: str, key: str) -> Any:
    if not index.isdecimal() or int(index) >= len(items):
        raise ConfigError([ConfigProblem(key, f"{index!r} is no index into a list of {len(items)}.")])
    return items[int(index)]


def _forget(origins: dict[str, Origin], key: str) -> None:
    for known in [known for known in origins if known == key or known.startswith(f"{key}.")]:
        del origins[known]


def _origin(origins: Mapping[str, Origin], key: str) -> Origin:
    """Origin of the longest prefix of `key` that somebody set."""
    parts = key.split(".")
    prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((origins[prefix] for prefix in prefixes if prefix in origins), DEFAULT)


def _leaves(value: Any, at: str = "") -> list[str]:
    if isinstance(value, dict) and value:
        return [leaf for name, child in value.items() for leaf in _leaves(child, f"{at}.{name}" if at else name)]
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return [leaf for index, child in enumerate(value) for leaf in _leaves(child, f"{at}.{index}")]
    return [at]


def _key(loc: tuple[int | str, ...], tree: Any) -> str:
    """The dotted key of an error. pydantic puts the `type` of a variant into the path, where the config has no key."""
    parts: list[str] = []
    for depth, part in enumerate(loc, start=1):
        if isinstance(tree, Mapping) and part not in tree and (depth < len(loc) or part == tree.get("type")):
            continue
        parts.append(str(part))
        tree = tree.get(part) if isinstance(tree, Mapping) else tree[int(part)] if isinstance(tree, list) else None
    return ".".join(parts)


def _problems(error: ValidationError, tree: Mapping[str, Any]) -> list[ConfigProblem]:
    """Flatten pydantic's errors; contradictions between keys keep the key they name."""
    problems = []
    for item in error.errors(include_url=False):
        at = _key(item["loc"], tree)
        cause = item.get("ctx", {}).get("error")
        if isinstance(cause, CrossFieldError):
            problems += [ConfigProblem(f"{at}.{path}" if at else path, message) for path, message in cause.problems]
        elif item["type"] == "extra_forbidden":
            problems.append(ConfigProblem(at, "is not a known key. Remove it or correct its spelling."))
        else:
            problems.append(ConfigProblem(at, f"{item['msg']}."))
    return problems
