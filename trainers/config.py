"""Resolve run configs: defaults < environment < preset < TOML files < layers < inline values < overrides.

Every leaf of the result knows where it came from (`Resolved.origins`), so that a person can ask why a run has a value.
The keys and their checks: `trainers/run_config/`. Imports neither torch nor transformers: the web server and the
workers parse configs too.
"""

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from trainers.origins import COMMAND_LINE, DEFAULT, REQUEST, Origin, OriginKind
from trainers.run_config import ConfigProblem, RunConfig
from trainers.run_config.keys import all_keys, suggest_key
from trainers.run_config.problems import check
from trainers.run_config.suggestions import suggest
from trainers.run_config.typed import MAX_DEPTH, bounded

__all__ = [
    "ConfigError",
    "ConfigProblem",
    "Layer",
    "Resolved",
    "RunConfig",
    "load_preset",
    "parse_override",
    "preset_and_overrides",
    "preset_names",
    "resolve",
]

_ENVIRON_PREFIX = "ROLLYARD__"
_PRESETS = Path(__file__).parent / "presets"


class ConfigError(ValueError):
    """The run config makes no sense; `problems` names each key and what to do about it."""

    def __init__(self, problems: Sequence[ConfigProblem]) -> None:
        super().__init__(
            "\n".join(f"{each.path}: {each.sentence}" if each.path else each.sentence for each in problems)
        )
        self.problems = list(problems)


@dataclass(frozen=True)
class Resolved:
    """A valid config and where each of its leaves came from."""

    config: RunConfig
    origins: dict[str, Origin]
    """By dotted key."""


class Layer(NamedTuple):
    """A nested mapping of values, and who set them."""

    origin: Origin
    values: Mapping[str, Any]


def preset_names() -> list[str]:
    """Names of the shipped presets, sorted."""
    return sorted(path.stem for path in _PRESETS.glob("*.toml"))


def load_preset(name: str) -> dict[str, Any]:
    """Raw values of a shipped preset. Raises ConfigError when there is none of that name."""
    known = preset_names()
    if name not in known:
        message = f"{name!r} is not a preset. Known: {', '.join(known)}."
        raise ConfigError([ConfigProblem("preset", message, suggest(name, known))])
    return tomllib.loads((_PRESETS / f"{name}.toml").read_text(encoding="utf-8"))


def parse_override(text: str) -> tuple[str, Any]:
    """Split `a.b=c`; c is read as a TOML value (or `null`), and is a plain string when it is none."""
    key, separator, value = text.partition("=")
    key = key.strip()
    if not separator or not key:
        meant = key if key in all_keys() else suggest_key(key, {})
        message = "has no value: overrides are written KEY=VALUE." if key else f"{text!r} names no key to override."
        raise ConfigError([ConfigProblem(key, message, f"{meant}=VALUE" if meant else "")])
    return key, _parse_value(value.strip())


