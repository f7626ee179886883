"""How values look: states, numbers, ages, sparklines, and text that a model wrote."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django import template
from django.template.defaultfilters import date as format_date
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from environments.unconfined import VARIABLE, is_unconfined
from frontend import numbers
from frontend.conversation import spoken
from frontend.visible import visible_html
from rollouts.models import (
    Attempt,
    Batch,
    Checkpoint,
    EnvironmentClient,
    Evaluation,
    Export,
    PolicyVersion,
    Replica,
    Run,
    ScoredGroup,
    Trial,
)
from rollouts.states import (
    AttemptState,
    BatchState,
    CheckpointState,
    ClientState,
    EvaluationState,
    ExportState,
    GroupState,
    PolicyVersionState,
    ReplicaState,
    RunState,
    TrialState,
)

register = template.Library()

register.filter("number", numbers.number)
register.filter("reward", numbers.reward)
register.filter("signed", numbers.signed)
register.filter("count", numbers.count)
register.filter("percent", numbers.percent)
register.filter("duration", numbers.duration)
register.filter("size", numbers.size)
register.filter("visible", visible_html)
register.filter("spoken", spoken)

_STATES = {
    Run: RunState,
    ScoredGroup: GroupState,
    Batch: BatchState,
    PolicyVersion: PolicyVersionState,
    Evaluation: EvaluationState,
    Export: ExportState,
    Replica: ReplicaState,
    Checkpoint: CheckpointState,
    Attempt: AttemptState,
    EnvironmentClient: ClientState,
    Trial: TrialState,
}
_BY_KIND = {model._meta.model_name: states for model, states in _STATES.items()}
_TONES = {
    "waiting": "warn moving",
    "held": "warn",
    "queued": "warn moving",
    "writing": "active moving",
    "playing": "active moving",
    "ready": "active",
    "batched": "active",
    "trained": "good",
    "running": "active moving",
    "starting": "warn moving",
    "finishing": "active moving",
    "stopping": "warn moving",
    "finished": "good",
    "done": "good",
    "complete": "good",
    "live": "good",
    "failed": "bad",
    "rejected": "bad",
    "lost": "bad",
    "suspect": "warn",
    "stale": "warn",
    "expired": "warn",
    "started": "active",
    "connected": "good",
    "lapsed": "warn",
}
_REPLICA_TONES = {"ready": "good"}


@register.simple_tag
def unconfined() -> SafeString:
    """What every page says, to whoever looks, where somebody switched sandboxes off; else nothing."""
    if not is_unconfined():
        return SafeString("")
    return format_html(
        '<p class="notice error errornote" role="status">Code of runs is not confined here (<code>{}=1</code>): '
        "whoever may launch reaches everything that this installation reaches.</p>",
        VARIABLE,
    )


@register.simple_tag
def state_badge(row: Any, style: str = "") -> SafeString:
    """The state of any stateful row in its word and colour; what it means is in the tooltip."""
    meaning: str = _STATES[type(row)](row.state).label
    tone = (_REPLICA_TONES if isinstance(row, Replica) else {}).get(row.state) or _TONES.get(row.state, "")
    return format_html('<span class="badge {} {}" title="{}">{}</span>', tone, style, meaning, row.state)


@register.simple_tag
def state_word(kind: str, state: str) -> SafeString:
    """A state in running text, coloured, for events that carry only its name."""
    states = _BY_KIND.get(kind)
    meaning = states(state).label if states is not None and state in states.values else ""
    tone = _TONES.get(state, "").split(" ")[0]
    return format_html('<span class="word {}" title="{}">{}</span>', tone, meaning, state)


@register.filter
def state_meaning(state: str) -> str:
    """The sentence of a group's state."""
    return GroupState(state).label


@register.simple_tag
def ago(moment: datetime | None, suffix: str = " ago") -> SafeString:
    """How long ago, with the moment itself in the tooltip and for machines."""
    if moment is None:
        return format_html('<span class="faint">{}</span>', "–")
    seconds = max(0.0, (timezone.now() - moment).total_seconds())
    text = "just now" if seconds < 1 and suffix else f"{numbers.age(seconds)}{suffix}"
    return format_html(
        '<time datetime="{}" title="{} UTC">{}</time>', moment.isoformat(), format_date(moment, "Y-m-d H:i:s"), text
    )


@register.simple_tag
def sparkline(values: Sequence[float], label: str = "Reward", width: int = 112, height: int = 26) -> SafeString:
    """A curve in the size of a word, as an image with its first and last value in words."""
    if len(values) < 2:
        return format_html('<span class="faint">{}</span>', "–")
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    step = (width - 4) / (len(values) - 1)
    points = [(2 + at * step, height - 3 - (value - low) / span * (height - 6)) for at, value in enumerate(values)]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    area = f"2,{height} {line} {points[-1][0]:.1f},{height}"
    return format_html(
        '<svg class="sparkline" width="{}" height="{}" viewBox="0 0 {} {}" role="img" aria-label="{}">'
        '<polygon points="{}" fill="currentColor" opacity="0.1"/>'
        '<polyline points="{}" fill="none" stroke="currentColor" stroke-width="1.5" stroke-linejoin="round"/>'
        '<circle cx="{}" cy="{}" r="2.25" fill="currentColor"/></svg>',
        width,
        height,
        width,
        height,
        f"{label} from {numbers.number(values[0])} to {numbers.number(values[-1])}",
        area,
        line,
        f"{points[-1][0]:.1f}",
        f"{points[-1][1]:.1f}",
    )


