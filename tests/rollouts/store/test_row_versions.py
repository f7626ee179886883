"""Writers that wait for a row which meanwhile becomes another version of itself, while its key is shared."""

import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from importlib import resources

import pytest
from django.db import connection

from rollouts.models import Run
from rollouts.services.transitions import transition
from rollouts.states import RunState
from tests.factories import make_run
from tests.rollouts import story

STATEMENTS = [
    pytest.param(re.sub("--.*", "", statement), id=f"{file.name}-{index}")
    for file in sorted(resources.files("rollouts.sql").iterdir(), key=lambda file: file.name)
    if file.name.endswith(".sql")
    for index, statement in enumerate(file.read_text().split(";\n"))
]


@pytest.mark.django_db(transaction=True)
def test_who_changes_a_state_and_who_locks_the_row_do_not_wait_for_each_other() -> None:
    run = make_run(state=RunState.RUNNING)
    with ThreadPoolExecutor(2) as pool, closing(connection.copy()) as changer, closing(connection.copy()) as sharer:
        with changer.cursor() as cursor:
            cursor.execute("BEGIN; UPDATE rollouts_run SET next_step = 1 WHERE id = %s", [run.pk])
        with sharer.cursor() as cursor:  # as the check of a foreign key does, of a group that is being stored
            cursor.execute("BEGIN; SELECT FROM rollouts_run WHERE id = %s FOR KEY SHARE", [run.pk])
        changed = story.behind(pool, lambda: transition(Run, [run.pk], to=RunState.STOPPING, actor="user:ada"))
        locked = story.behind(pool, lambda: Run.objects.select_for_update(no_key=True).get(pk=run.pk))
        with changer.cursor() as cursor:
            cursor.execute("COMMIT")
        assert changed.result(10) == [run.pk]
        assert locked.result(10).state == RunState.STOPPING


@pytest.mark.parametrize("statement", STATEMENTS)
def test_no_statement_waits_for_rows_and_updates_them(statement: str) -> None:
    waits = re.search(r"FOR (NO KEY )?UPDATE(?!.*SKIP LOCKED)", statement)
    assert not (waits and re.search(r"^\s*UPDATE|\(\s*UPDATE", statement, re.MULTILINE))
