"""Batches that are cut off on their way: what comes when the trainer asks again."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db.models.functions import Now

from rollouts.models import Batch, Delivery, Scope
from tests.browser.server import Server
from tests.chaos import atropos_clients, native_clients
from tests.chaos.history import Outcome
from tests.chaos.load import make_group
from tests.chaos.proxy import Proxy, running_proxy
from tests.chaos.world import Scene
from tests.rollouts.api import make_token
from tests.workers.waiting import eventually

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

CUTS = 16
LONG_TOKENS = 150_000
"""Of a rollout at most: half of a batch is then more than the kernel holds between server and proxy."""


@pytest.fixture
def server(transactional_db: None) -> Iterator[Server]:
    server = Server()
    server.start()
    yield server
    server.stop()


def test_a_batch_that_was_cut_anywhere_comes_again_with_the_same_bytes(server: Server, tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    token = ["--token", make_token([Scope.SUBMIT, Scope.TRAIN, Scope.READ])]
    submitter = scene.client(native_clients.Submitter, 1, None, server.url, *token)
    assert submitter.submit([make_group(1, number, longest=2000) for number in (0, 1)]) is Outcome.OK
    proxy = Proxy(server.url, path="/batches/", seed=1, chance=1.0)
    with running_proxy(proxy) as url:
        trainer = scene.client(native_clients.Trainer, 2, None, url, *token)
        trainer.register()
        assert [trainer.fetch() for _ in range(CUTS)] == [None] * CUTS
        assert len(proxy.cuts) == CUTS
        proxy.left = 0
        assert trainer.fetch() == Batch.objects.get().sha256
        trainer.train()
    assert scene.violations() == set()


def test_a_batch_without_acknowledgement_comes_again_if_the_server_saw_it_break(server: Server, tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    outside = f"/atropos/{scene.run.address.key}"
    sizes = ["--batch-size", "8", "--group-size", "4", "--timeout", "60"]
    proxy = Proxy(server.url, path="/batch$", seed=1, chance=1.0, within=0.5)
    with running_proxy(proxy) as url:
        trainer = scene.client(atropos_clients.Trainer, 1, None, url + outside, *sizes)
        trainer.http.headers["Accept-Encoding"] = "identity"  # the longer the body, the less of it the kernel takes
        trainer.register()
        proxy.left = 0
        assert trainer.fetch() is None, "environments may register now"
        proxy.left = 3
        environment = scene.client(atropos_clients.Environment, 2, None, server.url + outside, *sizes)
        environment.introduce()
        for number in range(4):
            assert environment.submit([make_group(2, number, longest=LONG_TOKENS)]) is Outcome.OK
        for _ in range(3):
            assert trainer.fetch() is None
            eventually(Delivery.objects.filter(expires_at__lt=Now()).exists, what="the server saw the connection break")
        assert Batch.objects.count() == 1, "no new batch is formed before the one that broke has arrived"
        proxy.left = 0
        received = [trainer.fetch(), trainer.fetch()]
        assert received == list(Batch.objects.order_by("step").values_list("sha256", flat=True))
        assert Batch.objects.get(step=0).deliveries == 4
    assert scene.violations() == set()
