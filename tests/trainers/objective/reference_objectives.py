"""Every objective once more, in float64 and plain loops, written from the formulas: value, and gradient by hand.

Shares no code with the trainers. A loss here takes one rollout and returns the sum of its tokens' losses and the
derivative of that sum by every logprob of the trainer; the tokens of a rollout all weigh the same, so that is enough.
A ratio is exp of the log ratio held inside +-20, and has no derivative beyond.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Row:
    """The trained tokens of one rollout, and the logprobs of its echo tokens."""

    pi: list[float]
    mu: list[float]
    advantages: list[float]
    ref: list[float] | None = None
    echo: list[float] = field(default_factory=list)
    group: str = "g"


Result = tuple[float, list[float]]
Reference = Callable[..., Result]


def ratio(log_ratio: float) -> tuple[float, float]:
    """r and dr / dlog pi."""
    if log_ratio > 20:
        return math.exp(20), 0.0
    if log_ratio < -20:
        return math.exp(-20), 0.0
    return math.exp(log_ratio), math.exp(log_ratio)


def ppo(r: float, a: float, low: float, high: float) -> tuple[float, float]:
    """-min(r A, clip(r) A) and its derivative by r."""
    clipped = min(max(r, 1 - low), 1 + high)
    if clipped * a < r * a:
        return -clipped * a, 0.0
    return -r * a, -a


def over_tokens(
    row: Row, old: list[float], token: Callable[[float, float, float, float], tuple[float, float]]
) -> Result:
    """Sum and gradient of a loss whose tokens do not see each other; `token` gets pi, mu, old and A."""
    pairs = [token(*each) for each in zip(row.pi, row.mu, old, row.advantages, strict=True)]
    return math.fsum(loss for loss, _ in pairs), [slope for _, slope in pairs]


def grpo(row: Row, old: list[float], clip_low: float, clip_high: float) -> Result:
    def token(pi: float, mu: float, old: float, a: float) -> tuple[float, float]:
        r, slope = ratio(pi - old)
        loss, by_ratio = ppo(r, a, clip_low, clip_high)
        return loss, by_ratio * slope

    return over_tokens(row, old, token)


def cross_entropy(row: Row, old: list[float]) -> Result:
    return -math.fsum(row.pi), [-1.0] * len(row.pi)


def distill(row: Row, old: list[float], ratio: str = "token", delta: float = 8.0) -> Result:
    loss, slopes = 0.0, []
    assert row.ref is not None
    for pi, before, ref in zip(row.pi, old, row.ref, strict=True):
        weight = min(math.exp(min(max(pi - before, -20), 20)), delta) if ratio == "token" else 1.0
        loss -= weight * (ref - pi) * pi
        slopes.append(-weight * (ref - pi))
    return loss, slopes


def aipo(row: Row, old: list[float], delta: float = 8.0, bound: str = "clamp") -> Result:
    def token(pi: float, mu: float, old: float, a: float) -> tuple[float, float]:
        r, slope = ratio(pi - old)
        weight = min(r, delta)
        if bound == "truncate":
            return -weight * a * pi, -weight * a
        return -weight * a, (-a * slope if r <= delta else 0.0)

    return over_tokens(row, old, token)


def cispo(row: Row, old: list[float], low: float = 0.0, high: float = 5.0) -> Result:
    def token(pi: float, mu: float, old: float, a: float) -> tuple[float, float]:
        weight = min(max(ratio(pi - old)[0], low), high)
        return -weight * a * pi, -weight * a

    return over_tokens(row, old, token)


def sequence_ratio(row: Row, old: list[float]) -> tuple[float, float]:
    """s, and its derivative by the mean log ratio."""
    return ratio(math.fsum(pi - before for pi, before in zip(row.pi, old, strict=True)) / len(row.pi))


def gspo(row: Row, old: list[float], clip_low: float = 3e-4, clip_high: float = 4e-4) -> Result:
    s, slope = sequence_ratio(row, old)
    loss, by_ratio = ppo(s, row.advantages[0], clip_low, clip_high)
    # L tokens with this loss each; the mean log ratio moves by 1 / L with every one of the L logprobs
    return len(row.pi) * loss, [by_ratio * slope] * len(row.pi)


def gspo_token(row: Row, old: list[float], clip_low: float = 3e-4, clip_high: float = 4e-4) -> Result:
    s, _ = sequence_ratio(row, old)
    pairs = [ppo(s, a, clip_low, clip_high) for a in row.advantages]
    return math.fsum(loss for loss, _ in pairs), [by_ratio * s for _, by_ratio in pairs]


def masked_is(row: Row, old: list[float], low: float = 0.125, high: float = 8.0) -> Result:
    def token(pi: float, mu: float, old: float, a: float) -> tuple[float, float]:
        r, slope = ratio(pi - mu)
        return (-r * a, -slope * a) if low <= r <= high else (0.0, 0.0)

    return over_tokens(row, old, token)


def dppo(row: Row, old: list[float], low: float = 0.2, high: float = 0.2, kl_tau: float = 1e-3) -> Result:
    def token(pi: float, mu: float, old: float, a: float) -> tuple[float, float]:
        r, slope = ratio(pi - mu)
        moved = math.exp(pi) - math.exp(mu)
        is_dropped = moved > high if a > 0 else moved < -low
        return (0.0, 0.0) if is_dropped else (-r * a, -slope * a)

    return over_tokens(row, old, token)


def dppo_penalty(row: Row, kl_tau: float = 1e-3, **_: object) -> Result:
    """On every trained token, whatever the mask and the corrections do."""
    logs = [pi - mu for pi, mu in zip(row.pi, row.mu, strict=True)]
    return kl_tau * math.fsum(log**2 for log in logs), [2 * kl_tau * log for log in logs]


def sapo(row: Row, old: list[float], positive: float = 1.0, negative: float = 1.05) -> Result:
    def token(pi: float, mu: float, old: float, a: float) -> tuple[float, float]:
        r, slope = ratio(pi - old)
        tau = positive if a > 0 else negative
        z = tau * (r - 1)
        gate = 1 / (1 + math.exp(-z))
        closing = math.exp(-z) / (1 + math.exp(-z)) ** 2 if z < 700 else 0.0
        return -4 / tau * gate * a, -4 * closing * slope * a

    return over_tokens(row, old, token)


REFERENCES: dict[str, Reference] = {
    "aipo": aipo,
    "cispo": cispo,
    "cross_entropy": cross_entropy,
    "dapo": grpo,
    "distill": distill,
    "dppo": dppo,
    "dr_grpo": grpo,
    "grpo": grpo,
    "gspo": gspo,
    "gspo_token": gspo_token,
    "masked_is": masked_is,
    "opo": aipo,
    "rloo": aipo,
    "sapo": sapo,
}


def reference_kl(row: Row) -> Result:
    loss, slopes = 0.0, []
    assert row.ref is not None
    for pi, ref in zip(row.pi, row.ref, strict=True):
        d = min(ref - pi, 20.0)
        loss += math.exp(d) - d - 1
        slopes.append(1 - math.exp(d) if ref - pi <= 20 else 0.0)
    return loss, slopes


def weights(rows: Sequence[Row], counts: Sequence[int], normaliser: str, constant: int) -> list[float]:
    """One over the denominator of each rollout's tokens, of which it has `counts`."""
    present = [index for index, count in enumerate(counts) if count > 0]
    found = []
    for row, count in zip(rows, counts, strict=True):
        if count == 0:
            found.append(0.0)
        elif normaliser == "token":
            found.append(1 / sum(counts))
        elif normaliser == "sequence_mean":
            found.append(1 / len(present) / count)
        elif normaliser == "sequence_sum":
            found.append(1 / len(present))
        elif normaliser == "group":
            groups = {rows[index].group for index in present}
            own = sum(counts[index] for index in present if rows[index].group == row.group)
            found.append(1 / len(groups) / own)
        else:
            assert normaliser == "constant"
            found.append(1 / len(present) / constant)
    return found


