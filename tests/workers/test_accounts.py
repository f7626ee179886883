"""System accounts that root makes, on the real list of accounts."""

import os
import pwd
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from workers.launchers.accounts import ensure_account

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="SKIPPED: only root makes accounts. Run the tests as root.")


@pytest.fixture
def name() -> Iterator[str]:
    name = f"rollyard-t{os.getpid()}"
    yield name
    subprocess.run(["userdel", name], check=False, capture_output=True)


def test_processes_that_make_an_account_at_the_same_moment_all_have_it(name: str) -> None:
    together = Barrier(4)

    def make() -> str:
        together.wait(30)
        return ensure_account(name)

    with ThreadPoolExecutor(4) as pool:
        made = [pool.submit(make) for _ in range(4)]
        assert [each.result(60) for each in made] == [name] * 4
    assert pwd.getpwnam(name).pw_uid != 0
