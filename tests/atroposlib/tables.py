"""What the tables of an installation hold of a run, read by plain SQL."""

from typing import Any, NamedTuple

import numpy as np

from tests.e2e.yard import Yard

JsonObject = dict[str, Any]


class Stored(NamedTuple):
    """One group; arrays over all its rollouts, end to end."""

    environment: str
    lengths: list[int]
    token_ids: list[int]
    loss_mask: list[bool]
    inference_logprobs: "np.ndarray[tuple[int], np.dtype[np.float32]]"
    rewards: list[float]
    messages: list[list[JsonObject]]

    def rows(self) -> list[list[int]]:
        """Token ids per rollout."""
        ends = np.cumsum(self.lengths)
        return [self.token_ids[end - length : end] for end, length in zip(ends, self.lengths, strict=True)]


def states(yard: Yard, run: str) -> dict[int, str]:
    """Where every group of a run is, by its id."""
    query = "SELECT g.id, g.state FROM rollouts_scoredgroup AS g JOIN rollouts_run AS r ON r.id = g.run_id"
    return dict(yard.sql(f"{query} WHERE r.key = %s", run))


def in_state(yard: Yard, run: str, state: str) -> set[int]:
    """Ids of the groups that are in this state."""
    return {group for group, each in states(yard, run).items() if each == state}


def stored(yard: Yard, run: str) -> dict[int, Stored]:
    """Every group of the run by its id, oldest first. One query: the last group may be arriving as it is asked."""
    rows = yard.sql(
        "SELECT g.id, e.name, t.lengths, t.token_ids, t.loss_mask, t.inference_logprobs, o.rewards, o.messages"
        " FROM rollouts_scoredgroup AS g JOIN rollouts_run AS r ON r.id = g.run_id"
        " JOIN rollouts_runenvironment AS e ON e.id = g.environment_id"
        " JOIN rollouts_grouptokens AS t ON t.group_id = g.id"
        " CROSS JOIN LATERAL (SELECT array_agg(reward ORDER BY index) AS rewards,"
        " jsonb_agg(messages ORDER BY index) AS messages FROM rollouts_rollout WHERE group_id = g.id) AS o"
        " WHERE r.key = %s ORDER BY g.id",
        run,
    )
    return {
        group: Stored(
            environment,
            np.frombuffer(lengths, "<u4").tolist(),
            np.frombuffer(token_ids, "<u4").tolist(),
            np.frombuffer(loss_mask, "u1").astype(bool).tolist(),
            np.frombuffer(logprobs, "<f4"),
            rewards,
            messages,
        )
        for group, environment, lengths, token_ids, loss_mask, logprobs, rewards, messages in rows
    }


def batches(yard: Yard, run: str) -> list[tuple[int, str, list[int]]]:
    """Step, state and group ids of every batch, in their orders."""
    return yard.sql(
        "SELECT b.step, b.state, array_agg(i.group_id ORDER BY i.position) FROM rollouts_batch AS b"
        " JOIN rollouts_batchitem AS i ON i.batch_id = b.id JOIN rollouts_run AS r ON r.id = b.run_id"
        " WHERE r.key = %s GROUP BY b.id ORDER BY b.step",
        run,
    )
