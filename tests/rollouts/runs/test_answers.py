"""What drivers note of replicas that answered: once in a while, however many say so."""

from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from rollouts.models import Replica, ReplicaKind, Run
from rollouts.services.runs import answers, replicas
from tests.factories import words
from tests.rollouts import story

pytestmark = pytest.mark.django_db


@pytest.fixture
def run() -> Run:
    return story.launch()


def serving(run: Run, slot: int, *, silent_s: float) -> Replica:
    """A ready replica whose last answer is so old."""
    replica = replicas.create(run, kind=ReplicaKind.INFERENCE, slot=slot, launcher="local")
    replica = replicas.ready(replica, loaded_version=0)
    Replica.objects.filter(pk=replica.pk).update(answered_at=timezone.now() - timedelta(seconds=silent_s))
    replica.refresh_from_db()
    return replica


def test_answers_are_noted_of_all_replicas_at_once_unless_somebody_just_did(run: Run) -> None:
    old, fresh, suspect = (serving(run, at, silent_s=s) for at, s in enumerate((3.0, 0.0, 3.0)))
    replicas.suspect(suspect, reason=words("no answer"))
    before = {row.pk: row.answered_at for row in Replica.objects.all()}
    with connection.execute_wrapper(lambda execute, *call: counted.append(1) or execute(*call)):
        counted: list[int] = []
        answers.note([old, fresh, suspect])
        answers.note([])
    assert len(counted) == 1
    changed = {row.pk for row in Replica.objects.all() if row.answered_at != before[row.pk]}
    assert changed == {old.pk}
    assert Replica.objects.get(pk=suspect.pk).probe_failures == 1


@pytest.mark.django_db(transaction=True)
def test_drivers_that_say_the_same_at_once_wait_for_nobody(run: Run) -> None:
    rows = [serving(run, at, silent_s=3.0) for at in range(4)]
    results = story.together(lambda: answers.note(rows), lambda: answers.note(rows[::-1]))
    assert results == [None, None]
    assert all(row.answered_at > timezone.now() - timedelta(seconds=2) for row in Replica.objects.all())
