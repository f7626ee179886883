"""The page of rollouts: whatever a model wrote is text in it."""

from html.parser import HTMLParser

from environments.types import ErrorKind, FunctionCall, Message, PlayedGroup, PlayedRollout, RolloutError, ToolCall
from environments.verbs.page import page

HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=alert(1)>&lt;\x1b[2J\u202e\x00\ud800"


class Seen(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def test_hostile_text_is_shown_and_neither_runs_nor_loads_anything() -> None:
    said = Message(
        "assistant",
        HOSTILE,
        reasoning_content=HOSTILE,
        tool_calls=[ToolCall("1", FunctionCall(HOSTILE, HOSTILE))],
    )
    arrays = {"token_ids": [1], "loss_mask": [1], "inference_logprobs": [-1.0]}
    error = RolloutError(kind=ErrorKind.ENVIRONMENT, type=HOSTILE, message=HOSTILE)
    rollouts = [
        PlayedRollout(messages=[said], reward=0.5, metrics={HOSTILE: 1.0}, **arrays),  # type: ignore[arg-type]
        PlayedRollout(error=error, token_ids=[], loss_mask=[], inference_logprobs=[]),
    ]
    text = "".join(page(HOSTILE, [PlayedGroup(environment=HOSTILE, problem_key=HOSTILE, rollouts=rollouts)]))
    text.encode()  # no half of a character is left
    seen = Seen()
    seen.feed(text)
    assert seen.tags == {"html", "meta", "title", "style", "h1", "details", "summary", "small", "pre"}
    assert seen.attributes == {"lang", "charset", "http-equiv", "content", "name", "class", "open"}
    assert seen.text.count("<script>alert(1)</script>") == 11
    assert "⟨U+202E⟩" in seen.text
    assert not set(seen.text) & set("\x1b\x00\u202e")
    assert "default-src 'none'" in text


def test_a_page_is_made_group_by_group() -> None:
    def groups() -> object:
        yield PlayedGroup(environment="e", problem_key="first", rollouts=[])
        raise AssertionError("nobody asked for the second yet")

    pieces = page("t", groups())  # type: ignore[arg-type]
    assert "<h1>t</h1>" in next(pieces)
    assert "first" in next(pieces)
