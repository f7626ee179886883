"""Who calls: the run behind a key, its open attempt, and the environment that names itself. One query.

The address, its owner's rights, the attempt and the state are read anew for every request: an address that was changed,
an owner who was dismissed or an attempt that was reset is over for every process at once. Only a run's config is
remembered, which never changes.
"""

import copy
import time
from dataclasses import dataclass, replace
from functools import lru_cache

from rollouts.errors import Forbidden, NotFound
from rollouts.models import Role, Run, RunKind
from rollouts.services.outside import clients
from rollouts.services.outside.attempts import Terms, check_takes_part, own_terms
from rollouts.services.runs import addresses
from rollouts.sql import binary_cursor, load
from rollouts.states import RunState

MAX_INDEX = 2**31 - 2
KEY_MEMORY_S = 60.0
"""So long at most a body under an address that was closed is still read and inflated; nothing is done with it."""
OWNERS = [role.value for role in Role if role.includes(addresses.LEAST_ROLE)]
EXPIRED = "This address has expired. An operator of the project renews it on the run's page, under Connect."
WITHOUT_OWNER = (
    "Nobody answers for this address: its owner may not operate the run any more. "
    "An operator of the project takes it over on the run's page, under Connect, by renewing it."
)
_found_at: dict[str, float] = {}
"""When each key last opened something, monotonic. Keys that never did do not get here, so strangers cannot fill it."""


@dataclass(frozen=True, slots=True)
class Client:
    """The environment process that made the request."""

    id: int
    wandb_name: str
    group_size: int
    batch_size: int
    """Sequences per batch as it knows them, perhaps from before a reset."""
    environment_id: int
    environment: str


@dataclass(frozen=True, slots=True)
class Caller:
    """What a request finds."""

    run: Run
    """Its state is of now; other columns that change may be old."""
    attempt_id: int | None
    terms: Terms | None
    """Of the trainer; None before one registered."""
    is_started: bool
    """Environments may register."""
    current_step: int
    """Where the trainer began, and batches handed out since."""
    client: Client | None
    resets_on_get: bool = False
    """The address is for old clients."""

    def check_takes_part(self) -> None:
        """Raise RunOver when the run is over or about to be."""
        check_takes_part(self.run)


def check_key(key: str) -> None:
    """Raise NotFound for a key that is none and Forbidden for one that is over, before anything dear is done for it.

    A key that was found within KEY_MEMORY_S passes without a query: whoever does something for it asks ``find`` anew.
    """
    if time.monotonic() - _found_at.get(key, -KEY_MEMORY_S) >= KEY_MEMORY_S:
        find(key)


def find(key: str, env_id: int | None = None) -> Caller:
    """The caller of a request under this key. Raises NotFound for one that is none, Forbidden for one that is over."""
    known_id = env_id if env_id is not None and abs(env_id) <= MAX_INDEX else None
    with binary_cursor() as cursor:
        asked = {"key": key, "env_id": known_id, "roles": OWNERS, "use_noted_s": addresses.USE_NOTED_S}
        cursor.execute(load("atropos_caller"), asked)
        row = cursor.fetchone()
    if row is None:
        _found_at.pop(key, None)
        raise NotFound("Not Found")
    *row, is_current, is_owned, is_to_be_noted, resets_on_get = row
    if not (is_current and is_owned):
        _found_at.pop(key, None)
        raise Forbidden(WITHOUT_OWNER if is_current else EXPIRED)
    run = _run(row[0])
    _found_at[key] = time.monotonic()
    if is_to_be_noted:
        addresses.note_use(run)
    run.state, steps, attempt_id, is_started, first_step = row[1:6]
    client = None if row[14] is None else Client(*row[14:])
    if client is not None:
        clients.heartbeat(client.id)
    if run.kind == RunKind.RL:
        is_taking = run.state != RunState.PENDING
        return Caller(run, attempt_id, own_terms(run), is_taking, steps, client, resets_on_get)
    terms = None if attempt_id is None else Terms(*row[6:14])
    taken = 0 if first_step is None else steps - first_step
    step = terms.starting_step + taken if terms else 0
    return Caller(run, attempt_id, terms, bool(is_started), step, client, resets_on_get)


def find_environment(key: str, env_id: int) -> Caller:
    """Like ``find``, for an environment that did not hear of a reset and still uses its id from the attempt before.

    It is taken into the open attempt; between two attempts it is only known by its name.
    """
    caller = find(key, env_id)
    if caller.client is not None or not 0 <= env_id <= MAX_INDEX:
        return caller
    former = clients.newest_of_index(caller.run, env_id)
    if former is None:
        return caller
    if caller.attempt_id is not None:
        clients.adopt(caller.run, env_id)
        return find(key, env_id)
    client = Client(
        former.pk,
        former.wandb_name,
        former.group_size,
        former.batch_size,
        former.environment_id,
        former.environment.name,
    )
    return replace(caller, client=client)


def _run(run_id: int) -> Run:
    """A copy of one's own, which may be written to."""
    return copy.copy(_remembered(run_id))


@lru_cache(maxsize=256)
def _remembered(run_id: int) -> Run:
    run = Run.objects.select_related("project").get(pk=run_id)
    run.parsed  # noqa: B018 - parsed once, not in every copy
    return run
