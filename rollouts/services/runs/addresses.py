"""Addresses of the Atropos-compatible API: made with the run, changed, renewed. Each has somebody who answers for it.

Whoever changes or renews an address is its owner from then on: it opens the run for as long as they may operate it.
"""

from datetime import timedelta

from django.contrib.auth.models import User
from django.db import connection, transaction
from django.utils import timezone

from rollouts.errors import Invalid
from rollouts.models import Address, Role, Run, RunKind
from rollouts.models.address import DEFAULT_DAYS, MOST_DAYS
from rollouts.models.run import new_atropos_key
from rollouts.reasons import Reason, ReasonCode
from rollouts.services.transitions import record_note
from rollouts.sql import load

LEAST_ROLE = Role.OPERATOR
"""What the owner needs in the run's project."""
USE_NOTED_S = 60.0
"""A use is noted at most this often."""


def make(run: Run, owner: User | None) -> None:
    """The address of a run that was just created. Only what learns from rollouts takes any from outside."""
    if run.kind in {RunKind.RL, RunKind.EXTERNAL}:
        Address.objects.create(run=run, owner=owner)


def change(run: Run, *, owner: User, actor: str, days: int = DEFAULT_DAYS, resets_on_get: bool = False) -> Address:
    """Another address for so many days; whoever knew the old one is out at once. Raises Invalid. Locks the address."""
    _check_days(days)
    with transaction.atomic():
        address = _locked(run)
        address.key, address.used_at = new_atropos_key(), None
        address.resets_on_get = resets_on_get
        _hold(address, owner, days)
        record_note(run, run_id=run.pk, actor=actor, reason=Reason(ReasonCode.ATROPOS_KEY_ROTATED))
    return address


def renew(run: Run, *, owner: User, actor: str, days: int = DEFAULT_DAYS) -> Address:
    """The same address for so many days from now. Raises Invalid. Locks the address."""
    _check_days(days)
    with transaction.atomic():
        address = _locked(run)
        _hold(address, owner, days)
        record_note(run, run_id=run.pk, actor=actor, reason=Reason(ReasonCode.ADDRESS_RENEWED, days=days))
    return address


def note_use(run: Run) -> None:
    """Record that the address was used, if nobody did in the last minute."""
    with connection.cursor() as cursor:
        cursor.execute(load("note_address_use"), {"run_id": run.pk, "use_noted_s": USE_NOTED_S})


def _check_days(days: int) -> None:
    if not 1 <= days <= MOST_DAYS:
        raise Invalid(
            f"An address lasts 1 to {MOST_DAYS} days.", fields={"days": f"must be from 1 to {MOST_DAYS}, not {days}"}
        )


def _locked(run: Run) -> Address:
    """The address. Raises Invalid for a run that has none."""
    address = Address.objects.select_for_update().filter(run=run).first()
    if address is None:
        raise Invalid(f"Run {run.key} is supervised: nothing from outside takes part in it, and it has no address.")
    return address


def _hold(address: Address, owner: User, days: int) -> None:
    address.owner = owner
    address.expires_at = timezone.now() + timedelta(days=days)
    address.save()
