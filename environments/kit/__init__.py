"""The test kit: what an environment promises, checked by playing it. For whoever writes one, and for our own.

    report = check(registry.load("reverse_text"))         or: python -m environments check reverse_text
    assert report.holds, report

Three players play it through the real runner: one says what `solution` says, one says something at random, and one says
what breaks parsers. No model is needed.
"""

from environments.kit.checking import check
from environments.kit.hostile import hostile_replies
from environments.kit.playing import RandomPlayer, played
from environments.kit.report import Finding, Report

__all__ = ["Finding", "RandomPlayer", "Report", "check", "hostile_replies", "played"]
