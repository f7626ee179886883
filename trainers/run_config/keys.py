"""Every key that a run config can have, the values it can take where those are few, and what was probably meant.

Read off the JSON schema of `RunConfig`, so a new field is known here at once.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

from trainers.run_config.suggestions import suggest
from trainers.run_config.tree import RunConfig

_ALMOST = 0.8
"""Likeness of a word with a letter or two wrong."""


@cache
def _schema() -> dict[str, Any]:
    return RunConfig.model_json_schema()


@cache
def all_keys() -> dict[str, tuple[str, ...]]:
    """Dotted key -> its values, where they can be listed. Keys of every variant; a list of tables has the index 0."""
    return _keys_below(_schema(), None)


def keys_for(tree: Any) -> dict[str, tuple[str, ...]]:
    """As `all_keys`, but of a section with variants only the keys of the one that `tree` has chosen by its `type`."""
    return _keys_below(_schema(), tree)


def suggest_key(key: str, tree: Any) -> str:
    """The key that was probably meant, or empty: a sibling, or the same name elsewhere; `tree` is the config so far."""
    known = {prefix for leaf in keys_for(tree) for prefix in _prefixes(leaf)}
    parent, _, name = _with_index_0(key).rpartition(".")
    at = f"{parent}." if parent else ""
    siblings = [each.removeprefix(at) for each in known if each.startswith(at) and "." not in each.removeprefix(at)]
    names: dict[str, str] = {}
    for each in sorted(known, key=lambda each: (each.count("."), each)):
        names.setdefault(each.rpartition(".")[2], each)
    given_parent = key.removesuffix(name)
    if sibling := suggest(name, siblings, likeness=_ALMOST):
        return given_parent + sibling
    if name in names:
        return names[name]
    if sibling := suggest(name, siblings):
        return given_parent + sibling
    return names.get(suggest(name, names, likeness=_ALMOST), "")


def suggest_value(key: str, value: Any) -> str:
    """The value that was probably meant, for a key whose values can be listed; else empty."""
    return suggest(str(value).lower(), all_keys().get(_with_index_0(key), ()))


def _with_index_0(key: str) -> str:
    return ".".join("0" if part.isdecimal() else part for part in key.split("."))


def _prefixes(key: str) -> list[str]:
    parts = key.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts) + 1)]


def _keys_below(node: Mapping[str, Any], value: Any, at: str = "") -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for variant in _chosen(_variants(node), value):
        rows = _variants(variant["items"]) if isinstance(variant.get("items"), dict) else []
        if "properties" in variant:
            for name, child in variant["properties"].items():
                inner = value.get(name) if isinstance(value, Mapping) else None
                for key, values in _keys_below(child, inner, f"{at}.{name}" if at else name).items():
                    found[key] = tuple(dict.fromkeys((*found.get(key, ()), *values)))
        elif any("properties" in row for row in rows):
            found |= _keys_below(variant["items"], None, f"{at}.0")
        else:
            found[at] = tuple(dict.fromkeys((*found.get(at, ()), *_values(variant))))
    return found


def _variants(node: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The schemas behind references and alternatives; without null."""
    if "$ref" in node:
        return _variants(_schema()["$defs"][node["$ref"].rsplit("/", 1)[-1]])
    for several in ("anyOf", "oneOf"):
        if several in node:
            return [variant for part in node[several] for variant in _variants(part)]
    return [] if node.get("type") == "null" else [node]


def _chosen(variants: list[Mapping[str, Any]], value: Any) -> list[Mapping[str, Any]]:
    if not isinstance(value, Mapping) or "type" not in value:
        return variants
    of_type = [v for v in variants if v.get("properties", {}).get("type", {}).get("const") == value["type"]]
    return of_type or variants


def _values(schema: Mapping[str, Any]) -> tuple[str, ...]:
    if schema.get("type") == "boolean":
        return ("true", "false")
    return tuple(str(each) for each in (schema.get("enum") or ([schema["const"]] if "const" in schema else [])))