def preset_and_overrides(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """Split words of a command line. The first is a preset, unless it has a `=` or is a key of the config.

    Any other word without a `=` stays among the overrides, where `resolve` says what is wrong with it.
    """
    is_preset = bool(words) and "=" not in words[0] and words[0] not in all_keys()
    return (words[0], list(words[1:])) if is_preset else (None, list(words))


def resolve(
    preset: str | None = None,
    files: Iterable[str | Path] = (),
    overrides: Mapping[str, Any] | Iterable[str] = (),
    environ: Mapping[str, str] | None = None,
    *,
    layers: Iterable[Layer] = (),
    inline: Mapping[str, Any] | None = None,
    inline_from: Origin = REQUEST,
    overrides_from: Origin = COMMAND_LINE,
) -> Resolved:
    """Merge all sources, validate, and say where each leaf came from. Raises ConfigError with every problem found.

    Tables merge key by key, lists replace each other whole; `environments.0.args.words=2` reaches into a list. A table
    with another `type` replaces the table it is merged into, because it is another variant. `overrides` is a mapping of
    dotted keys to values, or `a.b=c` strings; `inline` is a nested mapping, such as the body of an API request.
    `inline_from` and `overrides_from` say who gave those two. What is wrong with one source does not keep the others
    from being looked at.
    """
    try:
        bounded([inline, overrides])
    except ValueError as error:
        raise ConfigError([ConfigProblem("", f"What was sent makes no config: {error}.")]) from None
    tree = _Tree()
    for name, text in sorted((environ or {}).items()):
        if name.startswith(_ENVIRON_PREFIX):
            key = name.removeprefix(_ENVIRON_PREFIX).lower().replace("__", ".")
            with tree.collecting():
                tree.put(key, _parse_value(text), Origin(OriginKind.ENVIRON, name))
    base = preset
    if preset is not None and preset not in preset_names():
        with tree.collecting():
            load_preset(preset)
        # What was meant stands in: the rest is judged as it will be once this is mended.
        base = suggest(preset, preset_names()) or None
    if base is not None:
        tree.merge(load_preset(base), Origin(OriginKind.PRESET, base))
    before_files = len(tree.problems)
    for file in files:
        with tree.collecting():
            tree.merge(_read_file(Path(file)), Origin(OriginKind.FILE, str(file)))
    is_complete = base is not None or (preset is None and len(tree.problems) == before_files)
    for layer in (*layers, Layer(inline_from, inline or {})):
        tree.merge(layer.values, layer.origin)
    pairs = overrides.items() if isinstance(overrides, Mapping) else overrides
    for pair in pairs:
        with tree.collecting():
            key, value = parse_override(pair) if isinstance(pair, str) else pair
            tree.put(key, value, overrides_from)
    config, problems = check(tree.values, is_complete=is_complete)
    if config is None or tree.problems:
        raise ConfigError([*tree.problems, *problems])
    origins = {key: tree.origin_of(key) for key, _ in leaves(config.model_dump(mode="json"))}
    return Resolved(config=config, origins=origins)


def leaves(value: Any, at: str = "") -> list[tuple[str, Any]]:
    """Dotted key and value of everything that is not a table or a list of tables."""
    if isinstance(value, dict) and value:
        return [leaf for name, child in value.items() for leaf in leaves(child, f"{at}.{name}" if at else str(name))]
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return [leaf for index, child in enumerate(value) for leaf in leaves(child, f"{at}.{index}")]
    return [(at, value)]


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
        raise ConfigError([ConfigProblem("file", f"cannot read {path}: {error.strerror}.")]) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError([ConfigProblem("file", f"{path} is not TOML: {error}.")]) from None


class _Tree:
    """Values merged so far, who set each of them, and what was wrong on the way."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.problems: list[ConfigProblem] = []
        self._origins: dict[str, Origin] = {}

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Keep the problems of a ConfigError for later."""
        try:
            yield
        except ConfigError as error:
            self.problems += error.problems

    def merge(self, values: Mapping[str, Any], origin: Origin) -> None:
        """Merge a nested mapping over what is there."""
        self._merge(self.values, values, origin, "")

    def put(self, key: str, value: Any, origin: Origin) -> None:
        """Set the value of a dotted key, whose parts may be indices of lists. Raises ConfigError."""
        if key.count(".") >= MAX_DEPTH:
            raise ConfigError([ConfigProblem(key, f"is nested more than {MAX_DEPTH} deep.")])
        *parents, last = key.split(".")
        node: Any = self.values
        for depth, name in enumerate(parents):
            if isinstance(node, list):
                node = _item(node, name, key)
            else:
                if node.get(name) is None:
                    node[name] = {}
                node = node[name]
            if not isinstance(node, dict | list):
                raise ConfigError([ConfigProblem(".".join(parents[: depth + 1]), f"has no key below it ({key}).")])
        if isinstance(node, list):
            _item(node, last, key)
            node[int(last)] = value
            self._origins[key] = origin
        else:
            self._merge(node, {last: value}, origin, "".join(f"{name}." for name in parents))

    def origin_of(self, key: str) -> Origin:
        """Origin of the longest prefix of `key` that somebody set."""
        parts = key.split(".")
        prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
        return next((self._origins[each] for each in prefixes if each in self._origins), DEFAULT)

    def _merge(self, into: dict[str, Any], values: Mapping[str, Any], origin: Origin, at: str) -> None:
        if "type" in values and "type" in into and values["type"] != into["type"]:
            into.clear()
            self._forget(at.rstrip("."))
        for name, value in values.items():
            key = f"{at}{name}"
            if isinstance(value, Mapping):
                if not isinstance(into.get(name), dict):
                    into[name] = {}
                self._merge(into[name], value, origin, f"{key}.")
            else:
                into[name] = deepcopy(value)
                self._forget(key)
                self._origins[key] = origin

    def _forget(self, key: str) -> None:
        for known in [known for known in self._origins if known == key or known.startswith(f"{key}.")]:
            del self._origins[known]


def _item(items: list[Any], index: str, key: str) -> Any:
    if not index.isdecimal() or int(index) >= len(items):
        raise ConfigError([ConfigProblem(key, f"{index!r} is no index into a list of {len(items)}.")])
    return items[int(index)]
