"""The doorbell: what Redis may lose without anybody noticing."""

import pytest
import redis
from celery import Celery
from django.conf import settings

from controlplane.celery import app
from controlplane.home import Home
from controlplane.settings import celery_broker_url


@pytest.fixture
def broker(servers: Home) -> "redis.Redis":
    client = redis.Redis.from_url(settings.REDIS_URL)
    client.flushall()
    return client


def test_message_reaches_its_queue_after_redis_lost_everything(broker: "redis.Redis") -> None:
    app.send_task("nobody.listens", queue="episodes")
    broker.flushall()
    app.send_task("nobody.listens", queue="episodes")
    assert broker.llen("episodes") == 1


def test_messages_are_json_and_pickle_is_refused() -> None:
    assert isinstance(app, Celery)
    assert (app.conf.task_serializer, app.conf.accept_content) == ("json", ["json"])


@pytest.mark.parametrize(
    ("given", "celery"),
    [
        ("unix:///run/a%20b/redis.sock?db=0", "redis+socket:///run/a b/redis.sock?virtual_host=0"),
        ("unix:///run/redis.sock?db=3", "redis+socket:///run/redis.sock?virtual_host=3"),
        ("unix://:se-cret_@/run/redis.sock?db=0", "redis+socket://:se-cret_@/run/redis.sock?virtual_host=0"),
        ("redis://:secret@host:6379/2", "redis://:secret@host:6379/2"),
    ],
)
def test_socket_is_spelt_the_way_celery_reads_it(given: str, celery: str) -> None:
    assert celery_broker_url(given) == celery
