"""What a driver and the process of an isolated environment say to each other. Standard library and msgspec only.

    driver ──[id, method, parameters]──▶ process        ◀──[id, result, fault]──
           ◀──[-id, ask, nil]───────────                ──[0, "told", [id, answer, fault]]──▶     an episode asks back

Frames are MessagePack behind their length. An episode's state stays in the process, under a number.
"""

import traceback
from typing import Any, Literal

import msgspec

from environments import errors
from environments.errors import EpisodeError, RegistryError, words_of
from environments.types import JsonObject, Message

LENGTH_BYTES = 4
MAX_FRAME_BYTES = 256 * 2**20
"""Of what the driver says: a group of long rollouts is some tens of megabytes."""
MAX_ANSWER_BYTES = 32 * 2**20
"""Of what the process says: a problem, messages, figures."""
MAX_ASKED = 64
"""Answers that one episode, or one call, waits for at a time."""
MAX_TOOLS = 8
"""Programs that a process asks for at a time: twice as many as run. The others wait over there, with their files."""
MAX_UNASKED = 1_000
"""Answers to nothing that a process may send before it is taken for a broken one."""
GATEWAY_SOCKET = "ROLLYARD_GATEWAY_SOCKET"
"""The variable that tells a process where the gateway's socket lies."""
TOKENIZER = "ROLLYARD_TOKENIZER"
"""The variable that tells it where the tokenizer of the run's model lies, if it is known."""
_FRAMES = -4
_MAX_MESSAGE = 2_000

Method = Literal[
    "load", "count", "problem", "start", "step", "play", "told", "score_group", "release", "cancel", "ping"
]


class RemoteFault(msgspec.Struct, frozen=True):
    """What somebody's code raised over there."""

    type: str
    message: str
    traceback: str = ""
    refuses: bool = False
    """Whether it is an environment that cannot be made."""


class RemoteCall(msgspec.Struct, frozen=True, array_like=True):
    """One call; ``parameters`` are those of the method."""

    id: int
    """0: nobody waits for an answer."""
    method: Method
    parameters: list[Any]


class RemoteAnswer(msgspec.Struct, frozen=True, array_like=True):
    """To one call. Of ``fault`` and ``result`` the first counts."""

    id: int
    """Negative: ``result`` asks for something, and the answer is told under this number."""
    result: msgspec.Raw
    fault: RemoteFault | None = None


class Loaded(msgspec.Struct, frozen=True):
    """What is known of an environment that was made."""

    version: str
    plays_itself: bool = False
    seats: tuple[str, ...] = ()


class RemotePlay(msgspec.Struct, frozen=True):
    """How an episode or a match ended that an environment played itself."""

    notes: dict[int, JsonObject] = {}
    """Of each session on which something was noted."""
    fault: RemoteFault | None = None


class Score(msgspec.Struct, frozen=True):
    """Of one rollout."""

    reward: float | None
    metrics: dict[str, float]
    fault: RemoteFault | None = None


class AskReply(msgspec.Struct, frozen=True, tag="reply"):
    """A session asks the policy."""

    session: int
    messages: list[Message] | None
    tools: list[JsonObject] | None


class AskAddress(msgspec.Struct, frozen=True, tag="address"):
    """A session asks for its key at the gateway."""

    session: int


class AskTool(msgspec.Struct, frozen=True, tag="tool"):
    """Somebody asks for a command in a sandbox; see `environments.sandbox.remote`."""

    request: msgspec.Raw


class AskOther(msgspec.Struct, frozen=True, tag="other"):
    """The code behind a call asks a model beside the policy; see `environments.others`."""

    call: int
    name: str
    messages: list[Message]
    tools: list[JsonObject]
    max_tokens: int
    temperature: float
    seed: int | None


class Withdraw(msgspec.Struct, frozen=True, tag="withdraw"):
    """Whoever asked under this number waits no longer."""


Ask = AskReply | AskAddress | AskTool | AskOther | Withdraw


def framed(body: bytes) -> bytes:
    """A message as it goes over the pipe."""
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def fault_of(error: Exception) -> RemoteFault:
    """An error as it goes over the pipe."""
    origin = error.__cause__ or error
    frames = traceback.format_list(traceback.extract_tb(origin.__traceback__)[_FRAMES:])
    # Of what another library caught and told on: where it began there.
    began = getattr(origin, "remote_traceback", "") or "".join(frames)
    refuses = isinstance(error, RegistryError)
    return RemoteFault(type(error).__name__, words_of(error)[:_MAX_MESSAGE], began, refuses)


def raised(fault: RemoteFault) -> Exception:
    """An error that stands for one over there: of the runner's own classes themselves, else of a class of that name."""
    if fault.refuses:
        return RegistryError(fault.message)
    known = getattr(errors, fault.type, None)
    if isinstance(known, type) and issubclass(known, EpisodeError):
        return known(fault.message)
    name = fault.type if fault.type.isidentifier() else "Exception"
    error: Exception = type(name[:100], (IsolatedFault,), {"remote_traceback": fault.traceback})(fault.message)
    return error


class IsolatedFault(Exception):
    """What the environment's code raised over there. Its class has the name of the one it stands for."""

    remote_traceback = ""
