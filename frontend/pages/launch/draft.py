"""From a source and what a person changed in the form to a resolved config, or to errors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from frontend.pages.launch.form import EnvironmentRow, Field, FormSection, build_environments, build_sections, read
from frontend.pages.launch.sources import FORM, Source, merged
from rollouts.errors import Conflict, Invalid, ModelMissing, Untrusted
from rollouts.services.trust import Need
from trainers.config import ConfigError, ConfigProblem, Layer, Resolved, leaves, resolve
from trainers.origins import DEFAULT, Origin, OriginKind
from trainers.run_config.typed import read_table

FORK_OPTIMIZER = "fork_optimizer"
TOML = Origin(OriginKind.FORM_TOML)
_SOURCE = Origin(OriginKind.RUN)
"""Of a value that the form began with, which keeps the origin that it has there."""


@dataclass
class Change:
    """A value that differs from the source."""

    key: str
    before: str
    after: str


@dataclass
class LaunchRequest:
    """A form that was filled in: its fields with what was typed, and what came of it."""

    source: Source
    sections: list[FormSection]
    environments: list[EnvironmentRow]
    toml: str = ""
    toml_error: str = ""
    errors: list[tuple[str, str]] = field(default_factory=list)
    """(key, message) of faults that belong to no field in the form."""
    problem_count: int = 0
    changes: list[Change] = field(default_factory=list)
    resolved: Resolved | None = None
    untrusted: list[Need] = field(default_factory=list)
    """Code from elsewhere that the run would execute, when nobody allows it."""
    missing_model: str = ""
    """The name in `model.path`, when nobody has registered it but a preset makes it."""

    @property
    def fields(self) -> dict[str, Field]:
        """Every input by its dotted key."""
        found = {item.key: item for section in self.sections for item in section.fields}
        return found | {item.key: item for row in self.environments for item in row.ordered}

    @property
    def model_field(self) -> Field | None:
        """Where the model is named; a run without a trainer of ours has none."""
        return self.fields.get("model.path")

    @property
    def takes_optimizer(self) -> bool:
        """Whether the run takes the optimizer's state of the checkpoint that it starts from."""
        return FORK_OPTIMIZER in self.fields and self.fields[FORK_OPTIMIZER].value == "on"

    @property
    def faulty(self) -> list[Field]:
        return [item for item in self.fields.values() if item.error]


def blank(source: Source) -> LaunchRequest:
    """The form as it is first shown."""
    kind, values = source.config["kind"], source.values
    sections = build_sections(kind, values, source.origins)
    if kind in {"rl", "sft"}:
        next(section for section in sections if section.key == "model").fields.append(_fork_optimizer(source))
    return LaunchRequest(source, sections, build_environments(values, source.origins))


def _fork_optimizer(source: Source) -> Field:
    """The one field that is no key of the config."""
    about = "Where the path is a checkpoint, RUN@STEP: take the state of its optimizer too. The schedule starts anew."
    value = "on" if source.fork_optimizer else ""
    return Field(FORK_OPTIMIZER, "Optimizer state too", about, "checkbox", value, value, DEFAULT)


Check = Callable[[Resolved, bool], object]
"""Raises Invalid for a config that is valid in itself, but cannot be launched here and now; with whether it takes the
optimizer's state of a checkpoint."""


def as_posted(filled: LaunchRequest) -> dict[str, str]:
    """What a browser would post of a form that nobody has touched."""
    posted = {key: item.value for key, item in filled.fields.items()}
    return posted | {f"{section.key}.on": "on" for section in filled.sections if section.is_optional and section.is_on}


def submitted(source: Source, posted: Mapping[str, str], check: Check) -> LaunchRequest:
    """Fill the form from a POST, resolve and check it. Look at `resolved`: None means there are errors to show."""
    request = blank(source)
    request.toml = posted.get("toml", "")
    inline = _read_fields(request, posted)
    typed = _read_toml(request)
    try:
        resolved = _resolve(source, inline, typed, emptied=_tables_typed(request))
        if request.toml_error:
            raise ConfigError([])
        check(resolved, request.takes_optimizer)
    except ConfigError as error:
        _attach(request, error)
        return request
    except Invalid as error:
        request.missing_model = resolved.config.model.path if isinstance(error, ModelMissing) else ""
        refused(request, error)
        return request
    request.resolved = resolved
    before, after = {FORK_OPTIMIZER: source.fork_optimizer}, {FORK_OPTIMIZER: request.takes_optimizer}
    request.changes = _changes(source.config | before, resolved.config.model_dump(mode="json") | after)
    return request


def refused(request: LaunchRequest, error: Invalid | Conflict) -> None:
    """Show why what was filled in cannot be launched."""
    request.resolved = None
    request.untrusted = list(error.needs) if isinstance(error, Untrusted) else []
    faults = error.fields or {"model.path": error.message}
    _attach(request, ConfigError([ConfigProblem(key, message) for key, message in faults.items()]))


