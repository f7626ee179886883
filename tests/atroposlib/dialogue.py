"""One conversation with a server of the Atropos API: every request, and where our answer is another one on purpose."""

import gzip
import json
from typing import Any, NamedTuple

from tests.rollouts.doors.atropos.api import introduction, item, registration

GZIP = {"content-type": "application/json", "content-encoding": "gzip"}
JSON = {"content-type": "application/json"}
BATCH_ORDER = "The oldest batch comes first, not the newest, and environments take turns by the weights they gave."
STEP_AT_DELIVERY = "A batch counts when it is handed out; forming all there are at once would count what nobody has."
ONE_ENVIRONMENT = "Processes that play one environment are counted together, as they are batched together."
ENVIRONMENTS_LIVE = "An error here ends the environment's process, so it is told that nothing waits."
NO_CLIENT_READS = "The text of an exception in their program."
NO_LOSS = "What could not be given back as it was sent, or would lose the batch it is in, is refused when it comes."


class Step(NamedTuple):
    """A request, and which parts of the answers differ, and why."""

    name: str
    method: str
    path: str
    options: dict[str, Any] = {}
    differs: frozenset[str] = frozenset()
    because: str = ""


def get(name: str, path: str, *differs: str, because: str = "", **options: Any) -> Step:
    return Step(name, "GET", path, options, frozenset(differs), because)


def post(name: str, path: str, content: Any, *differs: str, because: str = "") -> Step:
    return Step(name, "POST", path, {"json": content}, frozenset(differs), because)


def status_env(name: str, env_id: int, *differs: str, because: str = "") -> Step:
    return get(name, "/status-env", *differs, because=because, json={"env_id": env_id})


def scored(tag: int, **values: Any) -> dict[str, Any]:
    return item(tag=tag, **{"env_id": 0, **values})


FULL_ITEM = scored(
    3,
    advantages=[[0.5, -0.5, 1.0]] * 2,
    ref_logprobs=[[0.0, -0.25, -1.5]] * 2,
    inference_logprobs=[[1.0, -0.5, -0.125]] * 2,
    messages=[[{"role": "user", "content": "é\u2028"}, {"role": "tool", "content": None, "reward": 1, "x": [1.5]}]] * 2,
    generation_params={"temperature": 0.75, "stop": ["\n"]},
    overrides=[{"set_advantage_to_zero": True}, {}],
    group_overrides={"group_size": 2},
    images=["picture", {"url": None}],
    distill_token_ids=[[[1, 2], [3]], []],
    distill_logprobs=[[[-0.5, -1.0], [-2.0]], []],
)
COMPRESSED = gzip.compress(json.dumps(scored(4)).encode())

