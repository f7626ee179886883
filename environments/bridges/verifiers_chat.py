"""The chat loop of verifiers' harness `null`, in this process: theirs is a script that uv makes an environment for.

    loop ──chat/completions──▶ verifiers' interception ──its client──▶ the session's address
     └──MCP──▶ tool servers, child processes that verifiers starts

Imports verifiers: for its virtual environment alone. It finds harnesses by the names of modules, hence `HARNESS`.
"""

import asyncio
import contextlib
import json
import sys
from typing import Any

import httpx
from openai import (  # type: ignore[import-not-found,unused-ignore]  # not everywhere
    APIConnectionError,
    APIStatusError,
    AsyncOpenAI,
    omit,
)
from verifiers.v1.dialects.chat import message_to_wire  # type: ignore[import-not-found]
from verifiers.v1.errors import InterceptionError  # type: ignore[import-not-found]
from verifiers.v1.harnesses.null import NullHarness  # type: ignore[import-not-found]
from verifiers.v1.harnesses.utils.compaction import (  # type: ignore[import-not-found]
    bound_tool_message,
    is_context_overflow,
)
from verifiers.v1.harnesses.utils.core import gate_tool_call  # type: ignore[import-not-found]
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp  # type: ignore[import-not-found]
from verifiers.v1.runtimes import ProgramResult  # type: ignore[import-not-found]

from environments.types import JsonObject

__all__ = ["InProcessChat"]  # where verifiers looks for the class

HARNESS = "rollyard_chat"
"""The id of this harness."""
_CONNECT_S = 60.0
"""For the tool servers to list their tools."""
_TURNS_OVER = "turns_exhausted"
"""What the gateway calls the end of a session's turns."""


class InProcessChat(NullHarness):  # type: ignore[misc]
    """Talks and calls tools until a reply has no call. A budget of the session that is used up ends it well."""

    async def setup(self, runtime: Any) -> None:
        """Nothing has to be installed."""

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
        tool_interception_url: str | None = None,
    ) -> Any:
        """Play one segment. Raises what verifiers' interception answered, InterceptionError."""
        system, prompt = self.resolve_prompt(data)
        messages = [{"role": "system", "content": system}] if system else []
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += [message_to_wire(message) for message in prompt or ()]
        specs = {name: {"url": url, "timeout": self.config.tool_timeout} for name, url in mcp_urls.items()}
        async with contextlib.AsyncExitStack() as stack:
            # Loopback only: certificates would cost 20 ms of each episode.
            patient = httpx.AsyncClient(timeout=httpx.Timeout(None, connect=5.0), verify=False)
            http = await stack.enter_async_context(patient)
            connecting = connect_mcp({"mcpServers": specs}, stack)
            tools, places, servers = await asyncio.wait_for(connecting, _CONNECT_S) if specs else ([], {}, {})

            async def run(call: Any) -> JsonObject:
                answer = {"role": "tool", "tool_call_id": call.id, "name": call.function.name}
                if tool_interception_url:
                    verdict = await gate_tool_call(http, tool_interception_url, secret, call)
                    if verdict["action"] == "deny":
                        return dict(bound_tool_message(verdict["message"]))
                return dict(bound_tool_message(answer | {"content": await _answered(call.function, places, servers)}))

            client: Any = AsyncOpenAI(base_url=endpoint, api_key=secret, http_client=http)  # type: ignore[arg-type,unused-ignore]  # of another version here
            try:
                while True:
                    # Not streamed, as theirs is: nobody watches, and an error keeps its status.
                    completion = await client.chat.completions.create(
                        model=ctx.model, messages=messages, tools=tools or omit
                    )
                    reply = completion.choices[0].message
                    messages.append(reply.model_dump(exclude_none=True))
                    if not reply.tool_calls:
                        break
                    for call in reply.tool_calls:
                        messages.append(await run(call))
            except APIConnectionError as error:
                raise InterceptionError(f"no connection to verifiers' own server: {error}") from error
            except APIStatusError as error:
                if not (is_context_overflow(error) or _TURNS_OVER in str(error)):
                    raise
        return ProgramResult(exit_code=0, stdout="", stderr="")


async def _answered(function: Any, places: dict[str, Any], servers: dict[str, Any]) -> Any:
    """What the policy is told of its call: the result of the tool, or why there is none."""
    try:
        arguments = json.loads(function.arguments or "{}")
    except (ValueError, RecursionError) as error:
        return f"error: the arguments are no JSON: {error}"
    if not isinstance(arguments, dict):
        return "error: the arguments are no JSON object"
    if function.name not in places:
        return f"error: there is no tool {function.name!r}; there are {', '.join(places) or 'none'}"
    return await call_mcp(servers, places, function.name, arguments)


sys.modules.setdefault(HARNESS, sys.modules[__name__])
