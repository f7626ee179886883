"""What `benchmarks/bad_environments.py` measures; pytest collects it only when it is named."""

import json
import os
import statistics
import sys
import time

import pytest
from django.db.models import Count, QuerySet

from rollouts.models import ScoredGroup
from rollouts.states import GroupState
from tests.workers import bad_environments
from tests.workers.making import make_server, make_started_run
from tests.workers.stub_server import stub_server
from tests.workers.test_episodes import driving
from tests.workers.waiting import eventually

PAIRS, SECONDS = "BAD_ENVIRONMENTS_PAIRS", "BAD_ENVIRONMENTS_SECONDS"
_REPLY_S = 1.0
_CONCURRENCY = 16
_TIMES = 5


@pytest.mark.django_db(transaction=True)
@pytest.mark.timeout(3_600)
@pytest.mark.usefixtures("bad_packages")
def test_throughput_beside_bad_ones(capsys: pytest.CaptureFixture[str]) -> None:
    alone, beside = [], []
    for pair in range(int(os.environ[PAIRS])):
        for with_bad in (False, True) if pair % 2 == 0 else (True, False):
            (beside if with_bad else alone).append(_groups_per_s(with_bad=with_bad))
    ratios = [among / alone for among, alone in zip(beside, alone, strict=True)]
    with capsys.disabled():
        print(
            json.dumps(
                {
                    "alone_groups_per_s": [round(each, 2) for each in alone],
                    "beside_groups_per_s": [round(each, 2) for each in beside],
                    "ratio_median": round(statistics.median(ratios), 3),
                    "ratio_min_max": [round(min(ratios), 3), round(max(ratios), 3)],
                }
            )
        )


def _groups_per_s(*, with_bad: bool) -> float:
    room = {"process": "isolated", "timeout_s": 6.0, "memory_gib": 0.5, "max_processes": 1}
    kinds = bad_environments.KINDS if with_bad else ()
    bad = [{"name": bad_environments.place(kind), "label": kind, "args": {"kind": kind}, **room} for kind in kinds]
    good = {"name": "bad_environments:Good", "label": "good", "args": {"kind": ""}, **room, "timeout_s": 60.0}
    run = make_started_run(
        environments=[good, *bad],
        sampling__max_turns=3,
        workers__concurrency=_CONCURRENCY,
        batch__batch_size=20_000,
        workers__lease_s=60.0,
    )
    groups = ScoredGroup.objects.filter(run=run)
    scored = groups.filter(environment__name="good", state__in=[GroupState.READY, GroupState.FILTERED])
    failed = groups.filter(state=GroupState.FAILED)
    seconds = float(os.environ[SECONDS])
    with stub_server() as stub:
        stub.delay_s = _REPLY_S
        make_server(run, stub.url)
        with driving(run):
            eventually(lambda: _often(failed) >= len(kinds), within_s=600)
            eventually(lambda: scored.count() >= 2 * _CONCURRENCY, within_s=120)
            before, began = scored.count(), time.monotonic()
            time.sleep(seconds)  # what is measured
            rate = (scored.count() - before) / (time.monotonic() - began)
    print(f"{'beside the bad ones' if with_bad else 'alone'}: {rate:.2f} groups/s", file=sys.stderr)
    return rate


def _often(failed: QuerySet[ScoredGroup]) -> int:
    """Environments that failed so often that they pause for long."""
    return failed.order_by().values("environment").annotate(times=Count("pk")).filter(times__gte=_TIMES).count()
