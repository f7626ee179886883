"""The data directory of the embedded PostgreSQL: made once, and at every start held to who may log in.

    postgres         superuser, made by initdb: nobody logs in as it
    rollyard_owner   owns the tables; migrates
    rollyard         the application: owns nothing, may do what controlplane/grants.sql says

`pg_hba.conf` is written last and names what the roles were made of. If it says anything else (an older cluster, other
passwords, a hand that edited it, a start that was killed half-way), the roles are made again and it is written again.
"""

import base64
import hashlib
import hmac
import os
import secrets
import shutil
from pathlib import Path

from controlplane.home import APPLICATION, DATABASE, OWNER, Home
from controlplane.up.accounts import EmbeddedError, private_directory, run_as
from environments.disk import writing

VERSION = "18"
_ROLES = Path(__file__).with_name("roles.sql").read_text()
_SCRAM_ITERATIONS = 4096
"""The least that RFC 7677 allows: they slow down who guesses, and these passwords cannot be guessed."""


def bring_up_to_date(home: Home, binaries: Path, account: str) -> None:
    """Make the data directory, or bring an old one to the roles of today. No server may run on it.

    Raises EmbeddedError for the data of another release of PostgreSQL.
    """
    data = home.postgres_data
    if not (data / "PG_VERSION").exists():
        _initialise(home, binaries, account)
        return
    if (found := (data / "PG_VERSION").read_text().strip()) != VERSION:
        raise EmbeddedError(
            f"{data} was written by PostgreSQL {found}, this is {VERSION}: "
            "dump it with the old release and restore it, or choose another ROLLYARD_HOME"
        )
    wanted = _admission(home)
    try:
        is_admitted = (data / "pg_hba.conf").read_text() == wanted
    except (FileNotFoundError, UnicodeDecodeError):
        is_admitted = False
    if not is_admitted:
        single_user(binaries, account, data, DATABASE, _roles(home))
        _write_admission(data, wanted)


def single_user(binaries: Path, account: str, data: Path, database: str, script: str) -> None:
    """Run statements as the superuser, in a server of their own. Each ends with a semicolon and an empty line.

    Raises EmbeddedError at the first that fails.
    """
    # Of itself it would go on after an error, and end well.
    argv = ("--single", "-j", "-c", "exit_on_error=on", "-D", str(data), database)
    run_as(account, binaries / "postgres", *argv, stdin=script)


def _initialise(home: Home, binaries: Path, account: str) -> None:
    """Make the data directory under another name and rename it, so that a half-made one is never started."""
    partial = home.postgres_data.with_name("postgres.partial")
    shutil.rmtree(partial, ignore_errors=True)
    private_directory(partial, account)
    argv = ("-D", partial, "-U", "postgres", "--auth=reject", "--encoding=UTF8", "--locale=C")
    run_as(account, binaries / "initdb", *argv)
    single_user(binaries, account, partial, "postgres", f"CREATE DATABASE {DATABASE};\n\n{_roles(home)}")
    _write_admission(partial, _admission(home))
    partial.rename(home.postgres_data)


def _roles(home: Home) -> str:
    return _ROLES.format(
        database=DATABASE,
        owner=OWNER,
        application=APPLICATION,
        owner_verifier=_scram_verifier(home.database_password(OWNER)),
        application_verifier=_scram_verifier(home.database_password(APPLICATION)),
    )


def _admission(home: Home) -> str:
    """The text of pg_hba.conf. The passwords have 256 random bits, so their hash gives nothing away."""
    made_of = [_ROLES, home.database_password(OWNER), home.database_password(APPLICATION)]
    digest = hashlib.sha256("\0".join(made_of).encode()).hexdigest()
    return (
        f"# Written by rollyard, and written again when it is changed. The roles are those of {digest}.\n"
        f"local {DATABASE} {APPLICATION},{OWNER} scram-sha-256\n"
        "local all all reject\n"
    )


def _write_admission(data: Path, text: str) -> None:
    owner = data.stat()
    with writing(data / "pg_hba.conf", mode=0o600) as file:
        os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
        file.write(text.encode())


def _scram_verifier(password: str) -> str:
    """What PostgreSQL stores of a password (RFC 5803), so that the password itself is in no statement and no log."""
    salt = secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, _SCRAM_ITERATIONS)
    stored_key = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    salt_64, stored_64, server_64 = (base64.b64encode(each).decode() for each in (salt, stored_key, server_key))
    return f"SCRAM-SHA-256${_SCRAM_ITERATIONS}:{salt_64}${stored_64}:{server_64}"
