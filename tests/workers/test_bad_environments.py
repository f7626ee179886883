"""Environments that do everything wrong beside one that does not: whatever breaks is data, and the others go on."""

from collections import defaultdict

import pytest

from environments.types import ErrorKind
from rollouts.models import Rollout, Run, ScoredGroup
from rollouts.states import GroupState
from tests.workers import bad_environments
from tests.workers.bad_environments import KINDS
from tests.workers.making import make_server, make_started_run
from tests.workers.stub_server import stub_server
from tests.workers.test_episodes import driving
from tests.workers.waiting import eventually
from workers.launchers import confinement

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(confinement.complaint()),
        reason=f"NO SANDBOX, bad environments are not let loose: {confinement.complaint()}",
    ),
]


def told(run: Run) -> dict[str, str]:
    """Environment -> why its groups failed."""
    failed = ScoredGroup.objects.filter(run=run, state=GroupState.FAILED).select_related("environment")
    words: defaultdict[str, str] = defaultdict(str)
    for group in failed:
        words[group.environment.name] += f"{group.state_reason}\n"
    return words


def unexplained(run: Run) -> set[str]:
    """Environments of which no group has failed yet for what is wrong with them, or with what it wrote to stderr."""
    known = told(run)
    kinds = {kind for kind in KINDS if kind not in known or EXPECTED.get(kind, "") not in known[kind]}
    is_kept = Rollout.objects.filter(group__run=run, error__stderr__icontains="xxxx").exists()
    return kinds if is_kept else kinds | {"floods stderr"}


def timeout_s(kind: str) -> float:
    """Short for what hangs; what fails by itself has its time for that on a loaded machine too."""
    return 6.0 if kind in HANGS or kind not in EXPECTED else 60.0


@pytest.mark.usefixtures("bad_packages")
def test_forty_bad_environments_are_data_and_the_good_one_goes_on() -> None:
    room = {"process": "isolated", "memory_gib": 0.5, "max_processes": 1}
    bad = [
        {"name": bad_environments.place(kind), "label": kind, "args": {"kind": kind}, "timeout_s": timeout_s(kind)}
        | room
        for kind in KINDS
    ]
    good = {"name": "bad_environments:Good", "label": "good", "args": {"kind": ""}} | room
    run = make_started_run(
        environments=[good, *bad],
        sampling__max_turns=3,
        workers__concurrency=64,
        batch__batch_size=2_000,
        workers__lease_s=60.0,
    )
    with stub_server() as stub:
        make_server(run, stub.url)
        with driving(run) as driver:
            scored = ScoredGroup.objects.filter(run=run, environment__name="good", state__in=["ready", "filtered"])
            eventually(
                lambda: not unexplained(run),
                # A process that does not even begin to answer holds a place for starts for a minute.
                within_s=400,
                what=lambda: f"what was wrong with { ({kind: told(run).get(kind) for kind in unexplained(run)}) }",
            )
            so_far = scored.count()
            eventually(lambda: scored.count() >= so_far + 5)
            assert driver.is_alive()
    assert so_far > 0, "it played on while the others broke"
    assert "good" not in told(run)
    errors = Rollout.objects.filter(group__run=run, group__state=GroupState.FAILED).values_list("error", flat=True)
    assert all(error["message"] and error["kind"] != ErrorKind.POLICY for error in errors)


HANGS = {"waits", "hangs in problem"}
EXPECTED = {
    "segfault": "exit code 139",
    "exit": "exit code 3",
    "ten gigabytes": "memory_gib",
    "grows": "memory_gib",
    "unprintable": "cannot be printed",
    "unencodable": "lone ? surrogate",
    "waits": "not over within 6 s",
    "wrong type": "Expected `array | null`, got `int`",
    "answers nobody": "answers that nobody waits for",
    "raises in count": "cannot count",
    "hangs in problem": "problem of environment",
    "no problems": "no problem",
    "not a number": "not a finite number",
    "never asks": "never asked the policy",
    "speaks as the assistant": "spoke as the assistant",
    "raises": "KeyError",
}
