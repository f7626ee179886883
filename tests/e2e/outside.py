"""Programs outside that play the live policy of a real run, and what the store and the trainer have of it.

Each framework is a process of `.venv-agents`, unmodified, that knows of its sessions their address and their key. What
it was told, turn by turn, is held against the tokens that were stored, and those against what the trainer made of them.
"""

import itertools
import json
import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from environments.client import SessionClient
from environments.types import Message, Problem
from tests.e2e.yard import Yard, until
from trainers.model.tiny_tools import MARKS, tool_tokenizer
from trainers.wire import MaskReason

ROOT = Path(__file__).parents[2]
AGENTS = ROOT / ".venv-agents"
PROGRAMS = ROOT / "tests" / "environments" / "frameworks"
PLAYERS = {"openai": "groups_with_openai.py", "openai-agents": "groups_with_openai_agents.py"}
"""Environment in the store -> the program that plays it."""
GROUP_SIZE = 4
PROMPT = "Add two digits."
LARGEST_SUM = 18
"""Rewarded by 1."""
DEADLINE_S = 60

Played = dict[str, list[dict[str, Any]]]
"""Group -> what each of its sessions was told, in the order in which they were opened."""


class OutsidePlayers:
    """Both players at one run. Groups that came too late for the batch of their version are dropped as stale there."""

    def __init__(self, yard: Yard, run: str) -> None:
        self._yard = yard
        self._run = run
        self._token = yard.rollyard("token", "create", f"players-{run}", "--scope", "play")["token"]

    def play_until_in_time(self, *, within_s: float) -> Played:
        """Play a group each, again and again, until both are ready before the batch of their version is formed."""
        attempts = itertools.count()
        return until(lambda: self._played_in_time(next(attempts)), within_s=within_s, what="groups that were in time")

    def _played_in_time(self, attempt: int) -> Played | None:
        with ThreadPoolExecutor(len(PLAYERS)) as pool:
            groups = pool.map(lambda name: (f"{name}-{attempt}", self._play(name, f"{name}-{attempt}")), PLAYERS)
            played = dict(groups)
        [(in_time,)] = self._yard.sql(
            "SELECT count(*) FROM rollouts_scoredgroup AS grp JOIN rollouts_run AS run ON run.id = grp.run_id"
            " WHERE run.key = %s AND grp.key = ANY(%s) AND grp.state = 'ready' AND NOT EXISTS ("
            "SELECT FROM rollouts_batch AS batch WHERE batch.run_id = run.id AND batch.step = grp.min_policy_version)",
            self._run,
            list(played),
        )
        return played if in_time == len(PLAYERS) else None

    def _play(self, name: str, group: str) -> list[dict[str, Any]]:
        problem = Problem(key=PROMPT, messages=[Message("user", PROMPT)])
        with SessionClient(self._yard.url, self._token, self._run) as client, ExitStack() as opened:
            sessions = [
                opened.enter_context(client.open(problem, environment=name, group=group, group_size=GROUP_SIZE))
                for _ in range(GROUP_SIZE)
            ]
            asked = [{"base_url": each.base_url, "api_key": each.api_key, "prompt": PROMPT} for each in sessions]
            done = subprocess.run(
                [AGENTS / "bin" / "python", "-I", PROGRAMS / PLAYERS[name]],
                env={"PATH": os.environ["PATH"]},
                input=json.dumps(asked),
                capture_output=True,
                text=True,
                timeout=DEADLINE_S,
                check=False,
            )
            assert done.returncode == 0, done.stderr[-3000:]
            told: list[dict[str, Any]] = json.loads(done.stdout)
            complete = [each.finish(tale["sum"] / LARGEST_SUM) for each, tale in zip(sessions, told, strict=True)]
            assert complete == [False] * (GROUP_SIZE - 1) + [True]
        return told


