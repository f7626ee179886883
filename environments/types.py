"""The wire vocabulary: what environments produce, the store keeps and trainers consume.

Plain msgspec structs, so one definition serves the runner, the REST API (JSON and MessagePack) and the tests.
``None`` means *absent*; it is stated per field what absence means. Shape letters: T tokens, G rollouts of a group.
"""

import warnings
from enum import StrEnum
from typing import Any, Literal

import msgspec

JsonObject = dict[str, Any]

MAX_TOKEN_ID = 2**31 - 1
"""Largest token id accepted anywhere: ids are stored as u32 and used as i64 by the trainer."""


class Split(StrEnum):
    """Which part of an environment's problems."""

    TRAIN = "train"
    EVAL = "eval"


class StopReason(StrEnum):
    """Why an episode ended."""

    STOP = "stop"
    """The policy ended its turn and the environment had nothing more to say."""
    LENGTH = "length"
    """A token budget ran out: the rollout is truncated. Truncation is not an error."""
    TURNS = "turns"
    """The environment's turn budget ran out."""
    ERROR = "error"
    """The episode broke; ``PlayedRollout.error`` says how. Such a rollout has no reward."""


class ErrorKind(StrEnum):
    """The boundary an error crossed: who has to mend it."""

    POLICY = "policy"
    ENVIRONMENT = "environment"
    REWARD = "reward"
    TOOL = "tool"
    BUDGET = "budget"


class TextPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a message's content."""

    text: str
    type: Literal["text"] = "text"


class FunctionCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which function the policy calls, and with what."""

    name: str
    arguments: str
    """As the policy wrote them: JSON, if it is any good."""


class ToolCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call that the policy makes in a message; a message of role `tool` answers it."""

    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One chat message, in the OpenAI chat format. Only the assistant's may have no content, beside tool calls."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] = []
    tool_call_id: str | None = None
    """Of a message of role `tool`: which call it answers."""
    reasoning_content: str | None = None
    """What the policy thought before it spoke, where the chat template tells the two apart."""

    def __post_init__(self) -> None:
        if self.content is None and not (self.tool_calls or self.reasoning_content is not None):
            raise ValueError("content is missing: only a message with tool calls or reasoning may have none")
        if self.role != "assistant" and (self.content is None or self.tool_calls or self.reasoning_content is not None):
            raise ValueError(f"only an assistant calls tools and reasons, this is from the {self.role}")

    @property
    def text(self) -> str:
        """The content as one text; empty if there is none."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class ChatAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A reply of a model that is not the policy, and what it cost."""

    message: Message
    finish_reason: Literal["stop", "length"] = "stop"
    """`length`: cut short. Whatever else a server says is `stop`."""
    prompt_tokens: int = 0
    """As the server counts; 0: it does not say."""
    completion_tokens: int = 0


class Problem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing to solve. ``key`` is stable for ever inside its environment version."""

    key: str
    messages: list[Message]
    data: JsonObject = {}
    """What scoring needs (the answer, test cases, ...). Never shown to the policy."""
    tools: list[JsonObject] = []
    """What the policy may call, in the OpenAI form: `{"type": "function", "function": {"name", "parameters", ...}}`."""


class RolloutError(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A failure as data."""

    kind: ErrorKind
    type: str
    """Class name of the exception."""
    message: str
    traceback: str = ""
    """The last few frames only."""
    stderr: str = ""
    """The end of what the environment's process had written by then, where it has one of its own."""


class SpanKind(StrEnum):
    """What an episode waited for."""

    MODEL = "model"
    """A reply of the policy, from the request to its last token."""
    TOOLS = "tools"
    """The environment: its tools, its answer to a reply."""
    SCORING = "scoring"
    """The reward of the whole group."""


class Span(msgspec.Struct, frozen=True, array_like=True):
    """A stretch of an episode's time."""

    kind: SpanKind
    began_s: float
    """Since the episode began."""
    seconds: float


