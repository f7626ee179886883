"""A run begins when the machine has GPUs for it, and its processes see its own alone."""

import platform
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from django.db.models.functions import Now

from rollouts.models import Event, PlacementKind, Run
from rollouts.reasons import WAITS, ReasonCode
from rollouts.selectors import runs
from rollouts.services.runs import life, placements
from rollouts.states import RunState
from tests.workers.making import make_run
from trainers.config import resolve
from workers import convergence
from workers.fleet import accelerators, commands, fetching, lifecycle, placing, training
from workers.fleet.lifecycle import UnrecoverableError
from workers.fleet.serving import Servers


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three GPUs, and nothing is started on them."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    monkeypatch.setattr(accelerators, "serves_on_cpu", lambda **_: False)
    monkeypatch.setattr(convergence, "_make_model", lambda run: None)
    monkeypatch.setattr(convergence, "_try_environment", lambda run, ref: None)
    monkeypatch.setattr(convergence.Convergence, "_tend", lambda self, run: None)


def converged(run: Run) -> Run:
    convergence.Convergence().converge(run.pk)
    return Run.objects.get(pk=run.pk)


@pytest.mark.django_db
def test_a_second_run_waits_for_the_gpus_of_the_first_and_says_so() -> None:
    first, second = (make_run(trainer__device="cuda") for _ in range(2))
    assert converged(first).state == RunState.STARTING
    assert placements.held(first, PlacementKind.GPU) == ["0", "1"]
    waiting = converged(second)
    assert waiting.state == RunState.PENDING
    assert "it wants 2 GPUs of " in runs.health(waiting).sentence
    assert f"others belong to run {first.key}" in runs.health(waiting).sentence
    life.end(first, to=RunState.FAILED)
    assert converged(second).state == RunState.STARTING
    assert placements.held(second, PlacementKind.GPU) == ["0", "1"]


@pytest.mark.django_db
def test_a_machine_that_got_another_name_has_the_gpus_that_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = make_run(), make_run(inference__replicas=2)
    monkeypatch.setattr(platform, "node", lambda: "a")
    assert converged(first).state == RunState.STARTING
    monkeypatch.setattr(platform, "node", lambda: "b")
    assert "it wants 3 GPUs of b, of which 1 are free" in runs.health(converged(second)).sentence


