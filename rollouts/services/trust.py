"""Which code from elsewhere a run would execute or could have its servers execute, and whether an administrator allowed
it.

Nothing of it is imported to find out. A launch asks, and the reconciler asks again at every pass: what is withdrawn
ends the runs that need it.
"""

import logging
import re
import shlex
from pathlib import Path
from typing import NamedTuple

from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.db.models.functions import Now

from environments import registry
from rollouts.errors import Conflict, Invalid, NotFound, Untrusted
from rollouts.models import Run, Trust, TrustKind
from rollouts.storable import is_storable
from trainers.run_config import RunConfig, server_arguments
from trainers.run_config.losses import CustomLoss

log = logging.getLogger(__name__)

MAX_NAME = 500
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
FIX = "an administrator allows it on the page Trust, or with `rollyard trust allow {kind} {name}`"


class Need(NamedTuple):
    """Code from elsewhere that a run would execute, or an argument that may have a server do so."""

    field: str
    """The key of the config that asks for it."""
    kind: TrustKind
    name: str


def needs(config: RunConfig, *, source: Run | None = None) -> list[Need]:
    """What a run with this config would execute of others; ``source`` is the run whose checkpoint it is forked from."""
    if config.kind == "external":
        return []
    found = []
    # A fork begins with an export, which loads the model as the run that it is forked from did.
    if config.model.trust_remote_code or (source is not None and source.parsed.model.trust_remote_code):
        name = (_origin(source).parsed if source else config).model.path
        found.append(Need("model.trust_remote_code", TrustKind.REMOTE_CODE, _spelled(name)))
    if config.model.trust_remote_code:
        named = {f"{key}.model": policy.model for key, policy in config.frozen.items() if not policy.is_start}
        found += [Need(key, TrustKind.REMOTE_CODE, _spelled(model)) for key, model in named.items()]
    if isinstance(config.algorithm.loss, CustomLoss):
        found.append(Need("algorithm.loss.path", TrustKind.LOSS, config.algorithm.loss.path))
    further = server_arguments.to_be_allowed(config.inference.arguments)
    found += [Need(f"inference.arguments.{name}", TrustKind.ARGUMENT, name) for name in further]
    for index, environment in enumerate(config.environments):
        if (foreign := registry.code_from_elsewhere(environment.name, environment.args)) is not None:
            found.append(Need(f"environments.{index}.name", TrustKind.ENVIRONMENT, foreign))
        foreign_rewards = registry.rewards_from_elsewhere(environment.name, environment.args)
        key = f"environments.{index}.args.rewards"
        found += [Need(key, TrustKind.ENVIRONMENT, f"reward:{name}") for name in foreign_rewards]
        # One by name was installed by whoever may; any other directory may be anybody's.
        if Path(environment.python).is_absolute():
            found.append(Need(f"environments.{index}.python", TrustKind.ENVIRONMENT, _spelled(environment.python)))
    return found


def missing(config: RunConfig, *, source: Run | None = None) -> list[Need]:
    """What of it nobody allows now. One query, none for a config that needs nothing."""
    wanted = needs(config, source=source)
    if not wanted:
        return []
    rows = Trust.objects.filter(withdrawn_at__isnull=True, name__in=[need.name for need in wanted])
    allowed = set(rows.values_list("kind", "name"))
    return [need for need in wanted if (need.kind.value, need.name) not in allowed]


def missing_of(run: Run) -> list[Need]:
    """As `missing`, of a run that was launched."""
    return missing(run.parsed, source=run.forked_from.run if run.forked_from else None)


def check(config: RunConfig, *, source: Run | None = None) -> None:
    """Raise Untrusted at every key that asks for code which nobody allowed."""
    if found := missing(config, source=source):
        fields = {need.field: fault(need) for need in found}
        refusal = Untrusted("Nothing was launched: it would run code that nobody allowed.", fields=fields)
        refusal.needs = found
        raise refusal


def fault(need: Need) -> str:
    """What is wrong, and who mends it how."""
    fix = FIX.format(kind=need.kind.value, name=shlex.quote(need.name))
    if need.kind is TrustKind.ARGUMENT:
        return f"may do more than tune a server, and is not allowed here: {fix}."
    return f"runs code from elsewhere, {need.name}, which is not allowed here: {fix}."


def allow(kind: str, name: str, *, actor: str, user: User | None = None) -> Trust:
    """Allow runs to execute this from now on; whoever calls this has made sure that it is an administrator who says so.

    Raises Invalid for a name that nothing could have, Conflict for what is allowed already.
    """
    name = _spelled(name)
    _check(kind, name)
    try:
        with transaction.atomic():
            row = Trust.objects.create(kind=kind, name=name, allowed_by=user, allowed_actor=actor)
    except IntegrityError:
        raise Conflict(f"{kind} {name} is allowed already.") from None
    row.refresh_from_db()
    log.warning("%s allowed runs to execute the %s %s", actor, kind, name)
    return row


def withdraw(kind: str, name: str, *, actor: str) -> Trust:
    """Allow it no longer: runs that need it end at the reconciler's next pass. Raises NotFound."""
    name = _spelled(name)
    _check(kind, name)
    with transaction.atomic():
        row = Trust.objects.select_for_update().filter(kind=kind, name=name, withdrawn_at__isnull=True).first()
        if row is None:
            raise NotFound(f"{kind} {name} is not allowed; there is nothing to withdraw.")
        row.withdrawn_at, row.withdrawn_actor = Now(), actor
        row.save(update_fields=["withdrawn_at", "withdrawn_actor"])
    row.refresh_from_db()
    log.warning("%s no longer allows runs to execute the %s %s", actor, kind, name)
    return row


def _check(kind: str, name: str) -> None:
    fields = {}
    if kind not in TrustKind.values:
        fields["kind"] = f"must be one of {', '.join(TrustKind.values)}"
    if not name.strip() or len(name) > MAX_NAME or not is_storable(name) or not name.isprintable():
        fields["name"] = f"must have 1 to {MAX_NAME} printable characters"
    elif kind == TrustKind.REMOTE_CODE and not (Path(name).is_absolute() or _HUB_NAME.fullmatch(name)):
        fields["name"] = "must be an absolute directory, or a name of the hub such as org/name"
    elif kind == TrustKind.LOSS and not _DOTTED.fullmatch(name):
        fields["name"] = "must be a dotted path such as my_package.my_loss"
    elif kind == TrustKind.ENVIRONMENT and registry.is_built_in(name):
        fields["name"] = "ships with Rollyard and needs no permission"
    elif kind == TrustKind.ARGUMENT and (wrong := server_arguments.complaint(name)):
        fields["name"] = f"must name an argument that a run may have: {wrong}"
    elif kind == TrustKind.ARGUMENT and not server_arguments.to_be_allowed([name]):
        fields["name"] = "only tunes a server and needs no permission"
    if fields:
        raise Invalid("Nothing was changed.", fields=fields)


def _spelled(name: str) -> str:
    """Without what makes two spellings of one directory; links are left alone, for what they mean may change."""
    return name.rstrip("/") or name


def _origin(run: Run) -> Run:
    """The run that a chain of forks began with: its model is the one whose code they all have."""
    while run.forked_from is not None:
        run = run.forked_from.run
    return run
