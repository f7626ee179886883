"""What must hold of a run over a whole Rollyard, by its tables alone, and somebody outside who is told what it sent."""

import threading
from typing import Any

import httpx

from tests.e2e.yard import Yard


class Submitter(threading.Thread):
    """An external environment that submits groups all the while and remembers which were acknowledged."""

    def __init__(self, yard: Yard, run: str, token: str) -> None:
        super().__init__(daemon=True)
        self.url = f"{yard.url}/api/v1/runs/{run}/groups"
        self.headers = {"Authorization": f"Token {token}"}
        self.acknowledged: list[str] = []
        self.refused: list[tuple[int, str]] = []
        self.halt = threading.Event()

    def run(self) -> None:
        with httpx.Client(timeout=10, headers=self.headers) as client:
            number = 0
            while not self.halt.wait(0.5):
                key = f"outside-{number}"
                try:
                    answer = client.post(self.url, json=_group(key, number))
                except httpx.TransportError:
                    continue  # unknown whether it was stored: the same key is sent again
                if answer.status_code == 201:
                    self.acknowledged += answer.json()["stored"]
                    number += 1
                elif answer.status_code == 410:
                    return
                elif answer.status_code < 500:
                    self.refused.append((answer.status_code, answer.text))
                    return


def _group(key: str, number: int) -> dict[str, Any]:
    tokens = [65, 66, 67, 68 + number % 20]
    rollout = {"token_ids": tokens, "loss_mask": [0, 0, 1, 1], "inference_logprobs": [0.0, 0.0, -1.5, -2.0]}
    return {
        "key": key,
        "environment": "outside",
        "problem_key": f"problem-{number}",
        "rollouts": [{**rollout, "reward": float(index % 2)} for index in range(4)],
    }


def check(yard: Yard, run: str, acknowledged: list[str], steps: int | None = None) -> None:
    """Hold the tables of a run that is over against the promises. `steps`: with which it finished; None: stopped."""
    [(run_id, state, reason, next_step)] = yard.sql(
        "SELECT id, state, reason_code || reason_params::text, next_step FROM rollouts_run WHERE key = %s", run
    )
    assert (state, next_step) == (("stopped", next_step) if steps is None else ("finished", steps)), reason

    stored = {key for (key,) in yard.sql("SELECT key FROM rollouts_scoredgroup WHERE run_id = %s", run_id)}
    assert set(acknowledged) <= stored, "an acknowledged group was lost"
    assert len(acknowledged) > 10, "the outside environment was hardly served"

    formed = [step for (step,) in yard.sql("SELECT step FROM rollouts_batch WHERE run_id = %s ORDER BY step", run_id)]
    assert formed == list(range(len(formed))), "steps are not contiguous"
    trained = yard.sql("SELECT count(*) FROM rollouts_batch WHERE run_id = %s AND state = 'trained'", run_id)
    assert trained == [(next_step,)]
    assert steps is None or len(formed) == steps, "a batch was formed that nobody trained"
    losses = yard.sql(
        "SELECT step FROM rollouts_metricpoint WHERE run_id = %s AND key = 'loss/mean' ORDER BY step", run_id
    )
    assert [step for (step,) in losses] == list(range(next_step))

    twice = yard.sql(
        "SELECT group_id FROM rollouts_batchitem JOIN rollouts_batch AS b ON b.id = batch_id WHERE b.run_id = %s"
        " GROUP BY group_id HAVING count(*) > 1",
        run_id,
    )
    assert twice == [], "a group is in two steps"

    created = yard.sql(
        "SELECT count(*) FROM rollouts_event WHERE run_id = %s AND object_kind = 'scoredgroup' AND from_state = ''",
        run_id,
    )[0][0]
    ledger = dict(yard.sql("SELECT state, count(*) FROM rollouts_scoredgroup WHERE run_id = %s GROUP BY state", run_id))
    assert sum(ledger.values()) == created
    assert set(ledger) <= {"trained", "evaluated", "stale", "filtered", "failed", "rejected", "surplus"}, ledger
    items = "SELECT count(*) FROM rollouts_batchitem JOIN rollouts_batch AS b ON b.id = batch_id WHERE b.run_id = %s"
    assert yard.sql(f"{items} AND b.state = 'trained'", run_id) == [(ledger["trained"],)]

    lag = yard.sql("SELECT max(value) FROM rollouts_metricpoint WHERE run_id = %s AND key = 'lag/max'", run_id)[0][0]
    assert lag <= 8, "a rollout over max_off_policy_steps was trained"
    assert yard.sql("SELECT count(*) FROM rollouts_lease WHERE run_id = %s", run_id) == [(0,)]
    assert yard.sql(
        "SELECT count(*) FROM rollouts_replica WHERE run_id = %s AND state NOT IN ('exited', 'lost')", run_id
    ) == [(0,)]
    print(f"ledger {ledger}, {created} groups created, {len(acknowledged)} acknowledged outside, max lag {lag}")
