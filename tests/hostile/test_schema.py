"""What the description of the native API allows, and what it forbids, sent to every operation it names.

Of an answer it is checked that it is no error of the server, and that a success is shaped as described.
"""

import json
import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance

from controlplane.asgi import application
from rollouts.models import Run
from tests.factories import make_run
from tests.lanes import amount
from tests.rollouts import story
from tests.rollouts.api import make_token
from tests.rollouts.doors.atropos.api import make_external_run

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.slow,
    # Whatever draws from `random` while schemathesis makes its strategies, in any thread, would fail a case.
    pytest.mark.filterwarnings("ignore:Do not use the `random` module:hypothesis.errors.HypothesisDeprecationWarning"),
]
SNAPSHOT = Path(__file__).parents[1] / "snapshots" / "openapi.json"
OPERATIONS = [
    each["operationId"] for path in json.loads(SNAPSHOT.read_text())["paths"].values() for each in path.values()
]
EXAMPLES = amount(10, 300)
"""For each operation: half of them fit the description, half do not."""


@schemathesis.serializer("application/msgpack")
def _packed(_context: Any, value: Any) -> bytes:
    try:
        return msgspec.msgpack.encode(value)
    except (OverflowError, ValueError, TypeError):
        return repr(value).encode(errors="replace")


@pytest.fixture
def runs() -> list[Run]:
    """A run of each kind, one of them with work that is claimed, one that is over."""
    playing = story.launch()
    story.claim(playing, 2)
    return [playing, make_external_run(), make_run(preset="reverse-text-sft"), make_run(state="finished")]


@pytest.mark.parametrize("name", OPERATIONS)
def test_no_request_to_it_is_an_error_of_ours(name: str, runs: list[Run], caplog: pytest.LogCaptureFixture) -> None:
    schema = schemathesis.openapi.from_asgi("/api/v1/schema?format=json", application)
    operation = schema.find_operation_by_id(name)
    token = make_token()

    def cases(run: Run, mode: GenerationMode) -> st.SearchStrategy[Any]:
        query = {"wait_s": 0} if name == "fetchBatch" else None
        return operation.as_strategy(mode, path_parameters={"key": run.key}, query=query)

    @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.one_of(cases(run, mode) for run in runs for mode in GenerationMode))
    def check(case: Any) -> None:
        headers = {"Authorization": f"Token {token}"}
        if "Rollyard-Epoch" in case.headers and case.headers["Rollyard-Epoch"].isdigit():
            headers["Rollyard-Epoch"] = str(Run.objects.get(key=case.path_parameters["key"]).epoch)
        response = case.call(headers=headers)
        is_taken = response.status_code < 300
        case.validate_response(
            response, checks=[not_a_server_error, *([response_schema_conformance] if is_taken else [])]
        )

    check()
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []
