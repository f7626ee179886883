"""Groups as one page that needs nothing else: to be looked at, mailed or kept.

Everything in it was written by a model or an environment, so it is text: escaped, with what is invisible in it spelled
out, under a policy that runs and loads nothing.
"""

from collections.abc import Iterable, Iterator
from html import escape

from environments.types import Message, PlayedGroup, PlayedRollout
from environments.visible import visible

_STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
summary { cursor: pointer; } details { margin: .4rem 0 .4rem 1rem; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: .2rem 0; padding: .4rem .6rem;
      border-left: 3px solid color-mix(in srgb, currentColor 25%, transparent); }
pre.assistant { border-color: #4b6fff; } pre.error { border-color: #d33; }
small { opacity: .7; }
"""
_MAX_TEXT = 200_000
"""Characters of a message that are shown."""


def page(title: str, groups: Iterable[PlayedGroup]) -> Iterator[str]:
    """The HTML of it, in pieces: groups in their order, none held for longer than it is written."""
    yield (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width">'
        f"<title>{_text(title)}</title><style>{_STYLE}</style><h1>{_text(title)}</h1>"
    )
    for group in groups:
        yield _group(group)
    yield "</html>\n"


def _group(group: PlayedGroup) -> str:
    rewards = [rollout.reward for rollout in group.rollouts if rollout.reward is not None]
    told = f"mean {sum(rewards) / len(rewards):.3f} of {len(rewards)}" if rewards else "none was scored"
    inside = "".join(_rollout(index, rollout) for index, rollout in enumerate(group.rollouts))
    heading = f"{_text(group.problem_key)} <small>{_text(group.environment)} · {told}</small>"
    return f"<details open><summary>{heading}</summary>{inside}</details>\n"


def _rollout(index: int, rollout: PlayedRollout) -> str:
    if rollout.error is not None:
        told = f"failed: {_text(rollout.error.kind)}"
        body = _pre("error", f"{rollout.error.type}: {rollout.error.message}")
    else:
        told = f"reward {rollout.reward:.3f} · {_text(rollout.stop_reason)}"
        body = ""
    figures = ", ".join(f"{_text(name)} {value:g}" for name, value in sorted(rollout.metrics.items()))
    told += f" · {sum(rollout.loss_mask)} tokens" + (f" · {figures}" if figures else "")
    said = "".join(_message(message) for message in rollout.messages)
    return f"<details><summary>{index} <small>{told}</small></summary>{said}{body}</details>"


def _message(message: Message) -> str:
    parts = [f"<small>{_text(message.role)}</small>"]
    if message.reasoning_content:
        parts.append(_pre("reasoning", message.reasoning_content))
    if message.text:
        parts.append(_pre(message.role, message.text))
    parts += [_pre(message.role, f"{call.function.name}({call.function.arguments})") for call in message.tool_calls]
    return "".join(parts)


def _pre(kind: str, text: str) -> str:
    cut = f"{text[:_MAX_TEXT]} [{len(text) - _MAX_TEXT:,} more]" if len(text) > _MAX_TEXT else text
    return f'<pre class="{escape(kind)}">{_text(cut)}</pre>'


def _text(text: str) -> str:
    return escape(visible(text))
