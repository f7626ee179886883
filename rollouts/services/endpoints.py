"""Endpoints: which models of others runs and evaluations may ask, added and removed by administrators alone.

What a config names is looked up here: at the launch, and again whenever somebody is about to ask.
"""

import difflib
import logging
from collections.abc import Sequence

from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.db.models import Q, QuerySet
from django.db.models.functions import Now

from environments.endpoints import address, keys
from environments.endpoints.address import ChatEndpoint
from rollouts.errors import Conflict, Invalid, NotFound
from rollouts.models import Endpoint, Project
from rollouts.storable import UNNAMABLE, UNSTORABLE, is_name, is_storable
from trainers.run_config import RunConfig

log = logging.getLogger(__name__)
FIX = "an administrator adds it with `rollyard endpoints add {name}`"


def usable(*projects: Project) -> QuerySet[Endpoint]:
    """Those that runs and evaluations of a project may ask now; of several projects, of any."""
    allowed = Endpoint.objects.filter(projects__in=projects).values("pk")
    return Endpoint.objects.filter(Q(is_for_all=True) | Q(pk__in=allowed), removed_at__isnull=True).order_by("name")


def references() -> list[str]:
    """By what the keys of all are named, which whoever asks in their place has to have."""
    return list(Endpoint.objects.filter(removed_at__isnull=True).values_list("key_reference", flat=True))


def find(project: Project, name: str) -> ChatEndpoint:
    """Where a project asks the endpoint of a name. Raises NotFound, whose message says who mends it how."""
    row = usable(project).filter(name=name).first() if is_storable(name) else None
    if row is None:
        raise NotFound(fault(project, name))
    return as_target(row)


def fault(project: Project, name: str) -> str:
    """Why a project may not ask an endpoint: a sentence with its fix. One of other projects is not told apart."""
    known = list(usable(project).values_list("name", flat=True))
    close = difflib.get_close_matches(name, known, n=1)
    fix = f"did you mean {close[0]}?" if close else f"{FIX.format(name=name)}."
    return f"project {project.slug} has no endpoint {name}: {fix}"


def check(config: RunConfig, project: Project) -> None:
    """Raise Invalid at every endpoint of a config that the project may not ask."""
    named = {f"policies.{index}.endpoint": ref.endpoint for index, ref in enumerate(config.policies) if ref.endpoint}
    if config.model.endpoint:
        named["model.endpoint"] = config.model.endpoint
    if not named or config.kind == "external":
        return
    known = set(usable(project).values_list("name", flat=True))
    faults = {key: fault(project, name) for key, name in named.items() if name not in known}
    if faults:
        raise Invalid("Nothing was launched: nobody would answer what it asks.", fields=faults)


def as_target(row: Endpoint) -> ChatEndpoint:
    """What a client of it has to know."""
    return ChatEndpoint(
        name=row.name,
        base_url=row.base_url,
        model=row.model,
        key_reference=row.key_reference,
        max_in_flight=row.max_in_flight,
        timeout_s=float(row.timeout_s),
    )


def add(
    *,
    name: str,
    base_url: str,
    model: str,
    key_reference: str = "",
    max_in_flight: int = 8,
    timeout_s: int = 60,
    projects: Sequence[Project] = (),
    is_for_all: bool = False,
    note: str = "",
    actor: str,
    user: User | None = None,
) -> Endpoint:
    """Let runs ask a model; whoever calls this has made sure that it is an administrator who says so.

    Raises Invalid at every field that is wrong, Conflict for a name that is taken.
    """
    row = Endpoint(
        name=name,
        base_url=base_url.rstrip("/"),
        model=model,
        key_reference=key_reference,
        max_in_flight=max_in_flight,
        timeout_s=timeout_s,
        is_for_all=is_for_all,
        note=note,
        added_by=user,
        added_actor=actor,
    )
    fields = faults(row)
    if is_for_all == bool(projects):
        fields["projects"] = "name the projects that may ask it, or say that all may"
    if fields:
        raise Invalid("No endpoint was added.", fields=fields)
    try:
        with transaction.atomic():
            row.save(force_insert=True)
            row.projects.set(projects)
    except IntegrityError:
        raise Conflict(f"There is an endpoint {name}: remove it first, they are never changed.") from None
    row.refresh_from_db()
    log.warning("%s added the endpoint %s", actor, name)
    return row


def faults(row: Endpoint) -> dict[str, str]:
    """What is wrong with a new one, by field."""
    found: dict[str, str] = {}
    try:
        row.clean_fields(exclude=["added_by", "removed_at", "removed_actor", "key_reference", "base_url"])
    except ValidationError as error:
        found = {field: " ".join(messages) for field, messages in error.message_dict.items()}
    if wrong := address.fault_of(row.base_url, has_key=bool(row.key_reference)):
        found["base_url"] = wrong
    if wrong := keys.fault_of(row.key_reference):
        found["key_reference"] = wrong
    if not is_name(row.model):
        found["model"] = UNNAMABLE
    if not is_storable(row.note):
        found["note"] = UNSTORABLE
    return found


def remove(name: str, *, actor: str) -> Endpoint:
    """Let nobody ask it any more: runs that name it are told so, at once. Raises NotFound."""
    with transaction.atomic():
        rows = Endpoint.objects.select_for_update().filter(name=name, removed_at__isnull=True)
        row = rows.first() if is_storable(name) else None
        if row is None:
            raise NotFound(f"There is no endpoint {name}.")
        row.removed_at, row.removed_actor = Now(), actor
        row.save(update_fields=["removed_at", "removed_actor"])
    row.refresh_from_db()
    log.warning("%s removed the endpoint %s", actor, name)
    return row
