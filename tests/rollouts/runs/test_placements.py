"""No GPU, no core and no GiB is promised to two runs, and whoever was launched first has its turn first."""

from threading import Barrier, Thread

import pytest
from django.db import IntegrityError, connection, transaction

from rollouts.models import Placement, PlacementKind, Run
from rollouts.reasons import Reason
from rollouts.services.runs import life, placements
from rollouts.services.runs.placements import Wish
from rollouts.states import RunState
from tests.factories import make_project, make_run

HOST = "gpu-box"
GPUS = ["0", "1", "2", "3"]
CORES = [str(number) for number in range(8)]
MEMORY = [str(number) for number in range(64)]
GPU, CORE = PlacementKind.GPU, PlacementKind.CORE


def pending() -> Run:
    return make_run(state=RunState.PENDING)


def promise(
    run: Run, wanted: int, *, cores: int = 0, gib: int = 0, host: str = HOST, gpus: list[str] = GPUS
) -> Reason | None:
    """As the reconciler asks: what it waits for is noted."""
    wishes = [Wish(GPU, gpus, wanted), Wish(CORE, CORES, cores), Wish(PlacementKind.MEMORY, MEMORY, gib)]
    wait = placements.promise(run, host, wishes)
    if wait is not None:
        life.note_wait(run, wait)
    return wait


@pytest.mark.django_db
def test_a_run_has_its_gpus_until_it_is_over_and_the_next_waits_for_them_by_name() -> None:
    first, second = pending(), pending()
    assert promise(first, 3) is None
    assert promise(first, 3) is None, "asked again, it has what it has"
    assert placements.held(first, GPU) == ["0", "1", "2"]
    told = f"it wants 2 GPUs of {HOST}, of which 1 are free; others belong to run {first.key}"
    assert str(promise(second, 2)) == told
    assert placements.held(second, GPU) == []
    life.end(first, to=RunState.FAILED)
    assert placements.held(first, GPU) == []
    assert promise(second, 2) is None
    assert placements.held(second, GPU) == ["0", "1"]
    assert Placement.objects.filter(run=first).count() == 3, "who had what stays"


@pytest.mark.django_db
def test_a_large_run_is_not_passed_by_small_ones_that_were_launched_later() -> None:
    holder, large, small = pending(), pending(), pending()
    assert promise(holder, 1) is None
    assert promise(large, 4) is not None
    assert str(promise(small, 1)).endswith(f"; run {large.key} was launched before it and has its turn first")
    life.end(large, to=RunState.FAILED)
    assert promise(small, 1) is None
    assert promise(pending(), 2) is None


@pytest.mark.django_db
def test_what_was_promised_stays_so_when_the_machine_has_another_name() -> None:
    holder, large, small = (pending() for _ in range(3))
    assert promise(holder, 2) is None
    assert promise(large, 4) is not None
    told = f"it wants 4 GPUs of another-name, of which 2 are free; others belong to run {holder.key}"
    assert str(promise(large, 4, host="another-name")) == told
    assert str(promise(small, 1, host="another-name")).endswith(
        f"; run {large.key} was launched before it and has its turn first"
    )


@pytest.mark.django_db
def test_gpus_that_are_listed_by_other_names_are_nobody_elses_until_they_are_given_back() -> None:
    holder, second = pending(), pending()
    assert promise(holder, 1) is None
    by_uuid = ["GPU-5a5a", "GPU-b7b7"]
    told = f"it wants 1 GPUs of {HOST}, of which 0 are free; others belong to run {holder.key}"
    assert str(promise(second, 1, gpus=by_uuid)) == told
    life.end(holder, to=RunState.FAILED)
    assert promise(second, 1, gpus=by_uuid) is None
    assert placements.held(second, GPU) == ["GPU-5a5a"]


@pytest.mark.django_db
def test_of_another_project_a_run_that_waits_tells_no_key() -> None:
    elsewhere = make_run(state=RunState.PENDING, project=make_project("elsewhere"))
    assert promise(elsewhere, 4) is None
    told = str(promise(pending(), 1))
    assert "others belong to a run of another project" in told
    assert elsewhere.key not in told


@pytest.mark.django_db
def test_a_run_that_computes_on_no_gpu_waits_for_none() -> None:
    large = pending()
    assert promise(pending(), 4) is None
    assert promise(large, 4) is not None
    assert promise(pending(), 0) is None


@pytest.mark.django_db
def test_cores_are_promised_beside_gpus_and_all_or_nothing_of_both() -> None:
    first, second, third = pending(), pending(), pending()
    assert promise(first, 1, cores=6) is None
    assert placements.held(first, CORE) == CORES[:6]
    told = f"it wants 4 cores of {HOST}, of which 2 are promised to nobody; others belong to run {first.key}"
    assert str(promise(second, 1, cores=4)) == told
    assert placements.held(second, GPU) == [], "which would idle while it waits"
    assert str(promise(third, 0, cores=1)).endswith(f"; run {second.key} was launched before it and has its turn first")
    assert promise(pending(), 1) is None, "who wants no core waits for no core"
    life.end(first, to=RunState.FAILED)
    assert promise(second, 1, cores=4) is None
    assert promise(third, 0, cores=4) is None
    assert placements.held(third, CORE) == CORES[4:]


@pytest.mark.django_db
def test_memory_is_promised_by_the_gib() -> None:
    first, second, third = pending(), pending(), pending()
    assert promise(first, 0, gib=48) is None
    told = f"it wants 17 GiB of memory of {HOST}, of which 16 are promised to nobody; others belong to run {first.key}"
    assert str(promise(second, 1, cores=2, gib=17)) == told
    assert placements.held(second, CORE) == placements.held(second, GPU) == []
    assert promise(third, 1, cores=8) is None, "who asks for none waits for none"
    life.end(first, to=RunState.FAILED)
    assert promise(second, 1, gib=17) is None
    assert len(placements.held(second, PlacementKind.MEMORY)) == 17


@pytest.mark.django_db
def test_the_store_refuses_a_gpu_that_is_promised() -> None:
    assert promise(pending(), 1) is None
    with pytest.raises(IntegrityError, match="placement_promised_once"), transaction.atomic():
        Placement.objects.create(run=pending(), host="another-name", kind="gpu", unit="0")


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_of_runs_that_ask_at_the_same_moment_each_gpu_goes_to_one() -> None:
    runs = [pending() for _ in range(8)]
    barrier = Barrier(len(runs))

    def ask(run: Run) -> None:
        barrier.wait(20)
        placements.promise(run, HOST, [Wish(GPU, GPUS, 1)])
        connection.close()

    threads = [Thread(target=ask, args=(run,)) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    given = list(Placement.objects.values_list("unit", flat=True))
    assert given
    assert len(given) == len(set(given))
    for run in runs:  # as the reconciler does, in later passes
        placements.promise(run, HOST, [Wish(GPU, GPUS, 1)])
    assert sorted(Placement.objects.values_list("unit", flat=True)) == GPUS
