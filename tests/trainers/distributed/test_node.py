"""The ranks of one node of several: they end together."""

import sys
from argparse import Namespace
from pathlib import Path

import pytest

from trainers.distributed import node


@pytest.mark.timeout(120)
def test_a_node_ends_when_a_rank_dies_that_is_not_its_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rank = tmp_path / "rank"
    rank.write_text('#!/bin/sh\n[ "$RANK" = 0 ] && exec sleep 600\nexit 1\n')
    rank.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(rank))
    asked = Namespace(kind="rl", nodes=1, node=0, ranks=2, meeting=tmp_path / "meeting", interface="lo")
    assert node._run(asked) == 1
