"""`json_schema`: whether the reply is JSON of a wanted form."""

from functools import lru_cache
from typing import Annotated, Any, Literal

import jsonschema_rs
import orjson
from msgspec import Meta

from environments.rewards import replies
from environments.rewards.registry import checked_by
from environments.rewards.text import Tag
from environments.types import FinishedRollout, JsonObject, Problem


def _check_schema(*, schema: JsonObject | None, **_: Any) -> None:
    if schema is not None:
        _validator(_encoded(schema))


@checked_by(_check_schema)
def json_schema(
    problem: Problem,
    rollout: FinishedRollout,
    *,
    schema: Annotated[JsonObject | None, Meta(description="A JSON Schema; without it the problem has one.")] = None,
    field: Annotated[str, Meta(description="Where problem.data has the schema, if none is given.")] = "schema",
    tag: Tag = "",
    within: Annotated[
        Literal["auto", "fence", "all"],
        Meta(description="What is JSON: the last block of code if there is one, else all; or always one of them."),
    ] = "auto",
) -> float:
    """1 if the last reply is JSON that is valid under a schema, else 0.

    No reference is fetched, from nowhere; patterns are matched in linear time; JSON of more than 1,024 levels is none.
    Raises ValueError for what is no schema.
    """
    wanted = replies.wanted(problem, field) if schema is None else schema
    validator = _validator(_encoded(wanted))
    said = replies.answer(problem, rollout)
    if tag:
        said = replies.in_tag(said, tag) or ""
    if within != "all":
        fenced = replies.in_fence(said)
        said = fenced if fenced is not None else said if within == "auto" else ""
    try:
        return float(validator.is_valid(orjson.loads(said)))
    except (orjson.JSONDecodeError, ValueError, RecursionError):  # of the reply: the schema is known to be one
        return 0.0


def _encoded(schema: Any) -> bytes:
    return orjson.dumps(schema, option=orjson.OPT_SORT_KEYS)


@lru_cache(maxsize=256)
def _validator(schema: bytes) -> Any:
    try:
        return jsonschema_rs.validator_for(
            orjson.loads(schema), pattern_options=jsonschema_rs.RegexOptions(), offline=True
        )
    except ValueError as exc:
        raise ValueError(f"schema: {str(exc)[:500]}") from exc
