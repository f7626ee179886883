"""The virtual environment of the games, as `make games-venv` makes it."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from environments import venvs
from tests.environments.bridges.games import Games

HOME = Path(__file__).parents[3] / ".venv-games"


@pytest.fixture(scope="session")
def games_python() -> Path:
    """Its interpreter."""
    try:
        return venvs.find(HOME / venvs.DIRECTORY, "games")
    except venvs.VenvError:
        pytest.skip(f"needs gymnasium, open_spiel and OpenEnv in {HOME.name}: run `make games-venv`")


@pytest.fixture(scope="module")
def games(games_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Games]:
    with asyncio.Runner() as runner:
        games = Games(runner, games_python, tmp_path_factory.mktemp("games"))
        yield games
        games.close()