@register.simple_tag
def reward_strip(rewards: Sequence[float | None], low: float = 0.0, high: float = 1.0) -> SafeString:
    """One small column per member of a group: taller is better, hatched is failed."""
    known = [reward for reward in rewards if reward is not None]
    low, high = min([low, *known]), max([high, *known])
    span = (high - low) or 1.0
    width, height, gap = 5, 18, 2
    bars = []
    for at, reward in enumerate(rewards):
        filled = 2.0 if reward is None else 2 + (reward - low) / span * (height - 2)
        kind = "failed" if reward is None else "known"
        # format_html escapes values to text before it formats, so numbers are rounded here.
        bars.append((at * (width + gap), f"{height - filled:.1f}", width, f"{filled:.1f}", kind))
    total = max(0, len(rewards) * (width + gap) - gap)
    said = ", ".join("failed" if reward is None else numbers.number(reward) for reward in rewards)
    return format_html(
        '<svg class="reward-strip" width="{}" height="{}" role="img" aria-label="Rewards: {}">{}</svg>',
        total,
        height,
        said,
        format_html_join("", '<rect x="{}" y="{}" width="{}" height="{}" rx="1" class="{}"/>', bars),
    )


@register.simple_tag
def meter(value: float | None, width: int = 34, height: int = 5) -> SafeString:
    """A reward between 0 and 1 as a bar, for the eye only: the number stands beside it."""
    filled = 0.0 if value is None else max(0.0, min(1.0, value)) * width
    return format_html(
        '<svg class="meter" width="{}" height="{}" aria-hidden="true"><rect width="{}" height="{}" rx="1"/>'
        '<rect class="value" width="{}" height="{}" rx="1"/></svg>',
        width,
        height,
        width,
        height,
        f"{filled:.1f}",
        height,
    )


@register.simple_tag
def share_bar(parts: Sequence[tuple[str, int]], label: str) -> SafeString:
    """A bar split by share: (css class, amount) each."""
    total = sum(amount for _, amount in parts) or 1
    rects, at = [], 0.0
    for kind, amount in parts:
        share = amount / total * 100
        rects.append((f"{at:.3f}%", f"{share:.3f}%", kind))
        at += share
    return format_html(
        '<svg class="share-bar" width="100%" height="8" role="img" aria-label="{}">{}</svg>',
        label,
        format_html_join("", '<rect x="{}" width="{}" height="8" class="{}"/>', rects),
    )


_ICONS = {
    "search": '<circle cx="6" cy="6" r="4.25"/><path d="m9.2 9.2 3.3 3.3"/>',
    "theme": '<circle cx="7" cy="7" r="5.25"/><path d="M7 1.75a5.25 5.25 0 0 1 0 10.5z" fill="currentColor"/>',
    "person": '<circle cx="7" cy="4.6" r="2.6"/><path d="M2 12.6c.5-2.7 2.5-4 5-4s4.5 1.3 5 4"/>',
    "plus": '<path d="M7 2.5v9M2.5 7h9"/>',
    "stop": '<rect x="3.25" y="3.25" width="7.5" height="7.5" rx="1.25"/>',
    "copy": '<rect x="4.75" y="4.75" width="7" height="7" rx="1.25"/>'
    '<path d="M9.25 4.5V3.25a1 1 0 0 0-1-1h-5a1 1 0 0 0-1 1v5a1 1 0 0 0 1 1H4.5"/>',
    "left": '<path d="M8.75 3 4.75 7l4 4"/>',
    "right": '<path d="m5.25 3 4 4-4 4"/>',
}


@register.simple_tag
def icon(name: str) -> SafeString:
    """A line icon of 14 pixels; always beside a word or in a control with a label."""
    return format_html(
        '<svg width="14" height="14" viewBox="0 0 14 14" fill="none" stroke="currentColor" stroke-width="1.4"'
        ' stroke-linecap="round" stroke-linejoin="round" aria-hidden="true">{}</svg>',
        SafeString(_ICONS[name]),
    )


@register.filter
def ticks(text: str) -> SafeString:
    """A docstring's `code` as code."""
    parts = str(text).split("`")
    return format_html_join("", "{}", ((_code(part) if at % 2 else part,) for at, part in enumerate(parts)))


def _code(text: str) -> SafeString:
    return format_html("<code>{}</code>", text)


@register.filter
def lookup(mapping: dict[Any, Any], key: Any) -> Any:
    """mapping[key], or None: Django's dot cannot take a variable."""
    return mapping.get(key)


@register.filter
def pairs(mapping: dict[str, Any] | None) -> list[tuple[str, Any]]:
    """Of a mapping whose keys others choose, if it is there: Django's dot would take a key `items` for the method."""
    return list((mapping or {}).items())


@register.simple_tag(takes_context=True)
def query(context: dict[str, Any], **changes: Any) -> str:
    """The present query string with some parameters replaced; empty ones are left out."""
    parameters = context["request"].GET.copy()
    for name, value in changes.items():
        if value in (None, ""):
            parameters.pop(name, None)
        else:
            parameters[name] = str(value)
    encoded = parameters.urlencode()
    return f"?{encoded}" if encoded else "?"
