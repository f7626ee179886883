"""The launch form: generated from the JSON schema of RunConfig, so a new key of the config is a new field here.

    schema + values + origins -> sections of fields -> HTML -> POST -> only what was changed -> trainers.config.resolve

Help texts are the docstrings under the config's fields. The form keeps no rules of its own: what is wrong, and where,
is what `resolve` says.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainers.config import RunConfig
from trainers.origins import DEFAULT, Origin, OriginKind
from trainers.run_config.typed import read_value

COMMON = {
    "name", "max_steps", "seed", "model.path", "model.dtype",
    "sampling.group_size", "sampling.max_tokens", "sampling.temperature", "batch.batch_size",
    "algorithm.max_async_level", "algorithm.max_off_policy_steps", "algorithm.advantage",
    "optimizer.lr", "optimizer.warmup_steps", "optimizer.schedule",
    "trainer.world_size", "trainer.device", "trainer.seq_len",
    "inference.replicas", "inference.max_model_len", "inference.dtype",
    "evaluation.every", "evaluation.problems", "evaluation.temperature", "data.path", "data.batch_size",
}  # fmt: skip
"""Fields that stay in sight; the others of their section are folded."""
_HIDDEN = {"kind", "environments"}
_FOREIGN = {
    "rl": {"data"},
    "sft": {"batch", "algorithm"},
    "eval": {"data", "batch", "algorithm", "optimizer", "trainer"},
    "external": {"data", "model", "policies", "sampling", "optimizer", "trainer", "inference", "evaluation", "workers"},
}
"""Sections that have no meaning for a kind of run."""


@dataclass
class Field:
    """One input."""

    key: str
    label: str
    help: str
    widget: str
    """text, number, checkbox, select or json."""
    value: str
    initial: str
    """What it was before the person changed it, as the form shows it."""
    origin: Origin
    options: list[str] = field(default_factory=list)
    is_required: bool = False
    is_optional: bool = False
    """Whether empty means that it is not set (None)."""
    empty: str = ""
    """What an emptied input stands for: of a table or a list one with nothing in it."""
    part: str = ""
    """Key of the optional table inside its section that it belongs to, such as `data.preference`."""
    unset: str = ""
    """What it shows where that table is not set."""
    error: str = ""

    @property
    def name(self) -> str:
        return self.key

    @property
    def id(self) -> str:
        return f"id-{self.key.replace('.', '-')}"

    @property
    def is_default(self) -> bool:
        return self.origin.kind is OriginKind.DEFAULT

    @property
    def is_common(self) -> bool:
        return self.key in COMMON


@dataclass
class FormSection:
    """A fieldset: the fields in sight, and those that are folded."""

    key: str
    title: str
    help: str
    fields: list[Field]
    is_optional: bool = False
    is_on: bool = True
    """Whether an optional section is part of the run."""
    error: str = ""

    @property
    def common(self) -> list[Field]:
        return [item for item in self.fields if item.is_common]

    @property
    def folded(self) -> list[Field]:
        return [item for item in self.fields if not item.is_common]

    @property
    def is_open(self) -> bool:
        """Folded fields must be in sight when one of them is wrong or was chosen."""
        return any(item.error or item.value != item.initial for item in self.folded)


@dataclass
class EnvironmentRow:
    """One environment of the mixture; a row without a name is left out."""

    index: int
    fields: dict[str, Field]

    @property
    def ordered(self) -> list[Field]:
        return list(self.fields.values())


_SCHEMA = RunConfig.model_json_schema()
_LABELS = {
    "lr": "Learning rate",
    "eps": "Epsilon",
    "args": "Arguments",
    "kv_cache_gib": "KV cache",
    "max_async_level": "Async level",
    "max_off_policy_steps": "Most off-policy steps",
    "gpu_memory_utilization": "GPU memory share",
    "std_epsilon": "Deviation epsilon",
    "token_batch_size": "Tokens per step",
    "world_size": "Processes",
    "checkpoint_every": "Checkpoint every",
    "model.lora.rank": "LoRA rank",
    "model.lora.alpha": "LoRA alpha",
    "model.lora.dropout": "LoRA dropout",
    "model.lora.target_modules": "LoRA target modules",
    "model.lora.path": "LoRA adapter",
    "seq_len": "Sequence length",
}
"""Where the key's own words do not read well."""
_UNITS = {"s": "s", "gib": "GiB"}
_TITLES = {"rl": "RL", "": "Run", "inference": "Inference servers", "workers": "Episode drivers"}


