"""What a run needs from the hub is fetched before it starts: its processes have no network."""

import sys
from pathlib import Path

import pytest

from rollouts.models import Event, Run
from rollouts.reasons import Reason, ReasonCode
from rollouts.selectors import runs
from rollouts.services.runs import life
from rollouts.states import RunState
from tests.workers.making import make_run
from trainers.config import resolve
from workers import convergence
from workers.fleet import fetching, hub, lifecycle
from workers.fleet.lifecycle import UnrecoverableError
from workers.launchers import confinement


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A cache that is empty, and no way to the hub."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def names(preset: str, **overrides: object) -> list[tuple[str, str]]:
    keys = {key.replace("__", "."): value for key, value in overrides.items()}
    return list(hub.names_of(resolve(preset, overrides=keys).config))


def test_names_of_the_hub_are_told_from_paths(tmp_path: Path) -> None:
    assert names("reverse-text-rl", model__path="org/name") == [("model", "org/name")]
    assert names("reverse-text-rl", model__path=str(tmp_path)) == []
    words = {"model__path": str(tmp_path), "data__solutions": False}
    assert names("reverse-text-sft", data__path="org/data", **words) == [("dataset", "org/data")]
    assert names("reverse-text-sft", data__path="mine.jsonl", **words) == []


def test_what_is_fetched_is_shown_to_the_run_and_nothing_else_of_the_cache(tmp_path: Path) -> None:
    assert hub.places("org/name", "model") == [tmp_path / "hub" / "models--org--name"]
    assert hub.places("org/data", "dataset") == [tmp_path / "hub" / "datasets--org--data"]
    assert hub.places(str(tmp_path), "model") == [tmp_path]


@pytest.mark.skipif(bool(confinement.complaint()), reason=f"NO SANDBOX: {confinement.complaint()}")
def test_a_run_reads_what_was_fetched_for_it_under_our_umask(tmp_path: Path) -> None:
    (fetched,) = hub.places("org/name", "model")
    fetched.mkdir(parents=True, mode=0o700)
    (fetched / "config.json").write_text("{}")
    (fetched / "config.json").chmod(0o600)
    room = confinement.make(tmp_path / "scratch", reads=[fetched], ours=lifecycle.own_places())
    argv = ["cat", str(fetched / "config.json")]
    assert confinement.run(room, argv, tmp_path / "scratch", timeout_s=60, environ={}).stdout == "{}"


@pytest.mark.django_db
def test_what_the_hub_does_not_give_fails_the_run_with_its_name() -> None:
    run = make_run(model__path="org/name")
    with pytest.raises(UnrecoverableError) as raised:
        fetching.fetch(run, look=lambda: None)
    assert raised.value.reason.code is ReasonCode.NOT_FETCHED
    assert "org/name" in str(raised.value.reason)


@pytest.mark.django_db
def test_only_what_takes_long_to_fetch_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, may_end, fetcher = tmp_path / "asked", tmp_path / "may-end", tmp_path / "fetcher"
    fetcher.write_text(f"#!/bin/sh\necho $4 >> {asked}\nuntil test -e {may_end}; do sleep 0.05; done\n")
    fetcher.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fetcher))
    monkeypatch.setattr(fetching, "_LOOK_EVERY_S", 0.1)
    monkeypatch.setattr(fetching, "_SHORT_S", 0.2)
    run = make_run(model__path="org/name")
    noted = Event.objects.filter(object_kind="run", object_id=run.pk, reason_code=ReasonCode.FETCHING)
    fetching.fetch(run, look=lambda: noted.exists() and may_end.touch())
    assert runs.health(run).sentence == (
        "Not begun yet: its model org/name is being fetched from the hub, for at most 6 hours."
    )
    monkeypatch.setattr(fetching, "_SHORT_S", 60.0)
    again = make_run(model__path="org/name")
    fetching.fetch(again, look=lambda: None)
    assert asked.read_text() == "org/name\n" * 2
    assert not Event.objects.filter(object_id=again.pk, reason_code=ReasonCode.FETCHING).exists()


@pytest.mark.django_db
def test_runs_that_are_fetched_for_hours_leave_the_others_their_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = [make_run(model__path="org/name") for _ in range(convergence.MAX_BRINGING + 1)]
    asked: list[str] = []

    def fetch(run: Run, **_: object) -> None:
        asked.append(run.key)
        if len(asked) <= convergence.MAX_BRINGING:
            convergence.Convergence().converge(slow[len(asked)].pk)  # while this one is being fetched

    monkeypatch.setattr(fetching, "fetch", fetch)
    monkeypatch.setattr(convergence, "_make_model", lambda run: None)
    monkeypatch.setattr(convergence.Convergence, "_tend", lambda self, run: None)  # nothing is started
    convergence.Convergence().converge(slow[0].pk)
    assert asked == [run.key for run in slow[:-1]], "the last one waits"
    states = [Run.objects.get(pk=run.pk).state for run in slow]
    assert states[-1] == RunState.PENDING
    assert RunState.PENDING not in states[:-1]
    waits = "8 other runs are being fetched or exported, and it has its turn after them"
    assert runs.health(slow[-1]).sentence == f"Not begun yet: {waits}."
    monkeypatch.setattr(fetching, "fetch", lambda run, **_: asked.append(run.key))
    convergence.Convergence().converge(slow[-1].pk)
    assert Run.objects.get(pk=slow[-1].pk).state != RunState.PENDING, "its turn has come"


@pytest.mark.django_db
def test_a_run_that_is_stopped_while_it_is_fetched_is_over_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, fetcher = tmp_path / "asked", tmp_path / "fetcher"
    fetcher.write_text(f'#!/bin/sh\necho "$4" >> {asked}\nexec sleep 300\n')
    fetcher.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fetcher))
    monkeypatch.setattr(fetching, "_LOOK_EVERY_S", 0.1)
    monkeypatch.setattr(hub, "names_of", lambda config: [("model", "org/name"), ("dataset", "org/data")])
    run, look = make_run(model__path="org/name"), convergence._look_whether_wanted

    def look_until_it_is_stopped(run: Run) -> None:
        if asked.exists() and asked.read_text():
            life.request_stop(run, actor="user:ada")
        look(run)

    monkeypatch.setattr(convergence, "_look_whether_wanted", look_until_it_is_stopped)
    convergence.Convergence().converge(run.pk)
    run.refresh_from_db()
    assert run.state == RunState.STOPPED
    assert asked.read_text() == "org/name\n", "and nothing more is fetched"


@pytest.mark.django_db
def test_what_a_run_waits_for_is_noted_once_while_it_is_the_same() -> None:
    run = make_run(model__path="org/name")
    for others in (8, 8, 7):
        life.note_wait(run, Reason(ReasonCode.FETCH_WAITS, others=others))
    noted = Event.objects.filter(object_kind="run", reason_code=ReasonCode.FETCH_WAITS)
    assert [event.reason_params["others"] for event in noted.order_by("id")] == [8, 7]