STRANGERS = [
    get("root", "/"),
    get("info before a trainer", "/info"),
    get("wandb before a trainer", "/wandb_info"),
    get("status before a trainer", "/status"),
    get("no example yet", "/latest_example"),
    get("batch before a trainer", "/batch"),
    post("environment before a trainer", "/register-env", introduction()),
    post(
        "nobody leaves",
        "/disconnect-env",
        {"env_id": 0},
        "body.error",
        because=NO_CLIENT_READS,
    ),
    status_env("status for a stranger", 0, "status", "type", "body", because=ENVIRONMENTS_LIVE),
    get("nothing there", "/nowhere"),
    post("no such thing as a trainer that leaves", "/disconnect-trainer", {}),
    get("a slash too many", "/info/"),
    post("wrong method", "/info", {}),
    Step("head", "HEAD", "/info"),
    get("wrong method of a registration", "/register"),
]
FAULTS = [
    post("registration without fields", "/register", {"batch_size": "many"}),
    Step("registration that is no JSON", "POST", "/register", {"content": b'{"a": ', "headers": JSON}),
    Step("registration without a body", "POST", "/register", {"headers": JSON}),
    Step("registration without a type", "POST", "/register", {"content": b"{}"}),
    post("environment with null", "/register-env", introduction(weight=None)),
    post("group without masks", "/scored_data", {"tokens": [[1]], "scores": ["x"]}),
    post("half a token", "/scored_data", scored(1, tokens=[[1.5]])),
    post("message without content", "/scored_data", scored(1, messages=[[{"role": "user"}]])),
    post("one of a list is wrong", "/scored_data_list", [scored(1), {"tokens": 1}]),
    get("status of no number", "/status-env", json={"env_id": "first"}),
    Step("not compressed", "POST", "/scored_data", {"content": b"{}", "headers": GZIP}),
    Step(
        "compressed and cut off",
        "POST",
        "/scored_data",
        {"content": COMPRESSED[:-12], "headers": GZIP},
        frozenset({"status", "body"}),
        "A fault of the sender is no error of the server: 400 like other bodies that are not gzip.",
    ),
]
A_RUN = [
    post("registration, numbers as text", "/register", registration(batch_size="4", max_token_len=512.0)),
    get("info of a trainer", "/info"),
    get("wandb of a trainer", "/wandb_info"),
    post("second trainer", "/register", registration(batch_size=64)),
    get("second trainer changes nothing", "/info"),
    post("environment before the start", "/register-env", introduction()),
    get("the first batch starts it", "/batch"),
    post("environment 0", "/register-env", introduction()),
    post("environment 1", "/register-env", introduction("code", group_size=4, weight=3, max_token_length=256)),
    status_env("nothing waits", 0),
    status_env("nothing waits for 1", 1),
    status_env("last environment", -1),
    status_env("status for the unknown", 99, "status", "type", "body", because=ENVIRONMENTS_LIVE),
    post("group", "/scored_data", scored(1)),
    get("one waits", "/status"),
    get("too few", "/batch"),
    post("full group", "/scored_data", FULL_ITEM),
    get("example", "/latest_example"),
    status_env("two wait", 0),
    status_env("two wait for 1", 1),
    get("batch", "/batch"),
    get("step", "/status"),
    Step("compressed group", "POST", "/scored_data", {"content": COMPRESSED, "headers": GZIP}),
    post("half a group", "/scored_data", scored(5, env_id=1)),
    get("half a group is not queued", "/status"),
    post("the other half", "/scored_data", scored(6, env_id=1)),
    get("both halves are queued", "/status"),
    post("empty list", "/scored_data_list", []),
    post("list with half a group", "/scored_data_list", [scored(7), scored(8, env_id=1)]),
    status_env("mixed sizes", 0),
    status_env("mixed sizes for 1", 1),
    post("the half that is missing", "/scored_data", scored(9, env_id=1)),
    get("first of three batches", "/batch", "body.batch", because=BATCH_ORDER),
    get("steps formed", "/status", "body.current_step", "body.queue_size", because=STEP_AT_DELIVERY),
    get("second of three batches", "/batch", "body.batch", because=BATCH_ORDER),
    get("third of three batches", "/batch", "body.batch", because=BATCH_ORDER),
    get("steps handed out", "/status"),
    post("nameless group", "/scored_data", scored(10, env_id=None)),
    post("group of nobody", "/scored_data", scored(11, env_id=99)),
    get("what is left", "/batch"),
    get("no more", "/batch"),
    post("twin of environment 0", "/register-env", introduction()),
    post("group of 0", "/scored_data", scored(12)),
    status_env("a twin's queue", 2, "body.self_queue_size", because=ONE_ENVIRONMENT),
    post("environment leaves", "/disconnect-env", {"env_id": 0}),
    status_env("weight of who left", 0),
    status_env("weight of who stayed", 1),
    post("environment that was never there", "/disconnect-env", {"env_id": 99}, "body.error", because=NO_CLIENT_READS),
]
A_RESET = [
    post("group that will be reset", "/scored_data", scored(13)),
    get("reset", "/reset_data"),
    get("info after a reset", "/info"),
    get("wandb after a reset", "/wandb_info"),
    get("status after a reset", "/status"),
    get("example after a reset", "/latest_example"),
    status_env("environment that did not hear of it", 0, "status", "type", "body", because=ENVIRONMENTS_LIVE),
    get(
        "batch after a reset",
        "/batch",
        *("status", "type", "body"),
        because="Their program fails, and lets environments register with nobody; ours says what is missing.",
    ),
    get("reset again", "/reset_data"),
    post("group before the next trainer", "/scored_data", scored(14)),
    post("next trainer", "/register", registration(batch_size=2, starting_step=7)),
    get(
        "the next trainer is heard",
        "/info",
        "body.batch_size",
        because="Theirs ignores a registration for ever once a group came before it.",
    ),
]
POISON = [
    post("lengths disagree", "/scored_data", scored(1, scores=[1.0]), "status", "body", because=NO_LOSS),
    post("no sequence", "/scored_data", scored(1, tokens=[], masks=[], scores=[]), "status", "body", because=NO_LOSS),
    Step(
        "no number",
        "POST",
        "/scored_data",
        {"content": b'{"tokens": [[1]], "masks": [[1]], "scores": [NaN]}', "headers": JSON},
        frozenset({"status", "body"}),
        NO_LOSS,
    ),
]
DIALOGUE = [*STRANGERS, *FAULTS, *A_RUN, *A_RESET, *POISON]
