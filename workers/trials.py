"""Play what somebody wants to try: one episode at a time of any environment, by the live policy of a driver's run.

    every second: claim ──▶ a room of its own ──▶ play, telling every turn ──▶ finish

Beside the run's groups, and apart from them: nothing is leased, nothing is trained, and the room ends with the episode.
"""

import asyncio
import logging
from pathlib import Path

import msgspec
from django.db import DatabaseError, InterfaceError

from environments import disk, others
from environments.config import SamplingParams
from environments.gateway.local import LocalGateway
from environments.runner import play_group
from environments.traffic import Traffic
from environments.types import JsonObject, PlayedRollout, Split
from rollouts.models import Run, Trial
from rollouts.services.runs import trials
from trainers.run_config import EnvironmentRef
from workers import failures, isolation
from workers.database import in_database
from workers.others import OthersOfRun
from workers.players import Players
from workers.rooms import Room

log = logging.getLogger(__name__)

AT_A_TIME = 2
"""Per driver: somebody waits for each, and the run's groups wait for all."""
_TOKENS = ("token_ids", "loss_mask", "inference_logprobs")


class Trials:
    """What a driver plays for people. Belongs to one event loop."""

    def __init__(
        self,
        run: Run,
        holder: str,
        players: Players,
        others_of_run: OthersOfRun,
        traffic: Traffic,
        gateway: LocalGateway,
        gateway_socket: Path,
    ) -> None:
        self._run = run
        self._holder = holder
        self._players = players
        self._others = others_of_run
        self._traffic = traffic
        self._gateway = gateway
        self._gateway_socket = gateway_socket
        self._playing: set[asyncio.Task[None]] = set()

    @property
    def are_playing(self) -> bool:
        return bool(self._playing)

    async def look(self) -> None:
        """Begin with what waits. Raises what the database raises."""
        room = AT_A_TIME - len(self._playing)
        if room <= 0:
            return
        for trial in await in_database(trials.claim, self._run, holder=self._holder, limit=room):
            task = asyncio.create_task(self._play(trial))
            self._playing.add(task)
            task.add_done_callback(self._playing.discard)

    async def aclose(self) -> None:
        """Give up what is still being played."""
        for task in list(self._playing):
            task.cancel()
        await asyncio.gather(*self._playing, return_exceptions=True)

    async def _play(self, trial: Trial) -> None:
        try:
            record = await self._record(trial)
            await in_database(trials.finish, trial, record)
        except asyncio.CancelledError:
            await in_database(trials.drop, trial)
            raise
        except (DatabaseError, InterfaceError) as error:
            log.warning("run %s: trial %s is left to its deadline (%s)", self._run.key, trial.key, error)
        except Exception:
            log.exception("run %s: trial %s broke its driver", self._run.key, trial.key)
            await in_database(trials.drop, trial)

    async def _record(self, trial: Trial) -> JsonObject:
        ref = EnvironmentRef(**trial.environment, label=f"trial-{trial.key}", timeout_s=trials.DEADLINE_S)
        room = Room(self._run, ref, self._gateway_socket)
        told = _Telling(trial)
        facts: JsonObject = {}
        try:
            async with room.seat() as environment:
                facts["environment_version"] = str(environment.version)
                problem = await room.problem(environment, Split(trial.split), trial.problem_index)
                facts["problem_key"] = problem.key
                told.say(facts | {"messages": msgspec.to_builtins(problem.messages), "tools": problem.tools})
                player = await self._players.find(
                    oldest_version=self._run.live_version, count=_uncounted, endpoint=trial.endpoint
                )
                sampling = SamplingParams(
                    temperature=trial.temperature,
                    max_tokens=trial.max_tokens,
                    max_turns=trial.max_turns,
                    max_total_tokens=player.context,
                )
                asked = self._others.for_group(1, _uncounted)
                try:
                    with others.using(asked):
                        # Of a match, what its first seat leaves.
                        [rollout, *_] = await play_group(
                            environment,
                            problem,
                            player.policy,
                            sampling,
                            1,
                            deadline_s=ref.timeout_s,
                            chat=player.chat,
                            gateway=self._gateway,
                            version=player.version,
                            traffic=self._traffic,
                            others=self._players.seated(ref.seating, sampling, asked),
                            heard=lambda turn: told.say(
                                facts | {"messages": msgspec.to_builtins(turn.conversation), "tools": turn.tools}
                            ),
                        )
                finally:
                    await told.aclose()
                rollout.replica = player.name()
                failures.add_stderr([rollout], environment)
        except Exception as error:  # noqa: BLE001 - the boundary to the environment's code: a failure is data
            rollout = failures.failed_episode(error)
        finally:
            await room.aclose()
            # What its code left there is nobody's, and the next one's least of all.
            await asyncio.to_thread(disk.clear_away, isolation.scratch_of(self._run, ref))
        return facts | _plain(rollout)


class _Telling:
    """Writes down what was said so far, the newest only: who watches need not see every turn by itself."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._newest: JsonObject | None = None
        self._writing: asyncio.Task[None] | None = None

    def say(self, record: JsonObject) -> None:
        """Write this as soon as what was said before is written."""
        self._newest = record
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())

    async def aclose(self) -> None:
        """Write no more: what comes next is the whole record."""
        if self._writing is not None:
            await asyncio.wait({self._writing})

    async def _write(self) -> None:
        while (record := self._newest) is not None:
            self._newest = None
            try:
                await in_database(trials.tell, self._trial, record)
            except (DatabaseError, InterfaceError) as error:
                log.info("trial %s: a turn is not shown (%s)", self._trial.key, error)


def _uncounted(_key: str, _value: float) -> None:
    """A trial is in no figure of its run."""


def _plain(rollout: PlayedRollout) -> JsonObject:
    facts: JsonObject = msgspec.to_builtins(rollout)
    tokens = {"token_count": len(rollout.token_ids), "trained_token_count": sum(rollout.loss_mask)}
    return {name: value for name, value in facts.items() if name not in _TOKENS} | tokens
