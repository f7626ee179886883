"""What a version of a dataset is chosen by: where its rollouts are from, and which of them are good enough."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from rollouts.errors import Invalid
from rollouts.models import (
    Dataset,
    DatasetForm,
    DatasetMember,
    DatasetVersion,
    LabelQueue,
    Project,
    QueueItem,
    Run,
    ScoredGroup,
)
from rollouts.services.curation.examples import CURATED, curated_states
from rollouts.services.curation.filters import fault_of_keys
from rollouts.states import GroupState
from rollouts.storable import FINITE, MAX_INT

CHOOSABLE = (*CURATED, GroupState.FAILED, GroupState.EVALUATED)
"""States that a recipe may name."""
NOTHING = "Nothing was made"


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which rollouts become members. Exactly one of `runs`, `queue` and `version` says where they are from."""

    runs: list[str] = []
    """Keys of runs of the project."""
    groups: list[str] = []
    """Only these of the one run that `runs` names, by their keys. Empty: all."""
    queue: str = ""
    """Key of a queue of the project: what it holds."""
    version: str = ""
    """`NAME@3`: what this version of a dataset of the project has, of which the rest of the recipe leaves out more."""
    environment: str = ""
    """Only groups of this one."""
    states: list[str] = []
    """Of the groups. Empty: every training group that no person rejected; of a teacher all that it scored."""
    best: Annotated[int, Meta(ge=1, le=MAX_INT)] | None = None
    """At most so many of each group, of each of its seats, the best; null: all. Of pairs: so many pairs."""
    min_reward: float | None = None
    max_reward: float | None = None
    """What people corrected has its correction in place of a reward. Of a pair the chosen rollout is meant."""
    min_gap: Annotated[float, Meta(ge=0)] = 0.0
    """Of a pair that no person made: the chosen rollout's reward is higher by more than this."""
    truncated: bool = False
    """Also rollouts that a token budget ended: they teach no end."""
    accepted: bool = False
    """Only what somebody accepts, the rollout or its group."""
    rejected: bool = False
    """Also what somebody rejects, as what is to be avoided (KTO); else it is left out."""
    unwanted_below: float | None = None
    """Also rollouts with a lower reward, and those that somebody rejects, as what is to be avoided (KTO)."""
    tags: list[str] = []
    """Only what somebody gave one of these, the rollout or its group."""
    has_correction: bool = False
    """Only rollouts that somebody corrected."""
    validation_share: Annotated[float, Meta(ge=0, lt=1)] | None = None
    """Share of the problems in the validation split; null: as in the version that this one is made of, or none. The key
    of a problem decides, so it is in the same split everywhere."""
    limit: Annotated[int, Meta(ge=1, le=MAX_INT)] | None = None
    """At most so many members, the first."""


_OF_ROWS = {"version", "validation_share", "limit"}
"""What a recipe may say of rows of a file."""
_OF_EXAMPLES = {"rejected", "unwanted_below"}
_OF_PAIRS = {"min_gap"}


@dataclass(frozen=True)
class ResolvedRecipe:
    """A recipe whose names have been looked up in a project."""

    recipe: Recipe
    """With its `validation_share`."""
    form: DatasetForm
    parent: DatasetVersion | None
    has_rows: bool
    """Whether the members are rows of a file."""
    parameters: dict[str, Any] = field(repr=False)
    """Of `sql/dataset_candidates.sql` and what goes on from it, but for `version_id`."""


