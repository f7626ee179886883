"""Files of what people said elsewhere, read as words: our own JSONL, and the JSON exports of Label Studio and Argilla.

    {"group": KEY, "rollout": 0, "verdict": "reject", "tags": ["loop"], "score": 2, "note": "...", "person": "ada"}

A task of Label Studio, or a record of Argilla, names the group (and the rollout) in its data or metadata. Of what its
people chose, `accept`, `reject` and `skip` are verdicts and everything else is a tag, as is what they mark in a text; a
rating is the score, and what they wrote the note, one line each. Argilla: https://docs.argilla.io; Label Studio: https://labelstud.io/guide/export.html.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from rollouts.models import LabelVerdict
from rollouts.models.curation import MAX_TAG
from rollouts.services.curation.labels import MAX_SECONDS

_UNREADABLE = (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError)
_VERDICTS = (LabelVerdict.ACCEPT.value, LabelVerdict.REJECT.value, LabelVerdict.SKIP.value)


class Word(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one person said of something. See `models.Label`."""

    group: str
    """Key."""
    rollout: int | None = None
    other: int | None = None
    preference: str = ""
    verdict: str
    tags: list[str] = []
    score: float | None = None
    note: str = ""
    seconds: float | None = None
    person: str = ""
    """Who said it, by the name of their account here; empty: whoever imports it."""


@dataclass(frozen=True)
class Told:
    """A place in a file, and the word there or why there is none."""

    at: str
    word: Word | None = None
    fault: str = ""


class _Annotation(msgspec.Struct):
    result: list[dict[str, Any]] = []
    completed_by: Any = None
    lead_time: float | None = None
    was_cancelled: bool = False


class _Answer(msgspec.Struct):
    value: Any
    user_id: str | None = None


def words_of(data: bytes, name: str) -> Iterator[Told]:
    """What a file says, in order. Lines are counted from 1, tasks and records of a JSON list as well."""
    text = data.lstrip()
    if text.startswith(b"["):
        try:
            items: list[msgspec.Raw] = msgspec.json.decode(text, type=list[msgspec.Raw])
        except _UNREADABLE as error:
            yield Told(name, fault=f"is no JSON: {error}")
            return
        for number, item in enumerate(items, 1):
            yield from _read(bytes(item), f"{name}: item {number}")
        return
    for number, line in enumerate(data.splitlines(), 1):
        if line.strip():
            yield from _read(line, f"{name}:{number}")


def _read(text: bytes, at: str) -> Iterator[Told]:
    try:
        item = msgspec.json.decode(text)
        if not isinstance(item, dict):
            raise msgspec.ValidationError("is no JSON object")
        if "annotations" in item:
            told = _of_label_studio(item)
        elif "responses" in item:
            told = _of_argilla(item)
        else:
            told = iter([msgspec.convert(item, Word)])
        for each in told:
            yield Told(at, fault=each) if isinstance(each, str) else Told(at, each)
    except _UNREADABLE as error:
        yield Told(at, fault=str(error))


def _of_label_studio(task: dict[str, Any]) -> Iterator[Word | str]:
    subject = _subject(task.get("data"), "data")
    for given in msgspec.convert(task["annotations"], list[_Annotation]):
        choices: list[str] = []
        notes: list[str] = []
        said: dict[str, Any] = {}
        for result in given.result:
            match result.get("value"):
                case {"choices": [*chosen]} | {"taxonomy": [*chosen]}:
                    choices += map(str, chosen)
                case {"rating": score} | {"number": score}:
                    said["score"] = score
                # What is marked in a text says that text too, which is nobody's note.
                case {"labels": [*chosen]} | {"hypertextlabels": [*chosen]} | {"paragraphlabels": [*chosen]}:
                    choices += map(str, chosen)
                case {"text": [*texts]}:
                    notes += map(str, texts)
                case {"text": str(text)}:
                    notes.append(text)
        person = given.completed_by
        if isinstance(person, dict):
            person = person.get("email") or person.get("username") or person.get("id")
        if given.lead_time is not None:  # a page may stand open for days
            said["seconds"] = min(given.lead_time, MAX_SECONDS)
        if given.was_cancelled:  # what was chosen before is no word of theirs
            choices = [LabelVerdict.SKIP.value, *(each for each in choices if each.strip().lower() not in _VERDICTS)]
        yield _word(subject, choices, notes, said, person)


def _of_argilla(record: dict[str, Any]) -> Iterator[Word | str]:
    subject = _subject(record.get("metadata"), "metadata")
    answers = msgspec.convert(record["responses"], dict[str, list[_Answer]])
    for person in dict.fromkeys(each.user_id for given in answers.values() for each in given):
        choices: list[str] = []
        notes: list[str] = []
        said: dict[str, Any] = {}
        for given in answers.values():
            for value in (each.value for each in given if each.user_id == person):
                match value:
                    case bool() | None:
                        pass
                    case int() | float():
                        said["score"] = value
                    case [*chosen]:
                        choices += map(_chosen, chosen)
                    case str() if value.strip().lower() in _VERDICTS or _may_be_chosen(value):
                        choices.append(value)
                    case str():
                        notes.append(value)
        yield _word(subject, choices, notes, said, person)


def _subject(data: Any, where: str) -> dict[str, Any]:
    if not isinstance(data, dict) or not isinstance(data.get("group"), str):
        raise msgspec.ValidationError(f"`{where}.group` must say the key of the group")
    return {name: data[name] for name in ("group", "rollout", "other") if data.get(name) is not None}


def _may_be_chosen(text: str) -> bool:
    """Whether an answer that is text can be one of the choices of a question: the file does not say what was asked.
    Many languages write sentences without spaces."""
    return len(text.split()) == 1 and len(text) <= MAX_TAG


def _chosen(each: Any) -> str:
    """One of the choices of a question, a ranking, or of the spans of a text."""
    return str(each.get("value", each.get("label", ""))) if isinstance(each, dict) else str(each)


def _word(
    subject: dict[str, Any], choices: Sequence[str], notes: Sequence[str], said: dict[str, Any], person: Any
) -> Word | str:
    """What one person said, or why it is no word: those of the others beside it are."""
    chosen = [choice.strip() for choice in choices if choice.strip()]
    verdicts = [choice.lower() for choice in chosen if choice.lower() in _VERDICTS]
    tags = [choice for choice in chosen if choice.lower() not in _VERDICTS]
    whose = "" if person is None else str(person)
    if len(set(verdicts)) > 1:
        return f"{whose} says {' and '.join(verdicts)} of the same".strip()
    if not verdicts:
        return f"{whose} has none of the choices {', '.join(_VERDICTS)}".strip()
    values = {name: value for name, value in said.items() if value is not None}
    try:
        told = {"verdict": verdicts[0], "tags": tags, "note": "\n".join(notes), "person": whose}
        return msgspec.convert(subject | values | told, Word)
    except msgspec.ValidationError as error:
        return f"{whose}: {error}" if whose else str(error)
