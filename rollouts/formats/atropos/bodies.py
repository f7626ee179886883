"""JSON bodies by the rules of Atropos' own server: what is coerced, and the words in which a fault is told.

Only small bodies, and those that the fast decoder in `items` refused, come here.
"""

import json
import math
from email.message import Message
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from rollouts.doors.atropos.responses import Refused, fault, invalid, problem

MAX_FAULTS = 100
MAX_NUMBER = 2**31 - 1
MAX_TEXT = 4000
MAX_ECHO = 10_000
"""Bytes of a body whose faulty values are sent back with the fault, as FastAPI does; of a larger one only numbers."""

T = TypeVar("T")


class Registration(BaseModel):
    """A trainer introduces itself."""

    wandb_group: str
    wandb_project: str
    batch_size: int
    """In sequences."""
    max_token_len: int
    checkpoint_dir: str
    save_checkpoint_interval: int
    starting_step: int
    num_steps: int


class RegisterEnv(BaseModel):
    """An environment introduces itself."""

    model_config = ConfigDict(allow_inf_nan=False)

    max_token_length: int
    desired_name: str
    weight: float
    group_size: int
    min_batch_allocation: float | None = None


class EnvIdentifier(BaseModel):
    """An environment names itself."""

    env_id: int


REGISTRATION = TypeAdapter(Registration)
REGISTER_ENV = TypeAdapter(RegisterEnv)
ENV_IDENTIFIER = TypeAdapter(EnvIdentifier)


def is_json(content_type: str) -> bool:
    """Whether FastAPI would parse a body of this type as JSON."""
    if content_type == "application/json":
        return True
    if not content_type:
        return False
    message = Message()
    message["content-type"] = content_type
    subtype = message.get_content_subtype()
    return message.get_content_maintype() == "application" and (subtype == "json" or subtype.endswith("+json"))


def validated(adapter: TypeAdapter[T], body: bytes, content_type: str) -> T:
    """The body as what the adapter makes. Raises Refused with the answer to give."""
    value = parse(body) if body and is_json(content_type) else body.decode(errors="replace") or None
    if value is None:
        raise invalid([fault("missing", (), "Field required")])
    try:
        return adapter.validate_python(value, from_attributes=True)
    except ValidationError as error:
        faults = error.errors(include_url=False)[:MAX_FAULTS]
        raise invalid([_worded(each, is_small=len(body) <= MAX_ECHO) for each in faults]) from None


def parse(body: bytes) -> Any:
    """Plain JSON. Raises Refused for what is none, and for NaN and infinity, which no answer could hold."""
    try:
        return json.loads(body, parse_constant=_refuse_constant, parse_float=_finite)
    except json.JSONDecodeError as error:
        raise invalid(
            [
                {
                    "type": "json_invalid",
                    "loc": ["body", error.pos],
                    "msg": "JSON decode error",
                    "input": {},
                    "ctx": {"error": error.msg},
                }
            ]
        ) from None
    except (ValueError, RecursionError):  # not text, numbers of thousands of digits, nested thousands deep
        raise Refused(problem(400, "There was an error parsing the body")) from None


def _refuse_constant(name: str) -> NoReturn:
    raise invalid([fault("finite_number", (), "Input should be a finite number", name)])


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        _refuse_constant(number[:40])
    return value


def _worded(error: Any, *, is_small: bool) -> dict[str, Any]:
    """One of pydantic's errors as FastAPI sends it. A refusal does not repeat the arrays of a large body."""
    value = error["input"]
    if not is_small:
        value = value[:MAX_ECHO] if isinstance(value, str) else None if isinstance(value, list | dict) else value
    worded = {**error, "loc": ["body", *error["loc"]], "input": value}
    if "ctx" in error:
        worded["ctx"] = {name: {} if isinstance(each, Exception) else each for name, each in error["ctx"].items()}
    return worded


def check_storable(body: BaseModel) -> None:
    """Raise Refused for values that the store cannot hold."""
    faults = []
    for name, value in body:
        if isinstance(value, int | float) and abs(value) > MAX_NUMBER:
            faults.append(fault("value_error", (name,), f"Input should be {-MAX_NUMBER} to {MAX_NUMBER}", value))
        elif isinstance(value, str) and len(value) > MAX_TEXT:
            message = f"String should have at most {MAX_TEXT} characters"
            faults.append(fault("string_too_long", (name,), message, value[:MAX_TEXT]))
    if faults:
        raise invalid(faults)
