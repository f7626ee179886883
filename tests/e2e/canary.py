"""Secrets that are let into an installation, and looked for in every spelling that something may have given them."""

import base64
import gzip
import html
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from urllib.parse import quote, quote_plus


@dataclass(frozen=True)
class Canary:
    """A secret, and the places that may know it."""

    name: str
    secret: str
    reasons: dict[str, str] = field(default_factory=dict)
    """Pattern of a place -> why it is meant to hold the secret. Every other place must not."""

    @cached_property
    def spellings(self) -> dict[bytes, str]:
        """What to look for -> how that is written."""
        raw = self.secret.encode()
        found = {raw: "as it is"}
        for spelled, how in {
            quote(self.secret, safe="").encode(): "in a URL",
            quote_plus(self.secret).encode(): "in a form",
            json.dumps(self.secret)[1:-1].encode(): "in JSON",
            json.dumps(self.secret, ensure_ascii=False)[1:-1].encode(): "in JSON of UTF-8",
            html.escape(self.secret).encode(): "in HTML",
            repr(self.secret)[1:-1].encode(): "in Python",
            raw.hex().encode(): "in hex",
            raw.hex().upper().encode(): "in hex",
            self.secret.encode("utf-16-le"): "in UTF-16",
        }.items():
            found.setdefault(spelled, how)
        for shift in range(3):
            # Where it begins within a group of three bytes decides its letters; those it shares with neighbours go.
            letters = base64.b64encode(bytes(shift) + raw)[(0, 2, 3)[shift] :][: len(raw) * 4 // 3 - 3]
            found |= {letters: "in base64", letters.translate(bytes.maketrans(b"+/", b"-_")): "in base64"}
        return found


class Search:
    """Looks at one place after the other, and remembers what was found where."""

    def __init__(self) -> None:
        self.canaries: list[Canary] = []
        self.places = 0
        self._found: set[tuple[str, str, str]] = set()
        self._allowances: set[tuple[str, str]] = set()

    def look(self, place: str, content: bytes, *, beginning: str = "") -> None:
        """Look for all canaries, or those whose name begins so; into what is compressed, too."""
        self.places += 1
        for each in (content, *_unpacked(content)):
            for canary in self.canaries:
                if canary.name.startswith(beginning):
                    self._look(canary, place, each)

    def _look(self, canary: Canary, place: str, content: bytes) -> None:
        for spelled, how in canary.spellings.items():
            if spelled not in content:
                continue
            allowing = [pattern for pattern in canary.reasons if fnmatchcase(place, pattern)]
            self._allowances |= {(canary.name, pattern) for pattern in allowing}
            if not allowing:
                at = content.index(spelled)
                around = content[max(0, at - 60) : at + len(spelled) + 20].replace(spelled, b"[...]")
                self._found.add((canary.name, f"{how} in {place}", repr(around)))

    @property
    def leaks(self) -> list[str]:
        """What was found where it must not be, and what is around it."""
        return sorted(f"the {name}, {where}: {around}" for name, where, around in self._found)

    @property
    def needless(self) -> list[str]:
        """Allowances that nothing needed: an exception that does not occur hides the day on which it does."""
        allowed = {(canary.name, pattern) for canary in self.canaries for pattern in canary.reasons}
        return sorted(f"{name}: {pattern}" for name, pattern in allowed - self._allowances)


def _unpacked(content: bytes) -> Iterator[bytes]:
    if content.startswith(b"\x1f\x8b"):
        yield gzip.decompress(content)
