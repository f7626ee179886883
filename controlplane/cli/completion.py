"""What the shell completes: presets and config keys of a launch, keys of runs. Must answer within a blink."""

import io
from contextlib import redirect_stderr
from typing import Annotated

import typer

MOST = 50


def complete_launch(ctx: typer.Context, incomplete: str) -> list[str]:
    """A preset as long as there is none, keys of the config with `=`, and the values of a key where they can be listed.

    bash hands over `=`, and what is behind it, as words of their own, and of a `=` in the end nothing is left.
    """
    from trainers.config import preset_names
    from trainers.run_config.keys import all_keys

    before: list[str] = list(ctx.params.get("words") or [])
    given = before[:-1] if before[-1:] == ["="] else before if not incomplete else []
    if given and given[-1] in all_keys():
        return [value for value in all_keys()[given[-1]] if value.startswith(incomplete)]
    key, separator, start = incomplete.partition("=")
    if separator:
        return [f"{key}={value}" for value in all_keys().get(key, ()) if value.startswith(start)]
    presets = preset_names()
    words = [] if set(presets) & set(before) else presets
    return [word for word in (*words, *(f"{key}=" for key in all_keys())) if word.startswith(incomplete)]


def complete_run(incomplete: str) -> list[str]:
    """Keys of the newest runs; none when the database does not answer."""
    from controlplane.cli.terminal import connect

    try:
        with redirect_stderr(io.StringIO()):
            connect()
    except typer.Exit:
        return []
    from rollouts.models import Run

    found = Run.objects.filter(key__startswith=incomplete).order_by("-id")
    return list(found.values_list("key", flat=True)[:MOST])


RunKey = Annotated[str, typer.Argument(metavar="RUN", help="Key of a run.", autocompletion=complete_run)]
