"""Requests to the control plane about one run, each retried with back-off until an answer comes or its budget is spent.

What environments (`group_client.py`) and trainers (`trainers/client.py`) share. A lost connection, a 429 or a 5xx is
worth another try, after a pause that grows, differs from client to client and is never shorter than the server asks
for: the web server may be restarted and Postgres may be away for a while. So every request must be safe to repeat.

    ClientError
    ├── Refused       the control plane said no: asking again does not help
    ├── Unreachable   no usable answer within the budget
    └── SpoolFull     nothing more fits on the disk meanwhile (`environments.client.spool`)
"""

import logging
import random
import time
from collections.abc import Callable, MutableMapping
from typing import Any

import httpx

from environments.client.address import SCHEME, address

_log = logging.getLogger(__name__)

TIMEOUT_S = 30.0
_LONGEST_PAUSE_S = 5.0
_LONGEST_WISH_S = 60.0
"""A server that asks for a longer pause than this is asked again earlier."""


class ClientError(Exception):
    """Base of what clients of the control plane raise on purpose."""


class Refused(ClientError):
    """The control plane refused a request for good."""

    def __init__(self, status: int, code: str, detail: str, fields: dict[str, str] | None = None) -> None:
        self.status = status
        self.code = code
        """Stable, such as `invalid`, `run_over`, `lease_lost`: decide on it, not on the text."""
        self.detail = detail
        self.fields = fields or {}
        """Dotted path -> what is wrong there."""
        faults = "".join(f"\n  {path}: {fault}" for path, fault in self.fields.items())
        super().__init__(f"{status} {code}: {detail}{faults}")


class Unreachable(ClientError):
    """The control plane gave no usable answer within the retry budget."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        """Of the last answer; None: there was none."""


def retry_reason(answer: httpx.Response) -> str:
    """Why this answer is worth a retry; empty when it is not."""
    if answer.status_code == httpx.codes.TOO_MANY_REQUESTS or answer.status_code >= 500:
        return f"status {answer.status_code}"
    return ""


def start_reason(answer: httpx.Response) -> str:
    """The same, where a run that has not been started yet is waited for as well."""
    if answer.status_code == httpx.codes.CONFLICT and problem_of(answer).get("code") == "state_conflict":
        return "the run has not been started yet"
    return retry_reason(answer)


def retry_after_s(answer: httpx.Response) -> float:
    """Seconds of the Retry-After header; 0 when there is none, or it is a date."""
    try:
        wish_s = float(answer.headers.get("Retry-After", 0))
    except ValueError:
        return 0.0
    return min(wish_s, _LONGEST_WISH_S) if wish_s > 0 else 0.0


class ApiConnection:
    """A token's connection to one run. Safe to use from several threads."""

    def __init__(self, url: str, token: str, run: str, *, retry_budget_s: float, first_pause_s: float = 0.1) -> None:
        """``retry_budget_s`` is how long the control plane may be away. Raises ValueError for a url of another kind."""
        if not url.startswith(("http://", "https://", SCHEME)):
            raise ValueError(f"{url!r} is no address of a control plane: begin with http://, https:// or {SCHEME}")
        base_url, path = address(url)
        self._http = httpx.Client(
            base_url=f"{base_url}/api/v1/runs/{run}/",
            transport=httpx.HTTPTransport(uds=path) if path else None,
            headers={"Authorization": f"Token {token}", "Accept": "application/json"},
            timeout=TIMEOUT_S,
            trust_env=False,  # a proxy meant for the outside world must not get between a run's parts
        )
        self._retry_budget_s = retry_budget_s
        self._first_pause_s = first_pause_s

    @property
    def headers(self) -> MutableMapping[str, str]:
        """Sent with every request."""
        return self._http.headers

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def request(
        self,
        method: str,
        path: str,
        *,
        retry_reason: Callable[[httpx.Response], str] = retry_reason,
        budget_s: float | None = None,
        **options: Any,
    ) -> httpx.Response:
        """A successful answer. Raises Refused, or Unreachable when ``budget_s`` seconds are over; 0: no retry.

        ``retry_reason`` says why an answer is to be retried, or nothing; ``options`` are those of httpx.
        """
        answer = insist(
            lambda: self._http.request(method, path, **options),
            f"{method} {path}",
            budget_s=self._retry_budget_s if budget_s is None else budget_s,
            first_pause_s=self._first_pause_s,
            retry_reason=retry_reason,
        )
        _raise_refusal(answer)
        return answer


def insist(
    ask: Callable[[], httpx.Response],
    what: str,
    *,
    budget_s: float,
    first_pause_s: float = 0.1,
    retry_reason: Callable[[httpx.Response], str] = retry_reason,
) -> httpx.Response:
    """An answer that is worth no retry. Raises Unreachable, which names `what`, when ``budget_s`` seconds are over."""
    deadline = time.monotonic() + budget_s
    pause_s = first_pause_s
    while True:
        status, wish_s = None, 0.0
        try:
            answer = ask()
            fault = retry_reason(answer)
            if not fault:
                return answer
            status, wish_s = answer.status_code, retry_after_s(answer)
        except httpx.TransportError as error:
            fault = f"{type(error).__name__}: {error}"
        wait_s = max(pause_s * random.uniform(0.5, 1.0), wish_s * random.uniform(1.0, 1.25))
        if time.monotonic() + wait_s > deadline:
            raise Unreachable(f"{what}: no usable answer within {budget_s:g} s; last: {fault}", status)
        _log.warning("%s: %s; retrying in %.1f s", what, fault, wait_s)
        time.sleep(wait_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _raise_refusal(answer: httpx.Response) -> None:
    if answer.is_success:
        return
    problem = problem_of(answer)
    fields = problem.get("fields")
    raise Refused(
        answer.status_code,
        str(problem.get("code", "")),
        str(problem.get("detail", answer.text[:200])),
        fields if isinstance(fields, dict) else None,
    )


def problem_of(answer: httpx.Response) -> dict[str, Any]:
    """The problem+json of a refusal; empty when a proxy or somebody else answered."""
    try:
        problem = answer.json()
    except ValueError:
        return {}
    return problem if isinstance(problem, dict) else {}