def build_sections(kind: str, values: Mapping[str, Any], origins: Mapping[str, Origin]) -> list[FormSection]:
    """All sections for a kind of run, filled with the values of a config."""
    hidden = _HIDDEN | _FOREIGN[kind]
    top: list[Field] = []
    sections: list[FormSection] = []
    for name, schema in _SCHEMA["properties"].items():
        if name in hidden:
            continue
        resolved, is_optional = _dereference(schema)
        if "properties" not in resolved:
            top.append(_field(name, schema, values.get(name), origins, name in _SCHEMA.get("required", [])))
            continue
        content = values.get(name)
        sections.append(
            FormSection(
                key=name,
                title=_TITLES.get(name, name.capitalize()),
                help=resolved.get("description", ""),
                fields=_fields(name, resolved, content or {}, origins),
                is_optional=is_optional and name != "data",
                is_on=content is not None or not is_optional,
            )
        )
    return [FormSection("", _TITLES[""], "", top), *sections]


def build_environments(values: Mapping[str, Any], origins: Mapping[str, Origin]) -> list[EnvironmentRow]:
    """A row per environment, and an empty one to add another."""
    schema, _ = _dereference(_SCHEMA["properties"]["environments"]["items"])
    rows = [*values.get("environments", []), {}]
    return [
        EnvironmentRow(
            index,
            {
                name: _field(f"environments.{index}.{name}", part, row.get(name, part.get("default")), origins, False)
                for name, part in schema["properties"].items()
            },
        )
        for index, row in enumerate(rows)
    ]


def _fields(
    at: str, schema: Mapping[str, Any], values: Mapping[str, Any], origins: Mapping[str, Origin]
) -> list[Field]:
    found: list[Field] = []
    for name, part in schema["properties"].items():
        resolved, is_optional = _dereference(part)
        key = f"{at}.{name}"
        if "properties" in resolved:
            inner = _fields(key, resolved, values.get(name) or {}, origins)
            for item, unset in zip(inner, _fields(key, resolved, {}, {}), strict=True) if is_optional else ():
                item.label = f"{_label(name)} {item.label.lower()}"  # `data.validation.path` stands beside `data.path`
                item.part, item.unset = key, unset.value
            found += inner
        elif "const" not in resolved:
            value = values.get(name, resolved.get("default"))
            found.append(_field(key, part, value, origins, name in schema.get("required", [])))
    return found


def _field(key: str, schema: Mapping[str, Any], value: Any, origins: Mapping[str, Origin], is_required: bool) -> Field:
    resolved, is_optional = _dereference(schema)
    widget = _widget(resolved)
    text = show(value, widget)
    return Field(
        key=key,
        label=_LABELS.get(key) or _label(key.rsplit(".", 1)[-1]),
        help=schema.get("description") or resolved.get("description", ""),
        widget=widget,
        value=text,
        initial=text,
        origin=origins.get(key, DEFAULT),
        options=[*([""] if is_optional else []), *(str(option) for option in resolved.get("enum", []))],
        is_required=is_required,
        is_optional=is_optional,
        empty="" if widget != "json" or is_optional else "[]" if resolved.get("type") == "array" else "{}",
    )


def _label(name: str) -> str:
    words = name.split("_")
    unit = _UNITS.get(words[-1]) if len(words) > 1 else None
    text = _LABELS.get(name) or " ".join(words[:-1] if unit else words).capitalize()
    return f"{text} ({unit})" if unit else text


def _widget(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return "select"
    kind = schema.get("type")
    if kind == "boolean":
        return "checkbox"
    if kind in {"integer", "number"}:
        return "number"
    return "text" if kind == "string" else "json"


def _dereference(schema: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
    """The schema behind `$ref` and `X | None`, and whether None is allowed."""
    is_optional = False
    while True:
        if "$ref" in schema:
            schema = _SCHEMA["$defs"][schema["$ref"].rsplit("/", 1)[-1]]
        elif "anyOf" in schema:
            parts = [part for part in schema["anyOf"] if part.get("type") != "null"]
            is_optional = is_optional or len(parts) < len(schema["anyOf"])
            schema = parts[0]
        else:
            return schema, is_optional


def show(value: Any, widget: str) -> str:
    """A config value as the text of its input."""
    if widget == "checkbox":
        return "on" if value else ""
    if value is None:
        return ""
    if widget == "json":
        return json.dumps(value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def read(text: str, widget: str, *, is_optional: bool = False) -> Any:
    """The text of an input as a config value. What cannot be read stays text, for pydantic to name the fault."""
    if widget == "checkbox":
        return text == "on"
    if is_optional and not text:
        return None
    if widget == "number":
        for convert in (int, float):
            try:
                return convert(text)
            except ValueError:
                continue
        return text
    if widget == "json":
        return _read_structure(text)
    return text


def _read_structure(text: str) -> Any:
    try:
        return read_value(text)
    except ValueError:
        return text  # for the config to say what is wrong with it
