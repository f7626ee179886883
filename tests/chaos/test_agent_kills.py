"""Gateway, environments, replicas and drivers are killed at random under episodes with tools: nothing is lost or stuck.

`ROLLYARD_AGENT_SEED` replays the order of the kills and the pauses between them, not what the machine did meanwhile.
"""

import json
import os
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from controlplane.up.processes import of_up
from rollouts.models import AgentSession, Replica, Run, Scope
from rollouts.services.runs import projects
from rollouts.states import RUN_TRAINING, RunState
from tests.browser.server import Server
from tests.chaos import agent_rules, client_rules, history, store_rules
from tests.chaos.agent_engine import sampled_in
from tests.chaos.agent_evidence import AgentEvidence, digests, gather
from tests.chaos.agent_yard import KINDS, AgentYard, Killer, let_engines_speak, listening
from tests.chaos.agents import ENVIRONMENT, GROUP_SIZE, Agent, AnnouncingTrainer
from tests.chaos.evidence import Evidence
from tests.lanes import amount
from tests.rollouts.api import make_token
from tests.workers.making import make_run
from tests.workers.reconciling import ready_server, reconciling, state
from tests.workers.sandboxed import needs_sandbox
from tests.workers.waiting import eventually
from trainers.model.tiny_tools import tool_tokenizer
from workers import tasks
from workers.fleet import lifecycle

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.slow,
    pytest.mark.timeout(amount(1200, 1500)),
    needs_sandbox,
]

KILLS = amount(len(KINDS), 50)
AGENTS = 3
STEPS_PER_KILL = 2
SLOW_STEP_S = 1.0
LAST_STEPS = 8
"""Trained when nothing is killed any more: until then there is something to play for."""
STEPS = STEPS_PER_KILL * KILLS + LAST_STEPS
END_WITHIN_S = 120.0
RULES = (
    client_rules.received_batches_are_stored,
    client_rules.acknowledged_steps_are_trained,
    store_rules.every_group_is_in_the_state_of_its_last_event,
    store_rules.the_ledger_sums_up,
    store_rules.a_group_trains_in_at_most_one_step,
    store_rules.groups_and_batches_agree,
    store_rules.batches_rebuild_to_their_hash,
    store_rules.steps_are_contiguous,
    store_rules.epochs_do_not_overlap,
    store_rules.no_lease_is_older_than_twice_its_term,
    store_rules.the_invariants_of_an_ended_run_hold,
)
"""Of other storms, as they are."""


@pytest.fixture
def model() -> Iterator[Path]:
    """A tokenizer that knows tools, where the account of runs may read it. There are no weights."""
    with tempfile.TemporaryDirectory(prefix="rollyard-agents-") as directory:
        tool_tokenizer().save_pretrained(directory)
        for path in (Path(directory), *Path(directory).iterdir()):
            path.chmod(0o755 if path.is_dir() else 0o644)
        yield Path(directory)


class Scenery:
    """Everything that runs, and what it remembers."""

    def __init__(self, run: Run, url: str, yard: AgentYard, seed: int, directory: Path) -> None:
        self.run, self.yard, self.directory = run, yard, directory
        self.killer = Killer(yard, run, seed)
        self.committed: dict[int, str] = {}
        self.halt = threading.Event()
        operator = {"user": projects.ensure_admin(), "project": run.project}
        play = make_token([Scope.PLAY], **operator)  # type: ignore[arg-type]
        self.agents = [Agent(url, play, run.key, number=number, seed=seed) for number in range(AGENTS)]
        self.trainer = AnnouncingTrainer(
            url,
            make_token([Scope.TRAIN, Scope.READ], **operator),  # type: ignore[arg-type]
            run.key,
            seed=seed,
            history=directory / "trainer.jsonl",
            weights=run.directory / "weights",
            steps=run.max_steps,
        )
        self.trainer.may_train = self._may_train

    def storm(self) -> None:
        """Play, train and kill, then let the run come to its end."""
        with ThreadPoolExecutor(AGENTS + 1) as threads:
            training = threads.submit(self.trainer.train_all)
            playing = [threads.submit(agent.play_until, self.halt) for agent in self.agents]
            try:
                eventually(self._is_under_way, within_s=90, what="a step is trained, and every agent has finished one")
                while self.killer.kills.total() < KILLS:
                    self.killer.strike()
                    self.committed |= digests(self.run)
                    self._check([training, *playing])
                self.halt.set()
                for each in playing:
                    each.result(END_WITHIN_S)
                under_way = AgentSession.objects.filter(run=self.run, grouped_at=None)
                eventually(lambda: not under_way.exists(), what="no session is under way")
                self.trainer.may_train = lambda: self.run.max_steps
                training.result(END_WITHIN_S)
            finally:
                self.halt.set()
                self.trainer.halt.set()
        eventually(lambda: state(self.run) not in RUN_TRAINING | {RunState.FINISHING}, what="the run ends by itself")

    def _may_train(self) -> int:
        """Steps that leave some for the kills to come. Never none for long: where nothing is trained, soon nothing is
        played, and there is nobody to kill."""
        silence_s = time.monotonic() - self.killer.struck_at
        paced = STEPS_PER_KILL * (1 + self.killer.kills.total()) + int(silence_s / SLOW_STEP_S)
        return min(paced, STEPS - LAST_STEPS)

    def _is_under_way(self) -> bool:
        return self.trainer.step > 0 and all(agent.acknowledged for agent in self.agents)

    def _check(self, working: list[Future[None]]) -> None:
        for each in working:
            if each.done():
                each.result()
                raise AssertionError("somebody stopped, and nobody had said so")
        assert state(self.run) in RUN_TRAINING, Run.objects.get(pk=self.run.pk).state_reason

    def evidence(self) -> AgentEvidence:
        """Once every process had time to end."""
        give_up_at = time.monotonic() + 30
        eventually(lambda: not self.yard.of_run() or time.monotonic() > give_up_at)
        return gather(
            self.run,
            acknowledged=[told for agent in self.agents for told in agent.acknowledged],
            left=[each for agent in self.agents for each in agent.left],
            committed=self.committed,
            sampled=sampled_in(settings.HOME.caches / str(self.run.project_id) / "vllm"),
            living=self.yard.of_run(),
        )


