"""Where the form of a launch begins: a preset or a run to clone, with a model or a version of a dataset."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import Any

from rollouts.models import DatasetForm, DatasetVersion, Run
from rollouts.selectors import datasets
from rollouts.services.runs import forks
from trainers.config import leaves, load_preset, parse_override, preset_names, resolve
from trainers.origins import DEFAULT, Origin, OriginKind
from trainers.run_config.data import dataset_path

FORM = Origin(OriginKind.FORM)
_KINDS = ("rl", "sft", "external")
_BETA = 0.1
_RATE_OF_PAIRS = 0.05
"""Of the learning rate that imitates: preferences are learned by smaller steps (arXiv:2305.18290, appendix B)."""


@dataclass(frozen=True)
class Preset:
    """A vetted config that ships with the trainers."""

    name: str
    about: str
    kind: str
    model: str
    environments: list[str]
    max_steps: int


def list_presets(version: DatasetVersion | None = None) -> list[Preset]:
    """Every preset with the comment at the top of its file; what most people come for is first.

    With a version those that could learn from it, of the environment that its first rollout is of before others.
    """
    found = []
    for name in preset_names():
        values = load_preset(name)
        found.append(
            Preset(
                name=name,
                about=_about(name),
                kind=values.get("kind", "rl"),
                model=values.get("model", {}).get("path", ""),
                environments=[row["name"] for row in values.get("environments", [])],
                max_steps=values.get("max_steps", 0),
            )
        )
    if version is None:
        return sorted(found, key=lambda preset: _KINDS.index(preset.kind))
    first = datasets.first_group(version)
    played = first.environment.name if first else ""
    supervised = [preset for preset in found if preset.kind == "sft"]
    return sorted(supervised, key=lambda preset: played not in preset.environments)


def _word(key: str, value: Any) -> str:
    """An override that is read as this value: a text that looks like another one is in quotes."""
    bare = f"{key}={value}"
    return bare if isinstance(value, str) and parse_override(bare) == (key, value) else f"{key}={json.dumps(value)}"


def _about(name: str) -> str:
    lines = (files("trainers") / "presets" / f"{name}.toml").read_text(encoding="utf-8").splitlines()
    comment = []
    for line in lines:
        if not line.startswith("#"):
            break
        comment.append(line.lstrip("# ").rstrip())
    return " ".join(comment)


@dataclass(frozen=True)
class Source:
    """Where the form's values begin."""

    label: str
    config: dict[str, Any]
    """Of the preset or the run."""
    origins: dict[str, Origin]
    preset: str | None = None
    chosen: dict[str, Any] = field(default_factory=dict)
    """What differs from that before anybody has typed."""
    fork_optimizer: bool = False
    """Whether the state of the optimizer is taken from the checkpoint that `model.path` names, too."""

    @property
    def words(self) -> list[str]:
        """What differs, as a command line says it."""
        known = dict(leaves(self.config))
        differing = (
            (key, value) for key, value in leaves(self.chosen) if value is not None and known.get(key) != value
        )
        return [shlex.quote(_word(key, value)) for key, value in differing]

    @property
    def values(self) -> dict[str, Any]:
        """With which the form begins."""
        return merged(self.config, self.chosen)


def from_preset(name: str) -> Source:
    """Raises ConfigError when there is no such preset."""
    resolved = resolve(name)
    return Source(f"preset {name}", resolved.config.model_dump(mode="json"), resolved.origins, preset=name)


def from_run(run: Run) -> Source:
    """The config of a run, to launch it again with differences; of a fork with the checkpoints that it is from, for
    what its own config names is made for it alone and goes away."""
    cloned, known, config = Origin(OriginKind.RUN, run.key), run.origins, run.parsed.model_dump(mode="json")
    origins = {
        key: DEFAULT if known.get(key, cloned).kind is OriginKind.DEFAULT else cloned for key, _ in leaves(config)
    }
    start = known.get("model.path", cloned)
    if start.kind is OriginKind.FORK:
        config["model"] = config["model"] | {"path": start.name}
    return Source(str(cloned), config, origins, fork_optimizer=run.fork_optimizer)


def with_model(source: Source, name: str) -> Source:
    """The same, but starting from another model."""
    return _with_values(source, {"model": {"path": name}})


def with_version(source: Source, version: DatasetVersion) -> Source:
    """A supervised source whose examples, or pairs, are those of a version, and whose result is named after it.

    It starts from the model that the run started from whose rollouts the version has first, if there is one.
    """
    first = datasets.first_group(version)
    forked = first.run.forked_from if first else None
    model = forks.name_of(forked) if forked else first.run.parsed.model.path if first else ""
    name = f"{version.dataset.name}-{version.version}"
    data: dict[str, Any] = {"path": dataset_path(str(version)), "solutions": False, "echo": 0.0, "preference": None}
    values: dict[str, Any] = {"name": name, "register_as": name, "data": data}
    if version.form == DatasetForm.PAIRS:
        data["preference"] = {"beta": _BETA}
        values["optimizer"] = {"lr": source.config["optimizer"]["lr"] * _RATE_OF_PAIRS}
    if model:
        values["model"] = {"path": model}
    return _with_values(source, values)


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The base with other values, table by table."""
    whole = dict(base)
    for key, value in changes.items():
        is_table = isinstance(value, dict) and isinstance(whole.get(key), dict)
        whole[key] = merged(whole[key], value) if is_table else value
    return whole


def _with_values(source: Source, chosen: dict[str, Any]) -> Source:
    origins = {**source.origins, **{key: FORM for key, _ in leaves(chosen)}}
    same = source.fork_optimizer and "model" not in chosen
    return replace(source, origins=origins, chosen=merged(source.chosen, chosen), fork_optimizer=same)
