"""A tiny environment of OpenEnv, served by OpenEnv itself: guess a letter that the seed chose."""

from typing import Any

from openenv.core import EnvClient
from openenv.core.client_types import StepResult
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

LETTERS = "abcdef"


class GuessAction(Action):
    """One guess."""

    letter: str


class GuessObservation(Observation):
    """What comes of it."""

    hint: str


class Seen(GuessObservation):
    """The same, as a client of the package's own has it."""

    client: str


class Guessing(Environment[GuessAction, GuessObservation, State]):
    """Hot or cold."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> GuessObservation:
        self._letter = LETTERS[(seed or 0) % len(LETTERS)]
        self._state = State(episode_id=episode_id)
        return GuessObservation(hint=f"one of {LETTERS}, {kwargs.get('greeting', 'please')}")

    def step(self, action: GuessAction, timeout_s: float | None = None, **kwargs: Any) -> GuessObservation:
        self._state.step_count += 1
        if action.letter == "!":
            raise RuntimeError("the letters ran away")
        is_right = action.letter == self._letter
        hint = "right" if is_right else "later" if action.letter < self._letter else "earlier"
        return GuessObservation(hint=hint, done=is_right, reward=1.0 if is_right else -0.25)

    @property
    def state(self) -> State:
        return self._state


app = create_app(Guessing, GuessAction, GuessObservation, max_concurrent_envs=2)


def make_app() -> Any:
    return create_app(Guessing, GuessAction, GuessObservation)


class GuessClient(EnvClient[GuessAction, GuessObservation, State]):
    """A client as a package has it."""

    def _step_payload(self, action: GuessAction) -> dict[str, Any]:
        return {"letter": action.letter}

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[GuessObservation]:
        seen = Seen(**payload["observation"], client="mine")
        return StepResult(observation=seen, reward=payload["reward"], done=payload["done"])

    def _parse_state(self, payload: dict[str, Any]) -> State:
        return State(**payload)