@pytest.mark.django_db
@pytest.mark.parametrize("tend", [Servers().tend, training.tend])
def test_nothing_of_a_run_starts_on_a_gpu_that_was_taken_out_of_the_list(
    tend: Callable[[Run], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = converged(make_run())
    assert placements.held(run, PlacementKind.GPU) == ["0", "1"]
    monkeypatch.setattr(lifecycle, "launch", lambda *_, **__: None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,2")
    told = f"it was promised GPU 1 of {platform.node()}, which may not be used there any more"
    with pytest.raises(UnrecoverableError, match=told):
        tend(run)


@pytest.mark.django_db
def test_nothing_of_a_run_starts_without_what_it_was_promised_and_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    run = converged(make_run())
    monkeypatch.setattr(lifecycle, "launch", lambda *_, **__: None)
    run.placements.filter(unit="1").update(released_at=Now())  # as `migrate` does with what was promised twice
    with pytest.raises(UnrecoverableError, match="it was promised GPU 1 of"):
        training.tend(run)


@pytest.mark.django_db
def test_gpus_whose_driver_is_not_awake_yet_are_the_runs_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    run = converged(make_run())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(accelerators, "list_gpus", list)
    assert placing.held(run, PlacementKind.GPU) == ["0", "1"]


@pytest.mark.django_db
def test_a_run_that_waits_for_gpus_is_fetched_once_and_says_only_what_it_waits_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fetched: list[str] = []
    monkeypatch.setattr(fetching, "fetch", lambda run, **_: fetched.append(run.key))
    holder, waiting = make_run(inference__replicas=2), make_run(model__path="org/name")
    assert converged(holder).state == RunState.STARTING
    reconciler = convergence.Convergence()
    for _ in range(3):
        reconciler.converge(waiting.pk)
    assert fetched == [waiting.key]
    noted = Event.objects.filter(object_kind="run", object_id=waiting.pk, reason_code__in=WAITS)
    assert [event.reason_code for event in noted] == [ReasonCode.GPUS_TAKEN]
    life.end(holder, to=RunState.FAILED)
    reconciler.converge(waiting.pk)
    assert Run.objects.get(pk=waiting.pk).state == RunState.STARTING
    assert fetched == [waiting.key]


@pytest.mark.django_db
def test_more_processes_than_gpus_share_them_and_what_runs_on_cpu_wants_none(monkeypatch: pytest.MonkeyPatch) -> None:
    large = make_run(trainer__device="cuda", inference__replicas=4)
    assert converged(large).state == RunState.STARTING
    assert placements.held(large, PlacementKind.GPU) == ["0", "1", "2"]
    monkeypatch.setattr(accelerators, "serves_on_cpu", lambda **_: True)
    small = make_run(trainer__device="cpu")
    assert converged(small).state == RunState.STARTING
    assert placements.held(small, PlacementKind.GPU) == []


@pytest.mark.django_db
def test_cores_that_a_run_asks_for_are_its_own_and_each_process_is_bound_to_its_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(accelerators, "list_cores", lambda: ["0", "1", "4", "5", "6", "7"])
    asked = {"launcher__trainer__cores": 2, "launcher__inference__cores": 1, "inference__replicas": 2}
    monkeypatch.setattr(accelerators, "serves_on_cpu", lambda **_: True)
    run, second = (make_run(trainer__device="cpu", **asked) for _ in range(2))
    assert converged(run).state == RunState.STARTING
    held = placements.held(run, PlacementKind.CORE)
    assert held == ["0", "1", "4", "5"]
    shares = [commands.own_cores(run.parsed, held, slot) for slot in commands.slots(run.parsed)]
    assert (commands.own_cores(run.parsed, held), *shares) == ([0, 1], [4], [5])
    assert "it wants 4 cores of " in runs.health(converged(second)).sentence
    large = converged(make_run(launcher__trainer__cores=7))
    assert (large.state, str(large.reason)[:24]) == (RunState.FAILED, "it asks for 7 cores (lau")


@pytest.mark.django_db
def test_memory_that_a_run_asks_for_is_its_own_and_of_the_machine_or_of_a_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, slices = tmp_path / "own", tmp_path / "a.slice"
    own.write_text("0::/a.slice/b.service\n")
    monkeypatch.setattr(accelerators, "CGROUPS", tmp_path)
    monkeypatch.setattr(accelerators, "OWN_CGROUP", own)
    of_machine = accelerators.list_memory()
    assert len(of_machine) == psutil.virtual_memory().total // 2**30
    (slices / "b.service").mkdir(parents=True)
    (slices / "b.service" / "memory.max").write_text("max\n")
    assert accelerators.list_memory() == of_machine
    (slices / "memory.max").write_text(f"{3 * 2**30 + 5}\n")
    assert accelerators.list_memory() == ["0", "1", "2"]
    asked = {"launcher__trainer__memory_gib": 0.75, "launcher__inference__memory_gib": 0.5, "inference__replicas": 2}
    monkeypatch.setattr(accelerators, "serves_on_cpu", lambda **_: True)
    run, second = (make_run(trainer__device="cpu", **asked) for _ in range(2))
    assert converged(run).state == RunState.STARTING
    assert placements.held(run, PlacementKind.MEMORY) == ["0", "1"], "one and three quarters"
    assert "it wants 2 GiB of memory of " in runs.health(converged(second)).sentence
    large = converged(make_run(launcher__trainer__memory_gib=4.0))
    assert (large.state, str(large.reason)[:29]) == (RunState.FAILED, "it asks for 4 GiB of memory (")


@pytest.mark.django_db
def test_a_server_that_wants_more_gpus_than_there_are_is_refused_before_anything_starts() -> None:
    run = make_run(trainer__device="cpu", inference__tensor_parallel=4)
    ended = converged(run)
    assert ended.state == RunState.FAILED
    assert str(ended.reason).startswith("each of its servers computes on 4 GPUs")
    assert placements.held(run, PlacementKind.GPU) == []


@pytest.mark.django_db
def test_a_trainer_that_has_to_compute_on_a_gpu_is_refused_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerators, "list_gpus", list)
    ended = converged(make_run(trainer__device="cuda"))
    assert ended.state == RunState.FAILED
    assert "has no GPU: set trainer.device to 'cpu'" in str(ended.reason)
    assert placing.place(make_run(trainer__device="auto"))


@pytest.mark.django_db
def test_a_trainer_of_more_processes_than_there_are_gpus_is_refused_unless_it_runs_on_cpu_or_as_a_job() -> None:
    ended = converged(make_run(trainer__device="auto", trainer__world_size=4))
    assert ended.state == RunState.FAILED
    assert "lower trainer.world_size" in str(ended.reason)
    assert placements.held(ended, PlacementKind.GPU) == []
    for fits in ({"trainer__device": "cpu"}, {"launcher__type": "slurm"}, {"trainer__world_size": 3}):
        run = make_run(**{"trainer__device": "cuda", "trainer__world_size": 4, **fits})
        assert placing.place(run), fits
        life.end(run, to=RunState.FAILED)


@pytest.mark.django_db
def test_stages_are_refused_where_servers_compute_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerators, "serves_on_cpu", lambda **_: True)
    ended = converged(make_run(trainer__device="cpu", inference__pipeline_parallel=2))
    assert ended.state == RunState.FAILED
    assert str(ended.reason).endswith("inference.pipeline_parallel has to be 1")


@pytest.mark.parametrize(
    ("overrides", "wanted"),
    [
        ({"trainer.device": "auto", "trainer.world_size": 2}, 3),
        ({"trainer.device": "cpu"}, 1),
        ({"trainer.device": "cuda", "policies": [{"name": "judge", "model": "/models/judge", "replicas": 2}]}, 4),
    ],
)
def test_a_run_wants_a_gpu_for_each_of_its_processes(overrides: dict[str, object], wanted: int) -> None:
    assert commands.gpus_wanted(resolve("reverse-text-rl", overrides=overrides, environ={}).config) == wanted
