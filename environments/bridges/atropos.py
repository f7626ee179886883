"""atropos: an unmodified `BaseEnv` class of atroposlib plays in a run.

    get_next_item ─▶ problem      the episodes of a group meet at a table ─▶ collect_trajectories(item), once
                                                                                   │ requests of its servers
    sessions ◀──one reply each── relay ◀───────────────────────────────────────────┤
    rewards ◀── rows, each matched to the rollout that sampled it ◀────────────────┘ a ScoredDataGroup

It runs in a process of its own, on the event loop and the main thread there, as `serve` would run it.
"""

import asyncio
import copy
import math
import traceback
import uuid
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from environments.bridges.atropos_items import DrawnItems, shown
from environments.bridges.atropos_rows import ScoredRow, left_out, match, rows_of, score_of
from environments.bridges.atropos_table import GroupTable, Seat, playing
from environments.env import Environment, PolicySession
from environments.errors import EpisodeError, ProblemError, RegistryError, RewardError, words_of
from environments.types import FinishedRollout, JsonObject, Problem, Split

_MOST_FIGURES = 32


class AtroposArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of atropos."""

    path: Annotated[str, Meta(min_length=1, description="The class: module:Class or file.py:Class.")]
    config: Annotated[
        str | JsonObject, Meta(description="Its YAML: a file of its virtual environment, or what would stand there.")
    ] = {}
    flags: Annotated[list[str], Meta(description="Its command line, such as --env.max_token_length=512.")] = []
    server_type: Annotated[
        Literal["", "vllm", "openai"],
        Meta(
            description="vllm: it may use managed_server, and rows are found by their tokens. Empty: as it says itself."
        ),
    ] = "vllm"
    train_count: Annotated[int, Meta(ge=1, description="Items to train on; then the first come again.")] = 10_000
    eval_count: Annotated[int, Meta(ge=0, description="Held-out items, of an eighth of what get_next_item gives.")] = 0
    seed: Annotated[int, Meta(ge=0, lt=2**32, description="Of random and numpy, before the class is made.")] = 0


class Atropos(Environment[AtroposArgs]):
    """A `BaseEnv` class. Its sizes of groups are the run's, whatever its config says."""

    name = "atropos"
    args_type = AtroposArgs

    def __init__(self, args: AtroposArgs) -> None:
        # What it imports is only in the virtual environment that plays.
        from environments.bridges import atropos_class

        super().__init__(args)
        found = atropos_class.find_class(args.path)
        self.version = atropos_class.version_of(found, args.config, args.flags)  # type: ignore[misc]
        self._class = found.__name__
        self._env = atropos_class.make(found, args.config, args.flags, args.server_type, args.seed)
        self._tables: dict[str, GroupTable] = {}
        """Groups whose episodes are coming in, by their tickets."""
        self._groups: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Set it up on the event loop that it will play on. Raises RegistryError."""
        from environments.bridges import atropos_class
        from environments.bridges.atropos_relay import Relay

        self._loop = asyncio.get_running_loop()
        self._items = DrawnItems(self._env, holds_out=self.args.eval_count > 0)
        self._relay = Relay(self._env.tokenizer.encode)
        await self._relay.start()
        atropos_class.point_to(self._env, self._relay.base_url)
        try:
            await self._env.setup()
        except Exception as error:
            raise RegistryError(f"setup of {self._class}: {type(error).__name__}: {error}") from error

    def count(self, split: Split) -> int:
        """As the arguments say, or what `get_next_item` has given if that is over."""
        wanted = self.args.train_count if split is Split.TRAIN else self.args.eval_count
        if wanted == 0:
            raise RegistryError(f"{self._class} holds no item out: set eval_count, or leave `evaluation` out.")
        return max(1, min(wanted, self._items.known(split))) if self._items.is_over else wanted

    def problem(self, split: Split, index: int) -> Problem:
        """The item that `get_next_item` gave as this one of its split. Not on the event loop's thread."""
        item = asyncio.run_coroutine_threadsafe(self._items.get(split, index), self._loop).result()
        # The ticket tells the episodes of one group from those of another with the same item.
        data = {"split": str(split), "index": index, "ticket": uuid.uuid4().hex}
        return Problem(key=item.key, messages=shown(item.item), data=data)

    async def play(self, problem: Problem, session: PolicySession) -> None:
        """Take a seat, and wait until the environment has played and scored the group."""
        ticket, seat = problem.data["ticket"], Seat()
        table = self._tables.setdefault(ticket, GroupTable())
        table.seats.append(seat)
        try:
            seat.base_url = (await session.address()).base_url
        except BaseException:
            table.seats.remove(seat)
            raise
        finally:
            # All episodes of a group are told to begin before one of them is answered: now every seat is there.
            await asyncio.sleep(0)
            if self._tables.get(ticket) is table and all(each.base_url for each in table.seats):
                del self._tables[ticket]
                group = asyncio.create_task(self._play_group(table, problem))
                self._groups.add(group)
                group.add_done_callback(self._groups.discard)
        played = await seat.played
        if isinstance(played, EpisodeError):
            raise played
        session.note(played)

    async def score_group(self, problem: Problem, rollouts: Sequence[FinishedRollout]) -> Sequence[float | Exception]:
        """The scores that the environment gave when it played the group."""
        if len({rollout.notes.get("table") for rollout in rollouts}) > 1:
            raise RewardError(
                "The episodes of this group were played apart from each other: their scores do not compare."
            )
        return [_reward(rollout) for rollout in rollouts]

    async def _play_group(self, table: GroupTable, problem: Problem) -> None:
        """Have the environment play an item, and tell every seat what came of it."""
        playing.set(table)
        table.number_task()
        self._relay.open(table)
        try:
            limit = self._env.config.worker_timeout
            async with asyncio.timeout(limit if limit > 0 else None):
                drawn = await self._items.get(Split(problem.data["split"]), problem.data["index"])
                rows = rows_of(await self._scored(copy.deepcopy(drawn.item)) if table.seats else None)
            found = match(rows, table.seats, self._decode)
            figures = await self._figures()
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the boundary to somebody's code
            told = _told(error, self._class, table)
            table.end(dict.fromkeys(table.seats, told))
        else:
            table.end({seat: _notes(table, seat, found.get(seat, []), figures, bool(rows)) for seat in table.seats})
        finally:
            self._relay.close(table)

    async def _scored(self, item: Any) -> Any:
        """What the environment makes of an item, by the same calls as in its own loop."""
        try:
            scored, again = await self._env.collect_trajectories(item)
            self._env.backlog.extend(again)
            return await self._env.postprocess_histories(scored) if scored else None
        finally:
            await self._env.cleanup()

    async def _figures(self) -> dict[str, float]:
        """What it would have logged now."""
        try:
            await self._env.wandb_log({})
            figures = {
                key: float(value)
                for key, value in self._env.figures.items()
                if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            }
            return dict(list(figures.items())[:_MOST_FIGURES])
        except Exception:  # noqa: BLE001 - figures are worth no group
            traceback.print_exc()
            return {}

    def _decode(self, token_ids: list[int]) -> str:
        text: str = self._env.tokenizer.decode(token_ids, skip_special_tokens=True)
        return text


