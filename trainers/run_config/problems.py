"""Everything that is wrong with a run config, at once, each with what was probably meant.

pydantic stops at a section that has a fault and does not look at what its parts contradict. So each fault that was
found is mended in a copy, an unknown key by the key that was probably meant, and the copy is looked at again.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

import msgspec
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from environments import registry
from environments.errors import RegistryError
from environments.rewards import registry as rewards
from environments.rewards.registry import RewardPart
from environments.seats import RUN
from trainers.run_config.keys import suggest_key, suggest_value
from trainers.run_config.section import ConfigProblem, CrossFieldError
from trainers.run_config.suggestions import suggest
from trainers.run_config.tree import RunConfig

_ROUNDS = 5
"""Sections are four deep, and a section is looked at once all that is below it is mended."""
_MOST = 50
"""Faults that are told at once: to find what was meant by a key takes a millisecond or more."""
_STAND_IN = {"max_steps": 2**31 - 1}
"""For required values at the top, while the rest is looked at; so large that it contradicts nothing."""

Key = tuple[int | str, ...]


def check(tree: Mapping[str, Any], *, is_complete: bool = True) -> tuple[RunConfig | None, list[ConfigProblem]]:
    """The config of a tree of values, or None with every problem.

    `is_complete=False`: a source of values could not be read, so nothing is said of what is missing or contradictory.
    """
    config: RunConfig | None = None
    problems: list[ConfigProblem] = []
    absent: set[str] = set()
    """Keys that are missed, or whose default contradicts another: no fault where they are only misspelt."""
    trial = deepcopy(dict(tree))
    for _ in range(_ROUNDS):
        try:
            config = RunConfig.model_validate(trial)
            break
        except ValidationError as error:
            told = error.errors(include_url=False)[:_MOST]
            found = [each for item in told for each in _read(item, trial)]
        for problem, kind in found:
            if kind is not None:
                absent.add(problem.path)
            if (is_complete or kind is None) and not _is_about(problem.path, problems):
                problems.append(problem)
        mended = [_mend(trial, problem) for problem, _ in found]
        if not any(mended):
            break
    misspelt = {problem.suggestion for problem in problems}
    problems = [each for each in problems if not (each.path in misspelt and each.path in absent)]
    problems += [each for each in _environment_problems(trial, config) if not _is_about(each.path, problems)]
    return (None if problems else config), problems


def _read(item: ErrorDetails, tree: Mapping[str, Any]) -> Iterator[tuple[ConfigProblem, str | None]]:
    """pydantic's error as problems. Contradictions keep the key they name; they and missing keys are told apart."""
    at = _key(item["loc"], tree)
    context = item.get("ctx", {})
    cause = context.get("error")
    if isinstance(cause, CrossFieldError):
        for path, message, suggestion in cause.problems:
            yield ConfigProblem(f"{at}.{path}" if at else path, message, suggestion), "contradiction"
    elif item["type"] == "extra_forbidden":
        message = "is not a known key. Remove it or correct its spelling."
        yield ConfigProblem(at, message, suggest_key(at, tree)), None
    elif item["type"] == "union_tag_invalid":
        yield ConfigProblem(at, f"{item['msg']}.", suggest_value(f"{at}.type", context.get("tag"))), None
    else:
        suggestion = suggest_value(at, item["input"]) if isinstance(item["input"], str) else ""
        kind = "missing" if item["type"] == "missing" else None
        yield ConfigProblem(at, f"{item['msg']}.", suggestion), kind


def _key(loc: Key, tree: Any) -> str:
    """The dotted key of an error. pydantic puts the `type` of a variant into the path, where the config has no key."""
    parts: list[str] = []
    for depth, part in enumerate(loc, start=1):
        if isinstance(tree, Mapping) and part not in tree and (depth < len(loc) or part == tree.get("type")):
            continue
        parts.append(str(part))
        if isinstance(tree, list):  # which has no such item when that is the fault
            tree = dict(enumerate(tree))
        tree = tree.get(part) if isinstance(tree, Mapping) else None
    return ".".join(parts)


def _is_about(path: str, problems: list[ConfigProblem]) -> bool:
    """Whether a key, or one above or below it, is known to be faulty: what follows from a fault is not told again."""
    return any(
        path == known or path.startswith(f"{known}.") or known.startswith(f"{path}.")
        for known in (problem.path for problem in problems)
    )


def _mend(tree: dict[str, Any], problem: ConfigProblem) -> bool:
    """Take the faulty key out of a table, or the nearest thing above it that is in one. False: there is none.

    An unknown key's value goes to the key that was probably meant; a required key at the top gets a stand-in.
    """
    parts = problem.path.split(".")
    if problem.path in _STAND_IN:
        mended = tree.get(problem.path) != _STAND_IN[problem.path]
        tree[problem.path] = _STAND_IN[problem.path]
        return mended
    tables: list[tuple[dict[str, Any], str]] = []
    node: Any = tree
    for part in parts:
        if isinstance(node, dict) and part in node:
            tables.append((node, part))
            node = node[part]
        elif isinstance(node, list) and part.isdecimal() and int(part) < len(node):
            node = node[int(part)]
        else:
            break
    if not tables:
        return False
    table, name = tables[-1]
    value = table.pop(name)
    meant = problem.suggestion.rpartition(".")
    is_sibling = meant[0] == problem.path.rpartition(".")[0]
    if name == parts[-1] and is_sibling and meant[2] and meant[2] not in table:
        table[meant[2]] = value
    return True


