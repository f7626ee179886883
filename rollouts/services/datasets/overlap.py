"""Which members of a version ask what evaluations of the project asked: by the key of the problem, or word for word.

    evaluated problems ─► keys, hashes of their prompts
    members, page by page ─► key and hash of the prompt of each ─► those that are among them

A prompt ends where the policy begins to speak, and system messages are no part of it. Memory grows with the problems
that were evaluated, about 300 bytes each, and not with the version.
"""

import hashlib
from collections.abc import Iterator
from typing import Any

import msgspec

from rollouts.formats import examples
from rollouts.models import DatasetVersion
from rollouts.selectors import sampled_masks
from rollouts.services.datasets.statistics import Overlap
from rollouts.sql import load, streamed

_PAGE = 200
_ASSISTANT = '"assistant"'
"""In a conversation in which it stands once, nobody has to ask the masks, which are as long as all tokens, for whose it
is."""
_ALL_OF_IT: list[int | None] = [None]


class _Message(msgspec.Struct):
    role: str = ""
    content: msgspec.Raw = msgspec.Raw(b"null")


_decode_message = msgspec.json.Decoder(_Message).decode


class _Asked(msgspec.Struct, frozen=True):
    position: int | None
    environment: str | None
    problem_key: str | None
    group_id: int
    index: int | None
    """None: a line of a file."""
    branches: int
    messages: str | None
    is_prompt: bool = False


def find_overlap(version: DatasetVersion, *, shown: int) -> Overlap:
    """Count the members of a version that evaluations asked too; the first `shown` of them are named."""
    problems = 0
    keys: set[tuple[str | None, str]] = set()
    prompts: set[bytes] = set()
    for asked, prompt in _prompts("evaluated_prompts", project_id=version.dataset.project_id):
        problems += 1
        keys |= _keys(asked)
        prompts |= prompt
    by_key = by_prompt = members = 0
    positions: list[int] = []
    # Where nothing was evaluated no member has to be read.
    for asked, prompt in _prompts("member_prompts", version_id=version.pk) if problems else ():
        has_key, has_prompt = not keys.isdisjoint(_keys(asked)), not prompts.isdisjoint(prompt)
        by_key += has_key
        by_prompt += has_prompt
        if has_key or has_prompt:
            members += 1
            positions += [asked.position] if asked.position is not None and len(positions) < shown else []
    return Overlap(problems=problems, members=members, by_key=by_key, by_prompt=by_prompt, positions=positions)


def _keys(asked: _Asked) -> set[tuple[str | None, str]]:
    return {(asked.environment, asked.problem_key)} if asked.problem_key else set()


def _prompts(statement: str, **values: Any) -> Iterator[tuple[_Asked, set[bytes]]]:
    """What was asked, and the hash of its text if it has any."""
    for rows in streamed(load(statement), values, _PAGE):
        page = [_Asked(*row) for row in rows]
        own = sampled_masks.replies(
            (each.group_id, each.index, each.branches)
            for each in page
            if each.index is not None and (each.messages or "").count(_ASSISTANT) > 1
        )
        for each in page:
            whose = None if each.index is None else own.get((each.group_id, each.index), _ALL_OF_IT)[0]
            yield each, _hashes(each.messages, 0 if each.is_prompt else whose)


def _hashes(messages: str | None, replies: int | None) -> set[bytes]:
    try:
        told = examples.read_conversation(messages or "[]", replies)
        said = [_decode_message(part) for part in told.parts[: told.begin]]
    except msgspec.MsgspecError:  # a line of a file may have anything in the place of messages
        return set()
    texts = [bytes(each.content) for each in said if each.role != "system" and bytes(each.content) != b"null"]
    return {hashlib.sha256(b"\n".join(texts)).digest()} if texts else set()