def check_trained(yard: Yard, run: str, group: str, told: list[dict[str, Any]]) -> float:
    """What was stored and trained is what the player was told, on policy; the mean mismatch KL of its tokens."""
    [(lengths, token_ids, loss_mask, logprobs, branches, version, newest, step)] = yard.sql(
        "SELECT tokens.lengths, token_ids, loss_mask, inference_logprobs, branch_lengths,"
        " min_policy_version, max_policy_version, batch.step FROM rollouts_scoredgroup AS grp"
        " JOIN rollouts_run AS run ON run.id = grp.run_id"
        " JOIN rollouts_grouptokens AS tokens ON tokens.group_id = grp.id"
        " JOIN rollouts_batchitem AS item ON item.group_id = grp.id"
        " JOIN rollouts_batch AS batch ON batch.id = item.batch_id"
        " WHERE run.key = %s AND grp.key = %s",
        run,
        group,
    )
    assert branches is None, "each conversation is one branch: history was only extended"
    assert version == newest == step > 0, "weights that were trained played it, and it was trained on as their own"
    seen = yard.sql(
        "SELECT seen.trainer_logprobs, seen.mask_reasons FROM rollouts_tokenvalues AS seen"
        " JOIN rollouts_rollout AS rollout ON rollout.id = seen.rollout_id"
        " JOIN rollouts_scoredgroup AS grp ON grp.id = rollout.group_id JOIN rollouts_run AS run ON run.id = grp.run_id"
        " WHERE run.key = %s AND grp.key = %s ORDER BY rollout.index",
        run,
        group,
    )
    ends = np.cumsum(np.frombuffer(lengths, "<u4"))[:-1]
    parts = [
        np.split(np.frombuffer(data, kind), ends)
        for data, kind in [(token_ids, "<u4"), (loss_mask, "u1"), (logprobs, "<f4")]
    ]
    log_ratios = []
    for tale, ids_T, mask_T, engine_T, values in zip(told, *parts, seen, strict=True):
        check_turns(tale["turns"], ids_T, mask_T, engine_T)
        trainer_T, reason_T = np.frombuffer(values[0], "<f4"), np.frombuffer(values[1], "u1")
        assert (reason_T[mask_T == 1] == MaskReason.TRAINED).all(), "every token that was sampled moved the weights"
        log_ratios.append((trainer_T - engine_T)[mask_T == 1].astype(float))
    log_ratio_K = np.concatenate(log_ratios)
    return float((np.exp(log_ratio_K) - log_ratio_K - 1).mean())


def check_turns(
    turns: list[dict[str, Any]], ids_T: npt.NDArray[Any], mask_T: npt.NDArray[Any], engine_T: npt.NDArray[Any]
) -> None:
    """The tokens that train are those of the replies, each where its prompt ends; their text is what was said."""
    sampled = [range(turn["given"], turn["given"] + turn["sampled"]) for turn in turns]
    assert np.flatnonzero(mask_T).tolist() == [place for each in sampled for place in each]
    assert len(mask_T) == sampled[-1].stop
    tokenizer = tool_tokenizer()
    for turn, places in zip(turns, sampled, strict=True):
        own = slice(places.start, places.stop)
        said = str(tokenizer.decode(ids_T[own].tolist(), skip_special_tokens=True))
        if turn["calls"]:
            assert [{"name": name, "arguments": json.loads(told)} for name, told in turn["calls"]] == _calls(said)
        elif not any(mark in said for mark in MARKS):
            assert _characters(turn["text"]) == _characters(said)
        if "token_ids" in turn:
            assert ids_T[own].tolist() == turn["token_ids"]
            assert engine_T[own].tolist() == np.array(turn["logprobs"], "<f4").tolist()


def _calls(said: str) -> list[Any]:
    """As vLLM's parser reads them: the last may lack its closing mark."""
    return [json.loads(call) for call in re.findall(r"<tool_call>(.*?)(?:</tool_call>|$)", said, re.DOTALL)]


def _characters(text: str) -> str:
    """Without what is no character: a stream never says bytes at its end that only the next token could complete."""
    return text.replace("\N{REPLACEMENT CHARACTER}", "").strip()