def _notes(
    table: GroupTable, seat: Seat, rows: list[ScoredRow], figures: dict[str, float], is_scored: bool
) -> JsonObject | EpisodeError:
    """What `score_group` is told of a rollout; or what is wrong with it."""
    if not is_scored:
        return RewardError("The environment gave no scored group for this item: it declines those it cannot use.")
    try:
        score = score_of(seat, rows)
    except EpisodeError as error:
        return error
    metrics = {"sequences": len(rows), "tokens_left_out": left_out(seat, rows)}
    return {"table": table.key, "score": score, "sampled": seat.sampled, "metrics": metrics | figures}


def _told(error: BaseException, name: str, table: GroupTable) -> EpisodeError:
    """Why a group could not be played: what the environment raised, and what it was told before."""
    if isinstance(error, EpisodeError):
        return error
    told = f" The policy's address had answered: {table.refusals[-1]}" if table.refusals else ""
    said = f": {words_of(error)}" if words_of(error) else ""
    wrong = ProblemError(f"{name}.collect_trajectories: {type(error).__name__}{said}.{told}")
    wrong.__cause__ = error
    return wrong


def _reward(rollout: FinishedRollout) -> float | Exception:
    notes = rollout.notes
    if not notes:
        return RewardError("Nothing was noted of this rollout's score.")
    if sum(rollout.loss_mask) != notes["sampled"]:
        return RewardError(
            f"{sum(rollout.loss_mask)} tokens were sampled, the environment was given {notes['sampled']}."
        )
    rollout.metrics.update(notes["metrics"])
    return float(notes["score"])
