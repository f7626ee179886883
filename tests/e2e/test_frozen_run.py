"""A run judged by what it began with: a real server of that, beside those of the policy, which never changes."""

from pathlib import Path

import pytest

from tests.e2e.yard import Yard
from tests.lanes import long_lane

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.vllm,
    long_lane("tests/workers/test_frozen.py starts its server, and tests/environments/judging asks for its word"),
]

STEPS, BATCH = 2, 16
JUDGE = '[{name = "judge", model = "start"}]'
# A random model's word is no verdict.
SORTING = '[{name = "judge", args = {mode = "rubric", tries = 1, fallback = 0.5, max_tokens = 16, words = 2}}]'


def test_a_run_is_judged_by_what_it_began_with(yard: Yard, base: Path) -> None:
    small = [f"batch.batch_size={BATCH}", "sampling.group_size=4", "sampling.max_tokens=16", f"max_steps={STEPS}"]
    exact = ["evaluation=null", "algorithm.max_async_level=0", "algorithm.filter_zero_advantage=false"]
    judged = [f"policies={JUDGE}", f"environments={SORTING}", "inference.kv_cache_gib=0.25"]
    room = "inference.max_model_len=2048"
    run = yard.finish("reverse-text-rl", f"model.path={base}", *small, *exact, *judged, room)

    asked, tokens = (sum(yard.metric(run, f"policies/judge/{each}")) for each in ("asks", "tokens"))
    kept = sum(yard.metric(run, "policies/judge/cached"))
    assert asked + kept >= STEPS * BATCH, "every reply is judged"
    assert tokens > asked
    assert yard.metric(run, "policies/judge/failed") == []
    served = (
        "SELECT p.policy, p.loaded_version, p.state FROM rollouts_replica AS p"
        " JOIN rollouts_run AS r ON r.id = p.run_id WHERE r.key = %s AND p.kind = 'inference' ORDER BY p.policy"
    )
    assert yard.sql(served, run) == [("", STEPS, "exited"), ("judge", None, "exited")]
