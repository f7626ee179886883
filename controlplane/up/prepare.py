"""What has to be true before the web process starts: schema, rights, static files, an admin, the login link."""

import hashlib
import logging
import sys

from django.conf import settings
from django.contrib.staticfiles.finders import get_finders
from django.core.management import call_command
from django.db import connection

from controlplane import rights
from controlplane.web import login
from rollouts.services.runs import projects

log = logging.getLogger(__name__)


def prepare(login_digest: str) -> None:
    """Bring a database and a home of any age up to this code. Doing it again changes nothing. Raises UnsafeSettings."""
    rights.refuse_trust(connection)
    call_command("migrate", interactive=False, verbosity=1 if sys.stdout.isatty() else 0)
    if fault := rights.database_facts(connection).fault:
        log.warning("In the database, %s %s", fault, rights.FIX)
    admin = projects.ensure_admin()  # a command that waits for the schema finds its project right after it
    collect_static()
    if login_digest:
        login.register(admin, login_digest)


def collect_static() -> bool:
    """Copy and hash the static files if any has changed since the last time; says whether it did.

    It takes seconds because every file is compressed, so a stamp remembers what the sources looked like.
    """
    looks = hashlib.sha256()
    for finder in get_finders():
        for path, storage in sorted(finder.list([]), key=lambda found: found[0]):
            looks.update(f"{path} {storage.size(path)} {storage.get_modified_time(path)}\n".encode())
    stamp = settings.STATIC_ROOT / ".sources"
    if stamp.exists() and stamp.read_text() == looks.hexdigest():
        return False
    call_command("collectstatic", interactive=False, clear=True, verbosity=0)
    stamp.write_text(looks.hexdigest())
    return True