def choose(project: Project, form: str, recipe: Recipe) -> ResolvedRecipe:
    """Look up what a recipe names. Raises Invalid, by field."""
    faults = _faults(form, recipe)
    if len(sources := [name for name in ("runs", "queue", "version") if getattr(recipe, name)]) != 1:
        faults["runs"] = "or queue or version must be given: exactly one of them says where the members are from"
    _refuse(faults)
    queue, parent = None, None
    if sources == ["runs"]:
        runs = _runs(project, recipe.runs)
    elif sources == ["queue"]:
        queue = LabelQueue.objects.filter(project=project, key=recipe.queue).first()
        if queue is None:
            raise _invalid("queue", f"{recipe.queue} is no queue of this project")
        runs = _of_groups(project, QueueItem.objects.filter(queue=queue).values("group"))
    else:
        parent = find_version(project, recipe.version)
        if parent.form != form:
            raise _invalid("version", f"has {parent.form}: what is made of it has the same form")
        runs = _of_groups(project, DatasetMember.objects.filter(version=parent, group__isnull=False).values("group"))
    has_rows = parent is not None and parent.members.filter(row__isnull=False).exists()
    if has_rows:
        _refuse(dict.fromkeys(_given(recipe) - _OF_ROWS, "says nothing of rows of a file"))
    if recipe.validation_share is None:
        share = parent.recipe.get("validation_share", 0.0) if parent is not None else 0.0
        recipe = msgspec.structs.replace(recipe, validation_share=share)
    teaching = [run for run in runs if curated_states(run) != CURATED]
    parameters = msgspec.structs.asdict(recipe) | {
        "run_ids": [run.pk for run in runs],
        "teaching": [run.pk for run in teaching],
        "spoken": [run.pk for run in runs if run.parsed.model.endpoint],
        "states": recipe.states or [state.value for state in CURATED],
        "taught": recipe.states or [GroupState.EVALUATED.value],
        "queue_id": queue and queue.pk,
        "parent_id": parent and parent.pk,
        "is_picked": queue is not None or parent is not None,
        "rejected": recipe.rejected or recipe.unwanted_below is not None,
        "has_tags": bool(recipe.tags),
    }
    return ResolvedRecipe(recipe, DatasetForm(form), parent, has_rows, parameters)


def find_version(project: Project, named: str) -> DatasetVersion:
    """The version that `NAME@3` names in a project. Raises Invalid."""
    name, _, number = named.rpartition("@")
    # Not more digits than the column has.
    if not name or not number.isascii() or not number.isdigit() or len(number) > 9:
        raise _invalid("version", f"{named!r} must name a version of a dataset, as `name@3`")
    found = DatasetVersion.objects.filter(dataset__project=project, dataset__name=name, version=int(number))
    version = found.select_related("dataset").first()
    if version is None:
        known = Dataset.objects.filter(project=project, name=name).exists()
        raise _invalid("version", f"{name} has no version {number}" if known else f"there is no dataset {name} here")
    return version


def _runs(project: Project, keys: list[str]) -> list[Run]:
    found = {run.key: run for run in project.runs.filter(key__in=keys)}
    if unknown := [key for key in keys if key not in found]:
        raise _invalid("runs", f"{', '.join(unknown[:3])} {'are none' if unknown[1:] else 'is no run'} of this project")
    return list(found.values())


def _of_groups(project: Project, group_ids: Any) -> list[Run]:
    return list(Run.objects.filter(pk__in=ScoredGroup.objects.filter(pk__in=group_ids).values("run"), project=project))


def _given(recipe: Recipe) -> set[str]:
    plain = Recipe()
    return {name for name in Recipe.__struct_fields__ if getattr(recipe, name) != getattr(plain, name)}


def _faults(form: str, recipe: Recipe) -> dict[str, str]:
    faults = {}
    if form not in DatasetForm.values:
        faults["form"] = f"must be one of {', '.join(DatasetForm.values)}"
    if unknown := set(recipe.states) - set(CHOOSABLE):
        faults["states"] = f"{', '.join(sorted(unknown))} must be of {', '.join(CHOOSABLE)}"
    given = _given(recipe)
    others, what = (_OF_EXAMPLES, "examples") if form == DatasetForm.PAIRS else (_OF_PAIRS, "pairs")
    faults |= dict.fromkeys(sorted(given & others), f"is asked of {what}")
    if fault := fault_of_keys(recipe.groups, is_of_one_run=len(recipe.runs) == 1):
        faults["groups"] = fault
    for name in ("min_reward", "max_reward", "min_gap", "unwanted_below"):
        if (number := getattr(recipe, name)) is not None and not abs(number) <= FINITE:
            faults[name] = "must be a finite number"
    bounds = (recipe.min_reward, recipe.max_reward)
    if None not in bounds and bounds[0] > bounds[1]:  # type: ignore[operator]
        faults["max_reward"] = "must not be less than min_reward"
    return faults


def _refuse(faults: dict[str, str]) -> None:
    if faults:
        raise Invalid(f"{NOTHING}: {told(faults.items())}.", fields=faults)


def _invalid(name: str, fault: str) -> Invalid:
    return Invalid(f"{NOTHING}: {name} {fault}.", fields={name: fault})


def told(faults: Iterable[tuple[str, str]]) -> str:
    """Faults in one line."""
    return ", ".join(f"{name} {fault}" for name, fault in faults)