class RolloutFacts(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What an episode leaves besides its tokens."""

    seat: str = ""
    """Who played: the name of a seat, in a group of matches; its advantages are among rollouts of that seat. The k-th
    rollout of each seat are one match."""
    reward: float | None = None
    """None exactly when the episode failed."""
    messages: list[Message] = []
    """Derived from the tokens, for people and for SFT exports; the tokens are the truth."""
    tools: list[JsonObject] = []
    """What the policy was told it may call."""
    branch_lengths: list[int] = []
    """Tokens of each branch, in the order in which they lie end to end. Empty: the whole rollout is one branch."""
    earlier_branches: list[list[Message]] = []
    """Messages of each branch but the last, whose are ``messages``. Empty if nobody kept them."""
    metrics: dict[str, float] = {}
    stop_reason: StopReason = StopReason.STOP
    error: RolloutError | None = None
    dispatch_policy_version: int | None = None
    """Version that was live when the first request left. None: an external policy nobody versioned."""
    first_policy_version: int | None = None
    last_policy_version: int | None = None
    replica: str = ""
    """Name of the inference replica that answered."""
    generation_s: float = 0.0
    """Seconds spent waiting for the policy."""
    spans: list[Span] = []
    """Where the time went, as far as somebody measured it."""


class PlayedRollout(RolloutFacts, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The record one episode leaves, before it is stored. The three token arrays have one length T.

    Position t holds the token, whether the policy sampled it (and it trains), and the logprob the inference engine
    gave it after temperature, given all tokens before it in its branch. A conversation whose history was edited goes on
    in a further branch; what was sampled before it parted stands there again with a mask of 0, so it trains once.
    """

    token_ids: list[int]
    loss_mask: list[int]
    """1 where the policy sampled the token, else 0."""
    inference_logprobs: list[float]
    """0.0 where ``loss_mask`` is 0."""


class FinishedRollout(PlayedRollout, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A rollout whose episode is over, as its environment scores it."""

    notes: JsonObject = {}
    """What `play` noted for the scoring. Not stored."""


class PackedRollout(RolloutFacts, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A rollout whose arrays are little-endian bytes: in MessagePack as they are, in JSON as base64."""

    token_ids: bytes
    """u32 [T]."""
    loss_mask: bytes
    """u8 [T]."""
    inference_logprobs: bytes
    """f32 [T]."""
    ref_logprobs: bytes | None = None
    """f32 [T], of a reference or teacher policy; in all rollouts of a group or in none."""
    advantages: bytes | None = None
    """f32 [T], per token, in place of advantages from the rewards; in all rollouts of a group or in none."""


class PlayedGroup(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The G rollouts of one problem, scored together: the unit that is stored, leased, batched, trained or dropped."""

    environment: str
    problem_key: str
    rollouts: list[PlayedRollout]
    key: str | None = None
    """Chosen by the submitter to make a retry harmless: the same key is stored once per run."""
    environment_version: str = ""
    """Of the problems and the scoring: another one means that rewards of the same problem no longer compare."""


class PackedScoredGroup(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A scored group with packed rollouts: an eighth of the bytes of lists, and no numbers to parse."""

    environment: str
    problem_key: str
    rollouts: list[PackedRollout]
    key: str | None = None
    """As in PlayedGroup."""
    environment_version: str = ""
    """As in PlayedGroup."""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """One group to play, and the right to settle it."""

    group: str
    token: str
    run: str
    environment: str
    args: JsonObject
    split: Split
    problem_index: int
    """Position in the environment's problems; wrap it by their count."""
    group_size: int
    """Episodes to play; each leaves a rollout, a match one for every seat that the run plays."""
    temperature: float
    max_tokens: int
    max_turns: int
    policy_version: int
    """Live when it was claimed. Another may go live meanwhile: each rollout says what it came from."""
    seats: dict[str, str] = {}
    """Who plays each seat, `run` is the policy that is trained; empty for an environment without seats."""


class Withheld(StrEnum):
    """Why a claim gave nothing."""

    NOTHING = ""
    """It gave something, or nothing was asked for, or a supervised run is not being evaluated now."""
    CAPACITY = "capacity"
    """Generation is as far ahead of the trainer as it may be."""
    NO_POLICY = "no_policy"
    """No version is live yet."""
    OVER = "over"
    """The run takes no more work."""


class Claims(msgspec.Struct, frozen=True, kw_only=True):
    """What a claim gave, and when it gave nothing, why."""

    claims: list[Claim]
    reason: Withheld = Withheld.NOTHING


_RENAMED: dict[str, type[msgspec.Struct]] = {"Rollout": PlayedRollout, "ScoredGroup": PlayedGroup}


def __getattr__(name: str) -> type[msgspec.Struct]:
    """The names of before, which rows of the store have too: environments that import them still work."""
    if (renamed := _RENAMED.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    message = f"environments.types.{name} is called {renamed.__name__}"
    warnings.warn(message, DeprecationWarning, stacklevel=2)
    return renamed
