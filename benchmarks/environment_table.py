"""The table of all environments in docs/environments.md: what they ask, and who earns how much.

    python -m benchmarks.environment_table              # rewards of the tiny model anew, from examples/*/curve.json
    python -m benchmarks.environment_table --measure    # the random and the solving player too: some minutes

"random" and "solving" are the means of the kit's two players on the first problems to train on; "before" and "after"
those of the tiny model on held-out problems, of all seeds, before and after the training of the example of that name.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any, NamedTuple

from environments import registry
from environments.cards import card
from environments.kit import check
from environments.solutions import of_problem
from environments.types import Split

ROOT = Path(__file__).parents[1]
DOCUMENT, EXAMPLES = ROOT / "docs" / "environments.md", ROOT / "examples"
BEGIN, END = "<!-- python -m benchmarks.environment_table -->\n", "<!-- end -->\n"
_HEAD = "| name | task | turns | random | solving | before | after |\n|---|---|---|---|---|---|---|\n"
_PROBLEMS = 40


class Row(NamedTuple):
    """The cells of an environment; empty: nobody knows."""

    name: str
    task: str
    turns: str = ""
    random: str = ""
    solving: str = ""
    before: str = ""
    after: str = ""


def main(argv: list[str] | None = None) -> int:
    """Write the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.environment_table")
    parser.add_argument("--measure", action="store_true", help="play the random and the solving player again")
    is_measured = parser.parse_args(argv).measure
    text = DOCUMENT.read_text()
    known = {row.name: row for row in rows_in(text)}
    rows = [_row(name, known.get(name), is_measured=is_measured) for name in names()]
    before, _, rest = text.partition(BEGIN)
    table = _HEAD + "".join(f"| `{row.name}` | {' | '.join(row[1:])} |\n" for row in rows)
    DOCUMENT.write_text(f"{before}{BEGIN}{table}{END}{rest.partition(END)[2]}")
    return 0


def names() -> list[str]:
    """Those that ship, and the bridge that plays by name what somebody else wrote."""
    return [name for name in registry.names() if registry.is_built_in(name)] + ["reasoning_gym"]


def rows_in(text: str) -> list[Row]:
    """The rows of the table in a document."""
    table = text.partition(BEGIN)[2].partition(END)[0]
    lines = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    return [Row(*cells) for cells in lines]


def _row(name: str, known: Row | None, *, is_measured: bool) -> Row:
    told = card(name)
    row = (known or Row(name, ""))._replace(task=told.summary.rstrip("."))
    is_playable = registry.is_built_in(name) and not registry.policies_of(name, {})
    is_playable = is_playable and not any(each.name == "data" and not each.default for each in told.arguments)
    if is_measured and is_playable:
        print(name, file=sys.stderr)
        environment = registry.load(name)
        report = check(environment, problems=_PROBLEMS, seconds=10)
        problems = [
            environment.problem(Split.TRAIN, index) for index in range(min(_PROBLEMS, environment.count(Split.TRAIN)))
        ]
        solutions = [messages for problem in problems for messages in of_problem(environment, problem).values()]
        turns = sorted({sum(message.role == "assistant" for message in each) for each in solutions})
        row = row._replace(
            turns="tool" if problems[0].tools else "-".join(map(str, dict.fromkeys([turns[0], turns[-1]]))),
            random=_shown(report.random_reward),
            solving="" if report.solving_reward is None else _shown(report.solving_reward),
        )
    return row._replace(**_learned(name))


def _learned(name: str) -> dict[str, str]:
    """Of the example's curve, where there is one."""
    curve = EXAMPLES / name.replace("_", "-") / "curve.json"
    if not curve.exists():
        return {}
    told: dict[str, Any] = json.loads(curve.read_text())
    figure = told["figure"]
    ends = [(values[0], values[-1]) for values in (list(each[figure].values()) for each in told["seeds"].values())]
    unit = "" if figure == "reward" else f"{figure} "
    before, after = (f"{unit}{_shown(statistics.fmean(each))}" for each in zip(*ends, strict=True))
    return {"before": before, "after": after}


def _shown(reward: float) -> str:
    return f"{reward:.2f}".removeprefix("0").replace("-0.", "-.").replace(".00", "") or "0"


if __name__ == "__main__":
    raise SystemExit(main())
