"""Both Python clients against the real API over HTTP, and every snippet of docs/clients.md as it is printed there."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from environments.client.group_client import GroupClient, Refused, pack
from environments.types import Claim, PlayedRollout
from rollouts.models import Batch, GroupTokens, Rollout, Run, ScoredGroup
from rollouts.services.runs import life
from rollouts.states import BatchState, GroupState
from tests.browser.server import Server
from tests.factories import make_project, somebody
from tests.rollouts import story
from tests.rollouts.api import make_token
from trainers.client import ControlPlane
from trainers.config import resolve

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

DOCUMENT = Path(__file__).parents[3] / "docs" / "clients.md"


@pytest.fixture(scope="module")
def served(django_db_setup: None, django_db_blocker: Any) -> Iterator[str]:
    """The control plane as it is deployed; yields its URL."""
    server = Server()
    with django_db_blocker.unblock():
        server.start()
    yield server.url
    server.stop()


def launch_external(**overrides: Any) -> Run:
    resolved = resolve("external-trainer", overrides={key.replace("__", "."): each for key, each in overrides.items()})
    return life.create(project=make_project(), user=somebody(), resolved=resolved, actor="user:ada")


def test_submitted_groups_are_stored_once_however_they_are_packed(served: str) -> None:
    run = story.launch()
    lists, packed = story.scored(environment="outside"), pack(story.scored("mine"))
    with GroupClient(served, make_token(), run.key) as client:
        keys = client.submit([lists, packed])
        assert client.submit([packed, lists]) == keys[::-1]
    assert list(ScoredGroup.objects.order_by("id").values_list("key", "state")) == [
        (keys[0], GroupState.READY),
        ("mine", GroupState.READY),
    ]
    stored = GroupTokens.objects.get(group__key="mine")
    assert bytes(stored.inference_logprobs) == b"".join(each.inference_logprobs for each in packed.rollouts)


def test_a_group_that_does_not_hold_together_is_refused_with_its_fields(served: str) -> None:
    run = story.launch()
    bad = story.scored("bad")
    bad.rollouts[0].loss_mask = [0, 1]
    with GroupClient(served, make_token(), run.key) as client, pytest.raises(Refused) as refused:
        client.submit([bad])
    assert refused.value.code == "invalid"
    assert "groups.0.rollouts.0.token_ids" in refused.value.fields
    assert not ScoredGroup.objects.exists()


def test_the_runs_own_problems_are_claimed_renewed_and_settled(served: str) -> None:
    run = story.launch()
    with GroupClient(served, make_token(), run.key) as client:
        first, second = client.claim("player", limit=2).claims
        assert client.renew([first.token, second.token, "made up"]) == {first.token, second.token}
        played = [story.rollout(1.0), story.rollout(None)]
        assert client.settle(first.token, "cat", played) == GroupState.READY
        with pytest.raises(Refused) as refused:
            client.settle(first.token, "cat", played)
        assert refused.value.code == "lease_lost"
        assert client.renew([first.token, second.token]) == {second.token}
    assert Rollout.objects.count() == 2
    with GroupClient(served, make_token(), launch_external().key) as client:
        assert client.claim("player") == msgspec.convert({"claims": [], "reason": "over"}, type(client.claim("player")))


def test_a_trainer_from_outside_iterates_over_its_batches_until_the_run_is_over(served: str) -> None:
    run = life.start(launch_external(batch__batch_size=2, max_steps=3))
    with GroupClient(served, make_token(), run.key) as client:
        client.submit([story.scored(key) for key in ("a", "b", "c")])
    seen = []
    with ControlPlane(served, make_token(), run.key) as plane:
        plane.register(world_size=1, hostname="node", pid=7)
        for batch, sha256 in plane.batches(wait_s=0.1):
            assert plane.ack_step(batch.step, {"loss/mean": 0.5}, sha256) == batch.step + 1
            seen.append(batch)
        again = next(plane.batches(start=1))
        plane.finish()
        assert list(plane.batches(start=3)) == []
    assert [batch.rollouts[0].group for batch in seen] == ["a", "b", "c"]
    assert (again.batch, again.sha256) == (seen[1], Batch.objects.get(step=1).sha256)
    assert set(Batch.objects.values_list("state", flat=True)) == {BatchState.TRAINED}


def play(problem: Any, claim: Claim) -> list[PlayedRollout]:
    return [story.rollout(float(index % 2)) for index in range(claim.group_size)]


def test_every_snippet_of_the_document_works(served: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    snippets = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    own = story.launch()
    names: dict[str, Any] = {
        "url": served,
        "submit_token": make_token(["submit"]),
        "train_token": make_token(["train"]),
        "run": life.start(launch_external(batch__batch_size=2, max_steps=1)).key,
        "rl_run": own.key,
        "play": play,
    }
    for snippet in snippets:
        exec(compile(snippet, str(DOCUMENT), "exec"), names)
    assert len(snippets) == 3
    assert (names["state"], names["next_step"]) == (GroupState.READY, 1)
    assert ScoredGroup.objects.get(key=names["keys"][0]).state == GroupState.TRAINED
