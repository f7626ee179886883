"""What a run learns from, if that is a version of a dataset: found at its launch, written before its trainer starts.

    data.path = "dataset:NAME@3"     this version of a dataset of the run's project
                "dataset:NAME"       its newest version at the launch, which the config then names

The run keeps which versions they are, and what their files hash to, so lineage is asked in both directions.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from environments.types import Split
from rollouts.errors import Invalid
from rollouts.models import Dataset, DatasetVersion, ExportForm, Project, Run, RunDataset
from rollouts.services.datasets import choosing, files, rendering
from trainers.run_config import RunConfig
from trainers.run_config.data import dataset_name, dataset_path

PATHS = {Split.TRAIN.value: "data.path", Split.EVAL.value: "data.validation.path"}
_NOTHING = "Nothing was launched."


class Learned(NamedTuple):
    """A version that a run learns from, or is measured on."""

    split: str
    version: DatasetVersion


def find(project: Project, config: RunConfig) -> list[Learned]:
    """What a config names. Raises Invalid at the key that names none, or one of another form than the run learns."""
    for key, split in _splits(config).items():
        if split not in files.NAMES.values():
            fault = f"A version of a dataset has the splits {' and '.join(files.NAMES.values())}."
            raise Invalid(_NOTHING, fields={PATHS[key].replace("path", "split"): fault})
    return [Learned(split, _find(project, config, PATHS[split], name)) for split, name in _named(config)]


def with_versions(config: RunConfig, learned: list[Learned]) -> RunConfig:
    """The config with the number of each version, also where it was left out."""
    if config.data is None or not learned:
        return config
    paths = {each.split: dataset_path(str(each.version)) for each in learned}
    changed = {"path": paths.get(Split.TRAIN.value, config.data.path)}
    if config.data.validation is not None and Split.EVAL.value in paths:
        changed["validation"] = config.data.validation.model_copy(update={"path": paths[Split.EVAL.value]})  # type: ignore[assignment]
    return config.model_copy(update={"data": config.data.model_copy(update=changed)})


def keep(run: Run, learned: Sequence[Learned]) -> None:
    """Note what a run learns from. Call it in the transaction that stores the run."""
    RunDataset.objects.bulk_create(RunDataset(run=run, version=each.version, split=each.split) for each in learned)


def prepare(run: Run) -> list[Path]:
    """Write what the run learns from into its directory, where its trainer looks; instant for what is there.

    Returns the directories. May be killed anywhere, and goes on. Raises Conflict while another process writes it.
    """
    written = []
    for each in run.datasets.select_related("version__dataset__project", "version__parent__dataset"):
        directory = run.datasets_directory / str(each.version)
        if not each.sha256:
            manifest = _written(directory) or files.write_directory(
                each.version, _form(run.parsed), directory, suffix=".jsonl"
            )
            name = f"{_splits(run.parsed)[each.split]}.jsonl"
            found = manifest["files"].get(name, {"sha256": "", "rows": 0})
            RunDataset.objects.filter(pk=each.pk).update(sha256=found["sha256"], row_count=found["rows"])
        written.append(directory)
    return written


def _written(directory: Path) -> dict[str, Any] | None:
    """What was written there, to its end."""
    try:
        manifest: dict[str, Any] = json.loads((directory / files.MANIFEST).read_bytes())
    except OSError:
        return None
    names = [name for name in manifest["files"] if not (directory / name).is_file()]
    return None if names else manifest


def _named(config: RunConfig) -> Iterator[tuple[str, str]]:
    if config.data is None:
        return
    if (name := dataset_name(config.data.path)) is not None:
        yield Split.TRAIN.value, name
    validation = config.data.validation
    if validation is not None and (name := dataset_name(validation.path)) is not None:
        yield Split.EVAL.value, name


def _splits(config: RunConfig) -> dict[str, str]:
    """Which split of a version each part of the data is."""
    data, named = config.data, dict(_named(config))
    of_data = {} if data is None else {Split.TRAIN.value: data.split}
    if data is not None and data.validation is not None:
        of_data[Split.EVAL.value] = data.validation.split
    return {part: split for part, split in of_data.items() if part in named}


def _find(project: Project, config: RunConfig, key: str, name: str) -> DatasetVersion:
    try:
        version = choosing.find_version(project, name if "@" in name else f"{name}@{_newest(project, name)}")
        rendering.check_form(version, _form(config))
    except Invalid as error:
        fault = next(iter(error.fields.values()))
        known = Dataset.objects.filter(project=project).order_by("-id").values_list("name", flat=True)[:5]
        fix = f"`rollyard datasets make{project.command_option}` makes one"
        if known:
            fix = f"project {project.slug} has {', '.join(known)}"
        if "form" in error.fields:
            fix = "set data.preference.beta to learn from pairs, and leave it out to learn from examples"
        raise Invalid(_NOTHING, fields={key: f"{fault}: {fix}."}) from None
    return version


def _newest(project: Project, name: str) -> int:
    found = DatasetVersion.objects.filter(dataset__project=project, dataset__name=name).order_by("-version")
    return found.values_list("version", flat=True).first() or 1


def _form(config: RunConfig) -> ExportForm:
    assert config.data is not None, "only supervised runs learn from datasets"
    return ExportForm.SFT if config.data.preference is None else ExportForm.DPO