@pytest.fixture
def scenery(transactional_db: None, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scenery]:
    seed = int(os.environ.get("ROLLYARD_AGENT_SEED", random.SystemRandom().randrange(10**6)))
    print(f"ROLLYARD_AGENT_SEED={seed}")
    with ExitStack() as stack:
        # A driver that is killed leaves the directory of its sockets there.
        drivers = stack.enter_context(tempfile.TemporaryDirectory(prefix="rollyard-drivers-"))
        Path(drivers).chmod(0o755)
        monkeypatch.setenv("TMPDIR", drivers)
        up_id = let_engines_speak(monkeypatch, tmp_path / "runs", model)
        listener = stack.enter_context(listening(monkeypatch))
        run = make_run(
            environments=[{"name": ENVIRONMENT, "process": "isolated", "max_processes": 2}],
            model__path=str(model),
            max_steps=STEPS,
            sampling={"group_size": GROUP_SIZE, "max_tokens": 64, "max_turns": 8},
            batch__batch_size=4 * GROUP_SIZE,
            algorithm={"max_async_level": 4, "max_off_policy_steps": STEPS},
            inference={"replicas": 2, "max_model_len": 2048},
            workers={"concurrency": 3, "lease_s": 4.0},
        )
        server = Server()
        stack.callback(server.stop)
        server.start()
        yard = AgentYard(up_id, tmp_path / "up.log", listener)
        stack.callback(yard.stop)
        stack.callback(_sweep)
        stack.enter_context(reconciling(ring=tasks.ring))
        yard.start()
        ready_server(run)
        run.refresh_from_db()
        yield Scenery(run, server.url, yard, seed, tmp_path)
    eventually(lambda: not of_up(up_id), what="no process of the installation is left")


def _sweep() -> None:
    for replica in Replica.objects.all():
        lifecycle.launcher_of(replica).sweep(str(replica.token), 0)


def test_nothing_is_lost_or_stuck_when_whatever_plays_is_killed(scenery: Scenery) -> None:
    began_at = time.monotonic()
    scenery.storm()
    evidence = scenery.evidence()
    print(json.dumps(summary(scenery, evidence) | {"wall_s": round(time.monotonic() - began_at, 1)}))
    assert agent_rules.broken(evidence) == []
    told = Evidence(scenery.run, history.read(scenery.directory, scenery.run.key))
    assert [(rule.__name__, *found) for rule in RULES for found in rule(told)] == []
    # It was a storm, and there was something in its way.
    killer, groups = scenery.killer, evidence.groups
    assert min(killer.kills[kind] for kind in KINDS) >= KILLS // len(KINDS)
    assert min(killer.hits[kind] for kind in KINDS) > 0, "some kind was only killed while it had nothing to do"
    assert len(evidence.acknowledged) >= AGENTS * GROUP_SIZE - len(evidence.left)
    trained = [group for group in groups if group.state == "trained"]
    assert {group.is_outside for group in trained} == {True, False}, "drivers and agents outside have trained it"
    rollouts = [rollout for group in trained for rollout in group.rollouts if rollout.reward is not None]
    assert sum(len(rollout.stretches) > 1 for rollout in rollouts) > len(rollouts) / 2, "of several turns"


def summary(scenery: Scenery, evidence: AgentEvidence) -> dict[str, Any]:
    """Figures of a storm."""
    killer = scenery.killer
    errors = Counter(
        rollout.error[:300] for group in evidence.groups for rollout in group.rollouts if rollout.reward is None
    )
    return {
        "kills": dict(killer.kills),
        "at_work": dict(killer.hits),
        "waited_s": {kind: round(seconds, 1) for kind, seconds in killer.waited_s.items()},
        "groups": dict(Counter(f"{group.state}{' outside' * group.is_outside}" for group in evidence.groups)),
        "committed_before_a_kill": len(evidence.committed),
        "sessions": {"acknowledged": len(evidence.acknowledged), "left": len(evidence.left)},
        "turns_outside": sum(agent.turns for agent in scenery.agents),
        "sampled": len(evidence.sampled),
        "failed_rollouts": dict(errors),
    }
