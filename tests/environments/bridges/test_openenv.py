"""The bridge to OpenEnv: its real server and clients in a process of their own."""

import re
import subprocess
from pathlib import Path

import pytest

from environments.errors import RegistryError
from environments.types import ErrorKind
from tests.environments.bridges.games import HERE, Games, told

pytestmark = pytest.mark.slow  # a process of another virtual environment, of which one import takes seconds

GUESS = {"app": "guessing:app", "action": "guessing:GuessAction"}
LETTER = GUESS | {"action_field": "letter", "observation_field": "hint"}


def test_a_text_becomes_a_field_of_the_action_and_a_field_of_the_observation_is_told(games: Games) -> None:
    played = games.play("openenv", LETTER | {"reset": {"greeting": "quickly"}}, ["a", "c", "b"], index=1)
    [rollout] = played.rollouts
    assert played.problem.key == "guessing:app:1"
    assert played.version.startswith("1+openenv-core-")
    assert told(rollout) == ["one of abcdef, quickly", "later", "earlier"]
    assert rollout.reward == rollout.metrics["return"] == 0.5
    assert (rollout.metrics["steps"], rollout.metrics["terminated"]) == (3.0, 1.0)


def test_more_episodes_than_the_server_has_places_take_turns(games: Games) -> None:
    for sessions in (2, 5):  # of which it has two
        rollouts = games.play("openenv", LETTER | {"sessions": sessions}, ["a"], n=6).rollouts
        assert [rollout.reward for rollout in rollouts] == [1.0] * 6


def test_actions_in_json_are_checked_here_and_without_a_class_by_the_server(games: Games) -> None:
    replies = ['{"lettr": "b"}', "b", '<action>{"letter": "b"}</action>']
    for args, complaint in ((GUESS, "letter: Field required"), ({"app": "guessing:app"}, "That is not an action.")):
        [rollout] = games.play("openenv", args | {"invalid_penalty": 0.1}, replies, index=1).rollouts
        said = told(rollout)
        assert said[0] == '{"hint": "one of abcdef, please"}'
        assert complaint in said[1]
        assert said[2].startswith("'b' is no JSON object.")
        assert rollout.reward == pytest.approx(0.8)
        assert rollout.metrics["invalid_actions"] == 2.0


def test_a_client_and_an_application_factory_of_the_package_are_used(games: Games) -> None:
    args = {"app": "guessing:make_app", "factory": True, "client": "guessing:GuessClient"}
    [rollout] = games.play("openenv", args | {"action": "guessing:GuessAction"}, ['{"letter": "a"}']).rollouts
    assert told(rollout) == ['{"hint": "one of abcdef, please", "client": "mine"}']
    assert rollout.reward == 1.0


def test_an_error_behind_the_server_is_data_of_its_rollout(games: Games) -> None:
    rollouts = games.play("openenv", LETTER | {"sessions": 2}, ["!", "a"], n=2).rollouts
    # Whichever of the two asks first gets the first word.
    bad, good = sorted(rollouts, key=lambda rollout: rollout.error is None)
    assert bad.error is not None
    assert bad.error.kind is ErrorKind.ENVIRONMENT
    assert "the letters ran away" in bad.error.message
    assert good.reward == 1.0


def test_a_server_that_runs_already_is_asked_at_its_address(games: Games, games_python: Path) -> None:
    command = [games_python, "-m", "uvicorn", "guessing:app", "--port", "0", "--app-dir", HERE]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            address = next(found[0] for line in server.stderr if (found := re.findall(r"http://[\d.:]+", line)))
            args = LETTER | {"app": "", "base_url": address}
            played = games.play("openenv", args, ["b", "a"])
            assert played.problem.key == f"{address}:0"
            assert played.rollouts[0].reward == 0.75
        finally:
            server.terminate()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({}, "give either app, which is started here, or base_url"),
        ({"app": "guessing:nope"}, "app 'guessing:nope' cannot be imported: AttributeError"),
        ({"app": "guessing"}, "is not of the form module:attribute"),
        (GUESS | {"action_field": "number"}, "action_field 'number' is no field of guessing:GuessAction"),
        ({"app": "guessing:app", "client": "guessing:GuessClient"}, "client needs action"),
        ({"app": "guessing:LETTERS"}, "the application of the environment did not start"),
    ],
)
def test_what_does_not_fit_together_is_refused_by_name(games: Games, args: dict[str, object], message: str) -> None:
    with pytest.raises(RegistryError, match=message):
        games.load("openenv", args)
