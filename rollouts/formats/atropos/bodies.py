"""JSON bodies by the rules of Atropos' own server: what is coerced, and what is a fault.

Only small bodies, and those that the fast decoder in `items` refused, come here.
"""

import json
import math
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from rollouts.errors import Fault, Invalid, Malformed

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


def validated(adapter: TypeAdapter[T], body: bytes, *, is_json: bool) -> T:
    """The body as what the adapter makes; as text if it does not say that it is JSON. Raises Invalid or Malformed."""
    value = parse(body) if body and is_json else body.decode(errors="replace") or None
    if value is None:
        raise Invalid(faults=[Fault((), "Field required", "missing")])
    try:
        return adapter.validate_python(value, from_attributes=True)
    except ValidationError as error:
        faults = error.errors(include_url=False)[:MAX_FAULTS]
        raise Invalid(faults=[_fault(each, is_small=len(body) <= MAX_ECHO) for each in faults]) from None


def parse(body: bytes) -> Any:
    """Plain JSON. Raises Invalid or Malformed for what is none, and for NaN and infinity: no answer could hold them."""
    try:
        return json.loads(body, parse_constant=_refuse_constant, parse_float=_finite)
    except json.JSONDecodeError as error:
        fault = Fault((error.pos,), "JSON decode error", "json_invalid", {}, {"error": error.msg})
        raise Invalid(faults=[fault]) from None
    except (ValueError, RecursionError):  # not text, numbers of thousands of digits, nested thousands deep
        raise Malformed("There was an error parsing the body") from None


def _refuse_constant(name: str) -> NoReturn:
    raise Invalid(faults=[Fault((), "Input should be a finite number", "finite_number", name)])


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        _refuse_constant(number[:40])
    return value


def _fault(error: Any, *, is_small: bool) -> Fault:
    """One of pydantic's errors. A refusal does not repeat the arrays of a large body."""
    value = error["input"]
    if not is_small:
        value = value[:MAX_ECHO] if isinstance(value, str) else None if isinstance(value, list | dict) else value
    context = error.get("ctx")
    if context is not None:
        context = {name: {} if isinstance(each, Exception) else each for name, each in context.items()}
    return Fault(error["loc"], error["msg"], error["type"], value, context)


def check_storable(body: BaseModel) -> None:
    """Raise Invalid for values that the store cannot hold."""
    faults = []
    for name, value in body:
        if isinstance(value, int | float) and abs(value) > MAX_NUMBER:
            faults.append(Fault((name,), f"Input should be {-MAX_NUMBER} to {MAX_NUMBER}", value=value))
        elif isinstance(value, str) and len(value) > MAX_TEXT:
            message = f"String should have at most {MAX_TEXT} characters"
            faults.append(Fault((name,), message, "string_too_long", value[:MAX_TEXT]))
    if faults:
        raise Invalid(faults=faults)
