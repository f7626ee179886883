"""`rollyard doctor --security`: what this installation defends, and what is weaker here than it could be."""

import os
from collections.abc import Callable, Iterator
from datetime import timedelta

from django.conf import settings
from django.contrib.auth.models import User
from django.db import DatabaseError, connection
from django.utils import timezone

from controlplane import rights, safety
from controlplane.cli import doctor
from controlplane.cli.doctor import FAIL, OK, WARN, Row
from environments import unconfined
from rollouts.models import ApiToken, Trust

_LONG = timedelta(days=180)


def examine() -> list[Row]:
    """Run every examination. None raises: what breaks is a finding."""
    examinations: list[Callable[[], Iterator[Row]]] = [_starts, _sandbox, _store, _people]
    return [row for examination in examinations for row in examination()]


def _starts() -> Iterator[Row]:
    judged = safety.installation(
        os.environ,
        home=settings.HOME.path,
        secret_key=settings.SECRET_KEY,
        https=settings.HTTPS,
        hosts=settings.ALLOWED_HOSTS,
    )
    found = safety.refusals(judged)
    for refusal in found:
        yield Row("start", FAIL, refusal.what, refusal.fix)
    if not found:
        reached = "other machines over TLS" if judged.https else "other machines in the clear"
        detail = reached if judged.is_reached_from_elsewhere else "this machine only"
        status = WARN if judged.is_reached_from_elsewhere and not judged.https else OK
        yield Row("reached by", status, detail, "" if status == OK else "a proxy that speaks TLS, and ROLLYARD_HTTPS=1")


def _sandbox() -> Iterator[Row]:
    if unconfined.is_unconfined():
        fix = f"unset {unconfined.VARIABLE}"
        yield Row("sandbox", FAIL, "code of runs reaches everything that this account reaches", fix)
    else:
        yield from doctor.sandbox()


def _store() -> Iterator[Row]:
    try:
        facts = rights.database_facts(connection)
    except DatabaseError as error:
        yield Row("role", FAIL, str(error).splitlines()[0], "start `rollyard up`, or set DATABASE_URL")
        return
    if facts.fault:
        yield Row("role", WARN, facts.fault, rights.FIX)
    else:
        yield Row("role", OK, f"{facts.role} owns no table and cannot rewrite what happened")
    if facts.proved_by == rights.TRUST:
        yield Row("password", FAIL, "the server takes a connection's word for who it is", rights.PROOF_FIX)
    elif not facts.proved_by:
        yield Row("password", WARN, "the server is too old to say how it asked", rights.PROOF_FIX)
    else:
        yield Row("password", OK, facts.proved_by)


def _people() -> Iterator[Row]:
    try:
        superusers = User.objects.filter(is_superuser=True, is_active=True).count()
        lasting = ApiToken.objects.filter(expiry__isnull=True).count()
        lasting += ApiToken.objects.filter(expiry__gt=timezone.now() + _LONG).count()
        trusted = Trust.objects.filter(withdrawn_at__isnull=True).count()
    except DatabaseError:
        return  # the store has said so
    yield Row("superusers", OK, str(superusers))
    fix = "revoke them in the administration site, make them with --days"
    yield Row(
        "tokens", WARN if lasting else OK, f"{lasting} live longer than {_LONG.days} days", fix if lasting else ""
    )
    yield Row("trust", OK, f"{trusted} pieces of code from elsewhere are allowed: rollyard trust list")
