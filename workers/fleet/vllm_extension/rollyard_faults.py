"""Leave behind that a server died of its input: the control plane then starts no other on it."""

import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_VARIABLE = "ROLLYARD_FAULT_FILE"
_LONGEST = 400


@contextmanager
def blaming_input() -> Iterator[None]:
    """What is refused inside is refused for good. Faults of machine and network, such as no memory, are not meant."""
    try:
        yield
    except (ValueError, KeyError, AssertionError, NotImplementedError) as error:  # the last is a RuntimeError too
        blame(_sentence(error))
        raise
    except RuntimeError as error:
        if type(error) is RuntimeError:  # torch's for shapes that differ; memory and devices have classes of their own
            blame(_sentence(error))
        raise
    except OSError as error:
        if error.errno is None:  # transformers' own, about files that are missing
            blame(_sentence(error))
        raise


def blame(sentence: str) -> None:
    """Leave what is wrong with the input."""
    path = os.environ.get(_VARIABLE)
    if not path:
        return
    partial = Path(f"{path}.partial-{uuid.uuid4().hex}")  # another node's process may have our number
    partial.write_text(json.dumps({"message": sentence[:_LONGEST]}))
    partial.rename(path)


def _sentence(error: Exception) -> str:
    """The first fault that the error tells of: pydantic's begin with a count and a key."""
    errors = getattr(error, "errors", None)
    text = str(errors()[0]["msg"]) if callable(errors) else str(error)
    first = text.strip().partition("\n")[0].partition(". ")[0].removeprefix("Value error, ")
    return first or type(error).__name__
