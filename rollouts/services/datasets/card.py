"""The card of an exported dataset: what it is for people, and which columns it has for Hugging Face's `datasets`."""

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from rollouts.formats.tables import COLUMNS
from rollouts.models import DatasetVersion, ExportForm

_MAX_RECIPE = 5_000


def describe(version: DatasetVersion, form: ExportForm, manifest: Mapping[str, Any], *, is_table: bool) -> str:
    """The text of README.md; `is_table`: whether every row has the columns of its form. Everything that somebody else
    wrote is quoted: none of it is a key, a heading or a tag."""
    splits = [(name.partition(".")[0], name) for name in manifest["files"]]
    files = [line for split, name in splits for line in (f"  - split: {split}", f"    path: {_quoted(name)}")]
    columns = [line for name, kind in COLUMNS[form.value].items() for line in _feature(name, kind, 2)]
    features = ["dataset_info:", "  features:", *columns] if is_table else []
    licence = ["license: other", f"license_name: {_quoted(version.dataset.licence)}"] if version.dataset.licence else []
    counts = ", ".join(f"{count} rows in {split}" for split, count in manifest["rows"].items())
    left_out = ", ".join(f"{count} {why}" for why, count in manifest["left_out"].items())
    recipe = json.dumps(manifest["recipe"], ensure_ascii=True, indent=2)[:_MAX_RECIPE]
    return "\n".join(
        [
            "---",
            *licence,
            "configs:",
            "- config_name: default",
            "  data_files:",
            *files,
            *features,
            "---",
            "",
            "# Dataset",
            "",
            f"    {_quoted(str(version))}, as {form.value}: {form.label}",
            f"    {counts}" + (f"; left out: {left_out}" if left_out else ""),
            f"    digest of its examples: {version.digest}",
            "",
            "`manifest.json` has what it was made from, and the SHA-256 of each file. Each row says its run, step,",
            "environment, policy version, problem, group, rollout and reward, and who labelled it by which guideline.",
            "`tools` is the text of their JSON. Only what the policy said stands behind the prompt.",
            "",
            "Its recipe:",
            "",
            *(f"    {line}" for line in recipe.splitlines()),
            "",
        ]
    )


def _quoted(text: str) -> str:
    """As YAML and JSON both read it, on one line."""
    return json.dumps(text, ensure_ascii=True)


def _feature(name: str, kind: pa.DataType, depth: int) -> list[str]:
    """A column as `dataset_info` wants it."""
    return [f"{' ' * depth}- name: {name}", *_kind(kind, depth + 2)]


def _kind(kind: pa.DataType, depth: int) -> list[str]:
    space = " " * depth
    if pa.types.is_list(kind):
        if not pa.types.is_struct(kind.value_type):
            return [f"{space}list: {_NAMES[kind.value_type]}"]
        return [f"{space}list:", *_fields(kind.value_type, depth)]
    if pa.types.is_struct(kind):
        return [f"{space}struct:", *_fields(kind, depth)]
    return [f"{space}dtype: {_NAMES[kind]}"]


def _fields(kind: pa.StructType, depth: int) -> list[str]:
    return [line for part in kind for line in _feature(part.name, part.type, depth)]


_NAMES = {
    pa.string(): "string",
    pa.bool_(): "bool",
    pa.int8(): "int8",
    pa.int32(): "int32",
    pa.int64(): "int64",
    pa.float64(): "float64",
}
