"""Where a value of a run config came from: a code that is stored, and the words a person reads.

An origin is `<source>`, or `<source>:<name>` where there are many of one source, such as `preset:reverse-text-rl`.
Programs compare sources; only pages and terminals turn an origin into words.
"""

import enum


class Source(enum.StrEnum):
    """Who set a value."""

    DEFAULT = "default"
    ENVIRONMENT = "environment"
    """A variable of the environment, by its name."""
    PRESET = "preset"
    FILE = "file"
    COMMAND_LINE = "command_line"
    REST = "rest"
    FORM = "form"
    FORM_TOML = "form_toml"
    """The text area of the launch form."""
    RUN = "run"
    """The config of another run that was launched again with changes."""
    FORK = "fork"
    """The checkpoint of another run that this one starts from."""


_WORDS = {
    Source.DEFAULT: "default",
    Source.ENVIRONMENT: "environment",
    Source.PRESET: "preset",
    Source.FILE: "file",
    Source.COMMAND_LINE: "command line",
    Source.REST: "REST request",
    Source.FORM: "launch form",
    Source.FORM_TOML: "launch form, TOML",
    Source.RUN: "run",
    Source.FORK: "fork of",
}


def origin(source: Source, name: str = "") -> str:
    """The code of an origin, as it is stored with a run."""
    return f"{source}:{name}" if name else str(source)


def source_of(code: str) -> Source | None:
    """Who set the value; None for a code that is not known, as of a run that an older version launched."""
    try:
        return Source(code.partition(":")[0])
    except ValueError:
        return None


def describe(code: str) -> str:
    """An origin in words, such as `preset reverse-text-rl`. A code that is not known is shown as it is."""
    source = source_of(code)
    if source is None:
        return code
    return f"{_WORDS[source]} {code.partition(':')[2]}".rstrip()


def describe_source(code: str) -> str:
    """The first word of `describe`, where there is no room for all of them."""
    return describe(code).split()[0]