def _resolve(source: Source, inline: dict[str, Any], typed: dict[str, Any], *, emptied: dict[str, Any]) -> Resolved:
    """What was typed as TOML wins over the fields, and both over the source, of which `emptied` keeps nothing."""
    base = [] if source.preset is not None else [Layer(_SOURCE, source.config)]
    values = merged(source.chosen, inline)
    resolved = resolve(
        source.preset,
        layers=[*base, Layer(FORM, emptied)],
        inline=values,
        inline_from=FORM,
        overrides=typed,
        overrides_from=TOML,
    )
    origins = {
        key: source.origins.get(key, from_) if from_ == _SOURCE else from_ for key, from_ in resolved.origins.items()
    }
    return Resolved(resolved.config, origins)


def _read_fields(request: LaunchRequest, posted: Mapping[str, str]) -> dict[str, Any]:
    """Put what was posted into the fields; return what was changed as a nested table."""
    inline: dict[str, Any] = {}
    for section in request.sections:
        was_on = section.is_on
        if section.is_optional:
            section.is_on = posted.get(f"{section.key}.on") == "on"
            if not section.is_on:
                if was_on:
                    inline[section.key] = None
                continue
            if not was_on:
                inline[section.key] = {}
        for item in section.fields:
            item.value = posted.get(item.key, "") if item.widget == "checkbox" else posted.get(item.key, item.value)
            item.value = item.value.strip()
            if item.value != item.initial and item.key != FORK_OPTIMIZER:
                _put(inline, item.key, read(item.value or item.empty, item.widget, is_optional=item.is_optional))
        for part in _switched_off(section):
            _put(inline, part, None)
    rows = _read_environments(request, posted)
    if rows is not None:
        inline["environments"] = rows
    return inline


def _tables_typed(request: LaunchRequest) -> dict[str, Any]:
    """The tables that somebody typed, set to nothing: over what they were, keys that were taken out would stay."""
    emptied: dict[str, Any] = {}
    for item in (item for section in request.sections for item in section.fields):
        if item.widget == "json" and item.empty == "{}" and item.value != item.initial:
            _put(emptied, item.key, None)
    return emptied


def _switched_off(section: FormSection) -> list[str]:
    """Keys of the optional tables in a section that somebody emptied: nothing in them is other than where they are not
    set."""
    parts: dict[str, list[Field]] = {}
    for item in section.fields:
        if item.part:
            parts.setdefault(item.part, []).append(item)
    return [
        key
        for key, items in parts.items()
        if any(item.value != item.initial for item in items) and all(item.value in ("", item.unset) for item in items)
    ]


def _read_environments(request: LaunchRequest, posted: Mapping[str, str]) -> list[dict[str, Any]] | None:
    """The rows that have a name, or None when no row was changed."""
    rows = []
    changed = False
    for row in request.environments:
        for item in row.ordered:
            item.value = posted.get(item.key, item.value).strip()
            changed = changed or item.value != item.initial
        if row.fields["name"].value:
            rows.append({name: read(item.value, item.widget) for name, item in row.fields.items() if item.value != ""})
    return rows if changed else None


def _read_toml(request: LaunchRequest) -> dict[str, Any]:
    try:
        return read_table(request.toml) if request.toml.strip() else {}
    except ValueError as error:
        request.toml_error = f"This is not TOML: {error}."
        return {}


def _put(tree: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    for name in parents:
        node = tree.setdefault(name, {})
        tree = node
    tree[last] = value


def _attach(request: LaunchRequest, error: ConfigError) -> None:
    """Show each problem at its field, or at the nearest one above it, or at the top."""
    request.problem_count = len(error.problems) + bool(request.toml_error)
    fields, sections = request.fields, {section.key: section for section in request.sections}
    for problem in error.problems:
        path, above = problem.path, problem.path.rpartition(".")[0]
        if path in fields or (above in fields and fields[above].widget == "json"):
            item = fields[path if path in fields else above]
            about = "" if path in fields else f"{path.removeprefix(above + '.')}: "
            item.error = " ".join(filter(None, [item.error, _sentence(about + problem.sentence)]))
        elif path == "environments" and request.environments:
            request.environments[0].fields["name"].error = _sentence(f"The list {problem.sentence}")
        elif path in sections:
            sections[path].error = _sentence(problem.sentence)
        else:
            request.errors.append((path, _sentence(problem.sentence)))


def _sentence(message: str) -> str:
    return message[:1].upper() + message[1:]


_MISSING = object()


def _changes(before: dict[str, Any], after: dict[str, Any]) -> list[Change]:
    old, new = dict(leaves(before)), dict(leaves(after))
    keys = [*new, *(key for key in old if key not in new)]
    return [
        Change(key, _text(old.get(key, _MISSING)), _text(new.get(key, _MISSING)))
        for key in keys
        if old.get(key, _MISSING) != new.get(key, _MISSING)
    ]


def _text(value: Any) -> str:
    if value is _MISSING:
        return "–"
    return value if isinstance(value, str) and value else str(value)
