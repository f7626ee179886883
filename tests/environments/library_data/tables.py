"""Small data sets in the forms in which the hub has them, and what environments make of them."""

import asyncio
import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from environments import registry
from environments.env import Environment
from environments.types import FinishedRollout, JsonObject, Message, Problem, Split


def write(path: Path, rows: Sequence[JsonObject]) -> Path:
    """Write rows in the form that the path's name ends in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(rows)), path)
    elif path.suffix == ".arrow":
        table = pa.Table.from_pylist(list(rows))
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table)
    elif path.suffix == ".json":
        path.write_text(json.dumps(list(rows), indent=2))
    else:
        path.write_bytes(gzip.compress(lines) if path.suffix == ".gz" else lines)
    return path


def loaded(name: str, data: Path | str, **args: Any) -> Environment[Any]:
    return registry.load(name, {"data": str(data), **args})


def problems(environment: Environment[Any], split: Split) -> list[Problem]:
    return [environment.problem(split, index) for index in range(environment.count(split))]


def asked(environment: Environment[Any], split: Split) -> set[str]:
    """What the problems of a split say last."""
    return {problem.messages[-1].text for problem in problems(environment, split)}


def score(environment: Environment[Any], problem: Problem, reply: str, *, thought: str | None = None) -> float:
    """The reward of one reply. Raises what scoring raised."""
    messages = [*problem.messages, Message("assistant", reply, reasoning_content=thought)]
    rollout = FinishedRollout(token_ids=[], loss_mask=[], inference_logprobs=[], messages=messages)
    [found] = asyncio.run(environment.score_group(problem, [rollout]))
    if isinstance(found, Exception):
        raise found
    return found


def solved(environment: Environment[Any], problem: Problem) -> float:
    """The reward of the environment's own solution."""
    solution = environment.solution(problem)
    assert solution is not None
    assert solution[:-1] == problem.messages
    return score(environment, problem, solution[-1].text)