def _environment_problems(tree: Mapping[str, Any], config: RunConfig | None) -> Iterator[ConfigProblem]:
    """Environments that nobody here can play. Those of an external run are somebody else's."""
    rows = tree.get("environments")
    if tree.get("kind") == "external" or not isinstance(rows, list):
        return
    others = tree.get("policies")
    named = [str(each.get("name")) for each in others if isinstance(each, Mapping)] if isinstance(others, list) else []
    for index, row in enumerate(rows):
        if isinstance(row, Mapping) and isinstance(row.get("name"), str):
            args = row["args"] if isinstance(row.get("args"), Mapping) else {}
            at, name = f"environments.{index}", row["name"]
            yield from _faults(at, name, args, python=str(row.get("python") or ""))
            for key, policy in registry.policies_of(name, args).items():
                if policy not in named:
                    message = f"asks {policy!r}, whom nobody plays: name a policy {policy!r} in `policies`."
                    yield ConfigProblem(f"{at}.args.{key}", message, suggest(policy, named))
            yield from _seat_faults(at, name, row.get("seats"), named)
            # Of several environments those that measure are evaluated, and the others are not.
            if config is not None and config.evaluation is not None and not config.measured:
                fix = "" if config.kind == "eval" else " Or leave the section evaluation out."
                for key, message in registry.unmeasured(name, args).items():
                    yield ConfigProblem(f"{at}.args.{key}", f"{message}{fix}")
            if row.get("process") == "inline" and not registry.is_ours_alone(name, args):
                message = (
                    "is for what ships with Rollyard, with no data set or reward from elsewhere: other code and files"
                    " would be opened beside the store's password. Remove it."
                )
                yield ConfigProblem(f"{at}.process", message, "isolated")


def _seat_faults(at: str, name: str, seats: Any, policies: list[str]) -> Iterator[ConfigProblem]:
    known = registry.seats_of(name)
    seating = dict(seats) if isinstance(seats, Mapping) else {}
    if seating and RUN not in (dict.fromkeys(known, RUN) | seating).values():
        yield ConfigProblem(f"{at}.seats", f"leave none to the policy of the run. Give {RUN!r} at least one.")
    for seat, player in seating.items():
        path = f"{at}.seats.{seat}"
        if registry.is_built_in(name) and seat not in known:
            message = f"is no seat of {name}. It has: {', '.join(known) or 'none'}."
            yield ConfigProblem(path, message, suggest(str(seat), known))
        elif player != RUN and player not in policies:
            message = f"{player!r} is nobody who plays: a seat has {RUN!r}, or one that `policies` names."
            yield ConfigProblem(path, message, suggest(str(player), [RUN, *policies]))


def _faults(at: str, name: str, args: Mapping[str, Any], *, python: str) -> Iterator[ConfigProblem]:
    known = registry.names()
    if python and name not in known:
        return  # a place in a virtual environment of its own
    if registry.is_bridge(name) and not python:
        message = (
            f"is required by {name}, whose packages contradict ours: `rollyard envs install {name}`, then name it."
        )
        yield ConfigProblem(f"{at}.python", message, name)
    if name not in known:
        message = f"{name!r} is not an environment. Known: {', '.join(known)}."
        yield ConfigProblem(f"{at}.name", message, suggest(name, known))
        return
    if not (registry.is_built_in(name) or registry.is_bridge(name)):
        return  # somebody else's code: it is asked in a sandbox, when the run begins
    try:
        args_type = registry.find_class(name).args_type
        fields = registry.arguments_of(args_type)
    except RegistryError as error:
        yield ConfigProblem(f"{at}.name", f"cannot be played here. {error}")
        return
    if found := [*_argument_faults(at, name, args, fields)]:
        yield from found
        return
    try:
        made = msgspec.convert(args, args_type)
    except msgspec.ValidationError as error:
        yield ConfigProblem(f"{at}.args", f"{error}.")
        return
    if registry.is_built_in(name):
        yield from _reward_faults(f"{at}.args.rewards", getattr(made, "rewards", None) or [], python=python)


def _reward_faults(at: str, parts: Sequence[RewardPart], *, python: str) -> Iterator[ConfigProblem]:
    for key, message in rewards.faults(parts, are_all_known=not python):
        number, _, field = key.partition(".")
        suggestion = suggest(parts[int(number)].name, rewards.places()) if field == "name" else ""
        yield ConfigProblem(f"{at}.{key}".rstrip("."), message, suggestion)


def _argument_faults(
    at: str, name: str, args: Mapping[str, Any], fields: Mapping[str, msgspec.structs.FieldInfo]
) -> Iterator[ConfigProblem]:
    """Arguments that are not there, are missing, or of another type."""
    for key in args:
        if key not in fields:
            message = f"is not an argument of {name}. It takes: {', '.join(fields) or 'none'}."
            yield ConfigProblem(f"{at}.args.{key}", message, suggest(str(key), fields))
    for key, field in fields.items():
        if key in args:
            try:
                msgspec.convert(args[key], field.type)
            except msgspec.ValidationError as error:
                yield ConfigProblem(f"{at}.args.{key}", f"{error}.")
        elif field.required:
            yield ConfigProblem(f"{at}.args.{key}", f"is required by {name}.")
