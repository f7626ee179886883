"""Play a run's live policy from outside: the client of an agent.

    with SessionClient(url, token, run) as client:
        with client.open(environment="calculator", index=7, group="7", group_size=8) as session:
            answer = OpenAI(base_url=session.base_url, api_key=session.api_key).chat.completions.create(...)
            session.finish(reward=score(answer))

What was sampled is recorded at the gateway; a session that is left without `finish` has failed. Needs neither Django,
torch nor the OpenAI SDK: anything that speaks its API plays.
"""

import os
from types import TracebackType
from typing import Any, Self

import httpx
import msgspec

from environments.client.http import TIMEOUT_S, ApiConnection, Refused, Unreachable, insist, start_reason
from environments.types import JsonObject, Message, Problem

RETRY_BUDGET_S = 60.0
_MOST_ERROR_CHARS = 2_000
"""Of what went wrong: as much as is kept. A longer text would end no session, and hide the error of the program."""


class PosedProblem(msgspec.Struct):
    """What is played, without what only scoring needs."""

    key: str
    messages: list[Message]
    tools: list[JsonObject] = []


class _Opened(msgspec.Struct):
    session: str
    group: str
    problem: PosedProblem
    base_url: str
    api_key: str
    finish_url: str


class PlayableSession:
    """One episode. Leave the block after `finish`; an exception that leaves it fails the rollout with its text."""

    def __init__(self, told: _Opened, *, retry_budget_s: float = RETRY_BUDGET_S) -> None:
        self.session = told.session
        self.group = told.group
        self.problem = told.problem
        self.base_url = told.base_url
        """For OPENAI_BASE_URL."""
        self.api_key = told.api_key
        """For OPENAI_API_KEY."""
        self._finish_url = told.finish_url
        self._retry_budget_s = retry_budget_s
        self._may_be_finished = False

    def finish(self, reward: float, metrics: dict[str, float] | None = None) -> bool:
        """Store the rollout with its reward; whether its group is complete. Raises Refused, Unreachable."""
        return self._finish({"reward": reward, "metrics": metrics or {}})

    def fail(self, error: str) -> bool:
        """Store the rollout as failed, with the beginning of the reason. Raises Refused, Unreachable."""
        # A lone surrogate, which names of files may hold, is nothing that a request can say.
        return self._finish({"error": error[:_MOST_ERROR_CHARS].encode(errors="replace").decode()})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._may_be_finished:
            return
        if error is None:
            self.fail("The program left the session without a reward.")
            return
        try:
            self.fail(f"{type(error).__name__}: {error}")
        except (Refused, Unreachable) as untold:  # The program's own error is the one to be seen.
            error.add_note(f"Nor could the session {self.session} be failed with it: {untold}")

    def _finish(self, how: dict[str, Any]) -> bool:
        # Safe to repeat: the gateway finishes a session once.
        with httpx.Client(timeout=TIMEOUT_S, trust_env=False) as http:
            try:
                answer = insist(
                    lambda: http.post(self._finish_url, json=how),
                    f"the end of session {self.session}",
                    budget_s=self._retry_budget_s,
                )
            except Unreachable:
                self._may_be_finished = True  # whoever said it is not to say another thing now
                raise
        if not answer.is_success:
            told = answer.json().get("error", {}) if "json" in answer.headers.get("content-type", "") else {}
            raise Refused(answer.status_code, str(told.get("code", "")), str(told.get("message", answer.text[:200])))
        self._may_be_finished = True
        return bool(answer.json()["group_complete"])


class SessionClient:
    """One agent's connection to a run. The token needs the scope `play`. Safe to use from several threads."""

    def __init__(self, url: str, token: str, run: str, *, retry_budget_s: float = RETRY_BUDGET_S) -> None:
        self._connection = ApiConnection(url, token, run, retry_budget_s=retry_budget_s)
        self._retry_budget_s = retry_budget_s

    @classmethod
    def from_environment(cls) -> Self:
        """Read ROLLYARD_URL, ROLLYARD_TOKEN and ROLLYARD_RUN. Raises KeyError naming the one that is missing."""
        return cls(os.environ["ROLLYARD_URL"], os.environ["ROLLYARD_TOKEN"], os.environ["ROLLYARD_RUN"])

    def open(
        self,
        problem: Problem | None = None,
        *,
        environment: str = "agent",
        index: int | None = None,
        group: str | None = None,
        group_size: int | None = None,
        deadline_s: float = 3600.0,
    ) -> PlayableSession:
        """Open a session on a problem of one's own, or by its number on one of an environment of the run that ships.

        Sessions with the same `group` are scored against each other; `group_size` of them close it. A run that has not
        been started yet is waited for. Raises Refused, Unreachable. After a lost answer there may be a session
        more that nobody plays, which fails at its deadline.
        """
        wanted = {
            "problem": None if problem is None else msgspec.to_builtins(problem),
            "environment": environment,
            "index": index,
            "group": group,
            "group_size": group_size,
            "deadline_s": deadline_s,
        }
        body = {name: value for name, value in wanted.items() if value is not None}
        answer = self._connection.request("POST", "sessions", json=body, retry_reason=start_reason)
        return PlayableSession(msgspec.json.decode(answer.content, type=_Opened), retry_budget_s=self._retry_budget_s)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()