def correction(row: Row, config: dict[str, float]) -> list[float]:
    """The factor of every token."""
    logs = [pi - mu for pi, mu in zip(row.pi, row.mu, strict=True)]
    if not logs:
        return []
    factors = [1.0] * len(logs)
    if "token_cap" in config:
        factors = [min(math.exp(min(max(log, -20), 20)), config["token_cap"]) for log in logs]
    if "sequence_cap" in config:
        factors = [min(math.exp(min(max(math.fsum(logs), -20), 20)), config["sequence_cap"])] * len(logs)
    mean = math.fsum(logs) / len(logs)
    is_dropped = (
        ("geometric_low" in config and mean < math.log(config["geometric_low"]))
        or ("geometric_high" in config and mean > math.log(config["geometric_high"]))
        or ("max_divergence" in config and max(map(abs, logs)) > config["max_divergence"])
    )
    return [0.0] * len(logs) if is_dropped else factors


@dataclass(frozen=True)
class Objective:
    """Value of a batch, and its gradient by the logprobs of trained and of echo tokens, per row."""

    value: float
    gradient: list[list[float]]
    echo_gradient: list[list[float]]


def objective(
    rows: Sequence[Row],
    loss: str | Reference,
    args: dict[str, object],
    normaliser: str,
    *,
    constant: int = 7,
    ratio_against: str = "inference",
    corrections: dict[str, float] | None = None,
    terms: dict[str, float] | None = None,
) -> Objective:
    """The whole objective of a batch."""
    function = REFERENCES[loss] if isinstance(loss, str) else loss
    terms = terms or {}
    counts = [len(row.pi) for row in rows]
    policy = weights(rows, counts, normaliser, constant)
    reference = weights(rows, [0 if row.ref is None else len(row.pi) for row in rows], normaliser, constant)
    echo = weights(rows, [len(row.echo) for row in rows], "token", constant)
    value, gradient, echo_gradient = 0.0, [], []
    for row, w, w_reference, w_echo in zip(rows, policy, reference, echo, strict=True):
        factors = correction(row, corrections or {})
        slopes = [0.0] * len(row.pi)
        old = list(row.mu) if ratio_against == "inference" else list(row.pi)
        if row.pi and len(set(factors)) == 1:
            own, own_slopes = function(row, old, **args)
            value += w * factors[0] * own
            slopes = [w * factors[0] * slope for slope in own_slopes]
        elif row.pi:  # factors differ from token to token, so only losses without a sequence ratio come here
            for at, factor in enumerate(factors):
                token = Row(*([values[at]] for values in (row.pi, row.mu, row.advantages)))
                own, (slope,) = function(token, [old[at]], **args)
                value += w * factor * own
                slopes[at] = w * factor * slope
        if loss == "dppo":
            own, own_slopes = dppo_penalty(row, **args)  # type: ignore[arg-type]
            value += w * own
            slopes = [slope + w * more for slope, more in zip(slopes, own_slopes, strict=True)]
        for name, term in (("reference_kl", reference_kl), ("distillation", lambda row, old=old: distill(row, old))):
            if terms.get(name) and row.ref is not None:
                own, own_slopes = term(row)
                value += terms[name] * w_reference * own
                slopes = [
                    slope + terms[name] * w_reference * more for slope, more in zip(slopes, own_slopes, strict=True)
                ]
        value -= terms.get("echo", 0.0) * w_echo * math.fsum(row.echo)
        gradient.append(slopes)
        echo_gradient.append([-terms.get("echo", 0.0) * w_echo] * len(row.echo))
    return Objective(value, gradient, echo_gradient)
