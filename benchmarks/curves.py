"""A curve of every seed as a small SVG that reads on light and on dark pages."""

from collections.abc import Mapping
from pathlib import Path

_WIDTH, _HEIGHT = 480, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 40, 70, 14, 34
"""Margins; the names of the seeds stand in the right one."""
_COLOURS = ["#2a78c8", "#c8641e", "#3c963c", "#9650b4", "#b43c50"]
_TICKS = 5


def write_svg(path: Path, rewards: Mapping[str, Mapping[str, float]], figure: str = "reward") -> None:
    """Draw a held-out figure, from 0 to 1, over policy versions: seed -> version -> its value."""
    last = max(int(version) for reward in rewards.values() for version in reward) or 1

    def x(version: float) -> float:
        return round(_LEFT + (_WIDTH - _LEFT - _RIGHT) * version / last, 1)

    def y(reward: float) -> float:
        return round(_HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * reward, 1)

    parts = []
    for tick in range(_TICKS + 1):
        reward, version = tick / _TICKS, round(last * tick / _TICKS)
        parts.append(f'<path class="grid" d="M{x(0)} {y(reward)}H{x(last)}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y(reward) + 4}" text-anchor="end">{reward:.1f}</text>')
        parts.append(f'<text x="{x(version)}" y="{_HEIGHT - 18}" text-anchor="middle">{version}</text>')
    parts.append(f'<text x="{x(last / 2)}" y="{_HEIGHT - 4}" text-anchor="middle">optimizer steps</text>')
    parts.append(f'<text x="{_LEFT}" y="10">held-out {figure}</text>')
    ends = _apart([y(list(reward.values())[-1]) for reward in rewards.values()])
    for (seed, reward), colour, end in zip(rewards.items(), _COLOURS, ends, strict=False):
        points = " ".join(f"{x(int(version))},{y(value)}" for version, value in reward.items())
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{x(last) + 6}" y="{end + 4}" style="fill:{colour}">seed {seed}</text>')
    style = "text{font:11px sans-serif;fill:#808080}.grid{stroke:#808080;stroke-opacity:.25}"
    body = "\n".join(parts)
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" '
        f'role="img" aria-label="Held-out {figure} by optimizer steps, a line for each seed">\n'
        f"<style>{style}</style>\n{body}\n</svg>\n"
    )


def _apart(places: list[float]) -> list[float]:
    """The same heights, none within a line of another: labels must not lie on each other."""
    line = 12.0
    moved = dict(enumerate(places))
    last = float("-inf")
    for number in sorted(moved, key=lambda number: places[number]):
        moved[number] = last = max(moved[number], last + line)
    return [moved[number] for number in range(len(places))]
