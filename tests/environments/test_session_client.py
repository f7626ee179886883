"""The client of an agent, against a server that answers as the control plane and the gateway do."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from environments.client import Refused, SessionClient, Unreachable
from environments.types import Message, Problem
from tests import http_server

PROBLEM = Problem(key="greet", messages=[Message("user", "Say hello.")])


class Plane(http_server.Server):
    """Opens sessions and remembers what was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.refuses_finish = False
        self.pending = 0
        """Times at which a session is refused since the run has not been started yet."""
        self.busy = 0
        """Times at which what ends a session is not taken, as where the database is away."""


class _Handler(http_server.Handler):
    def do_POST(self) -> None:
        plane: Any = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        plane.asked.append((self.path, body))
        if not self.path.endswith("/finish") and plane.pending:
            plane.pending -= 1
            self.answer(409, b'{"code": "state_conflict"}', {"Content-Type": "application/problem+json"})
        elif not self.path.endswith("/finish"):
            root = f"{plane.url}/s/secret"
            problem = {"key": "greet", "messages": [{"role": "user", "content": "Say hello."}], "tools": []}
            told = {"session": "1", "group": "g", "group_size": 1, "problem": problem, "api_key": "secret"}
            told |= {"base_url": f"{root}/v1", "finish_url": f"{root}/finish", "expires_at": "2026-11-24T00:00:00Z"}
            self.answer(201, json.dumps(told).encode(), {"Content-Type": "application/json"})
        elif plane.busy:
            plane.busy -= 1
            self.answer(503, b"", {})
        elif plane.refuses_finish:
            fault = json.dumps({"error": {"code": "invalid", "message": "reward must be finite"}}).encode()
            self.answer(422, fault, {"Content-Type": "application/json"})
        else:
            self.answer(200, b'{"group_complete": true}', {"Content-Type": "application/json"})


@contextmanager
def opened(*, retry_budget_s: float = 60.0) -> Iterator[tuple[Plane, SessionClient]]:
    plane = Plane()
    with (
        http_server.running(plane),
        SessionClient(plane.url, "token", "run1", retry_budget_s=retry_budget_s) as client,
    ):
        yield plane, client


def test_a_session_is_opened_played_and_finished() -> None:
    with opened() as (plane, client):
        with client.open(PROBLEM, group="g", group_size=2) as session:
            assert session.base_url == f"{plane.url}/s/secret/v1"
            assert (session.api_key, session.problem.messages) == ("secret", PROBLEM.messages)
            assert session.finish(1.0, {"calls": 2.0})
        (path, body), (finish_path, how) = plane.asked
        assert path == "/api/v1/runs/run1/sessions"
        assert (body["group"], body["group_size"], body["problem"]["key"]) == ("g", 2, "greet")
        assert "index" not in body
        assert (finish_path, how) == ("/s/secret/finish", {"reward": 1.0, "metrics": {"calls": 2.0}})


def test_who_opens_a_session_waits_for_the_start_of_the_run() -> None:
    with opened() as (plane, client):
        plane.pending = 1
        assert client.open(PROBLEM).api_key == "secret"
        assert len(plane.asked) == 2


def test_what_leaves_the_block_fails_the_rollout() -> None:
    with opened() as (plane, client):
        with pytest.raises(ZeroDivisionError), client.open(PROBLEM):
            _ = 1 / 0
        with client.open(PROBLEM):
            pass
        with pytest.raises(RuntimeError), client.open(PROBLEM):
            raise RuntimeError("x" * 100_000)  # more than the gateway reads
        told = [how["error"] for path, how in plane.asked if path.endswith("/finish")]
        assert told[:2] == ["ZeroDivisionError: division by zero", "The program left the session without a reward."]
        assert told[2].startswith("RuntimeError: xxx")
        assert len(told[2]) == 2_000


def test_an_error_that_cannot_be_written_down_fails_the_rollout_and_is_seen() -> None:
    with opened() as (plane, client):
        with pytest.raises(OSError, match="no such file"), client.open(PROBLEM):
            raise OSError("no such file: \udcff.txt")
        assert plane.asked[-1] == ("/s/secret/finish", {"error": "OSError: no such file: ?.txt"})
        client.open(PROBLEM).fail("\ud800 is half of a character")
        assert plane.asked[-1][1] == {"error": "? is half of a character"}


def test_the_error_of_a_program_is_seen_where_it_cannot_be_told() -> None:
    with opened() as (plane, client):
        plane.refuses_finish = True
        with pytest.raises(ZeroDivisionError) as caught, client.open(PROBLEM):
            _ = 1 / 0
        assert caught.value.__notes__ == [
            "Nor could the session 1 be failed with it: 422 invalid: reward must be finite"
        ]


def test_a_refusal_says_why() -> None:
    with opened() as (plane, client):
        session = client.open(PROBLEM)
        plane.refuses_finish = True
        with pytest.raises(Refused, match="must be finite"):
            session.finish(float("1e300"))


def test_a_reward_is_told_until_it_is_taken() -> None:
    with opened() as (plane, client):
        with client.open(PROBLEM) as session:
            plane.busy = 2
            assert session.finish(1.0)
        assert [how for _, how in plane.asked[1:]] == [{"reward": 1.0, "metrics": {}}] * 3


def test_who_never_heard_that_a_reward_was_taken_does_not_fail_the_rollout() -> None:
    with opened(retry_budget_s=0) as (plane, client):
        session = client.open(PROBLEM)
        plane.busy = 1
        with pytest.raises(Unreachable, match="the end of session 1"), session:
            session.finish(1.0)
        assert [how for _, how in plane.asked[1:]] == [{"reward": 1.0, "metrics": {}}]
