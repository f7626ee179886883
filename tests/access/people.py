"""Who asks: people with a session, machines with a token, and whoever knows an address of the Atropos protocol."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.models import Permission, User
from django.test import Client
from django.utils import timezone

from controlplane.home import FOR_RUNS
from rollouts.models import Address, ApiToken, Membership, Project, Role, Scope
from rollouts.models.run import new_atropos_key
from rollouts.services.runs.tokens import create
from tests.access.world import Possessions, possessions
from tests.factories import make_user
from tests.lanes import IS_LONG
from tests.rollouts.api import ALL
from tests.rollouts.doors.atropos.api import make_external_run

CSRF = "x" * 32
HOUR = timedelta(hours=1)
_STRONGEST = ("token: everything", "token: of somebody in both projects", "token: of a superuser")


@dataclass(frozen=True)
class Person:
    """Somebody with at most one credential, and what it is worth."""

    name: str
    headers: Mapping[str, str] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)
    """What the server knows of their connection."""
    roles: Mapping[str, Role] = field(default_factory=dict)
    """Slug of a project -> role of the account in it."""
    is_superuser: bool = False
    is_staff: bool = False
    """With every permission that Django has."""
    is_forged: bool = False
    """Their browser sends what the page of another site has it send."""
    scopes: frozenset[Scope] | None = None
    """Of the token; None for people with a session."""
    project: str = ""
    """Of the token."""
    run: str = ""
    """Key of the one run that the token is bound to."""
    is_known: bool = True
    """Whether the credential opens anything at all."""

    def __str__(self) -> str:
        return self.name

    @property
    def has_session(self) -> bool:
        return self.is_known and self.scopes is None

    @property
    def is_of_run(self) -> bool:
        """Whether they come through the socket that the code of runs has."""
        return FOR_RUNS in self.state

    def has(self, role: Role, project: str) -> bool:
        """Whether the account has at least this role in the project."""
        own = self.roles.get(project)
        return self.is_superuser or (own is not None and own.includes(role))

    def has_somewhere(self, role: Role) -> bool:
        return self.is_superuser or any(own.includes(role) for own in self.roles.values())


ANONYMOUS = Person("nobody", {"cookie": f"rollyard_csrf={CSRF}", "x-csrftoken": CSRF}, is_known=False)


def with_sessions(ours: Possessions, theirs: Possessions) -> list[Person]:
    """People who are signed in, as far as that goes."""
    mine, foreign = ours.project.slug, theirs.project.slug
    root = User.objects.create_superuser("root")
    people = [_signed_in(make_user(f"{role}", role=role, project=ours.project), {mine: role}) for role in Role]
    admin = people[-1]
    stranger = make_user("stranger", role=Role.ADMIN, project=theirs.project)
    dismissed = _signed_in(make_user("dismissed", role=Role.ADMIN, project=ours.project), {}, is_known=False)
    User.objects.filter(username="dismissed").update(is_active=False)
    without_proof = {"cookie": admin.headers["cookie"].replace(f"rollyard_csrf={CSRF}", "")}
    return [
        ANONYMOUS,
        *people,
        _signed_in(stranger, {foreign: Role.ADMIN}),
        _signed_in(make_user("outsider", role=None), {}),
        dismissed,
        Person("admin, by a page of another site", without_proof, roles=admin.roles, is_forged=True),
        _signed_in(root, {}, is_superuser=True),
        Person("superuser through the socket of runs", _cookies(root), {FOR_RUNS: True}, is_superuser=True),
    ]


def staff(ours: Possessions) -> list[Person]:
    """Who may enter the administration site, with every permission that it asks for."""
    found = []
    for role in (Role.VIEWER, Role.OPERATOR, Role.ADMIN):
        user = make_user(f"staff-{role}", role=role, project=ours.project)
        User.objects.filter(pk=user.pk).update(is_staff=True)
        user.user_permissions.set(Permission.objects.all())
        found.append(_signed_in(user, {ours.project.slug: role}, is_staff=True))
    return found


def _signed_in(user: User, roles: Mapping[str, Role], **facts: Any) -> Person:
    return Person(user.username, _cookies(user), roles=roles, **facts)


def _cookies(user: User) -> dict[str, str]:
    client = Client()
    client.force_login(user)
    session = client.cookies["rollyard_session"].value
    return {"cookie": f"rollyard_session={session}; rollyard_csrf={CSRF}", "x-csrftoken": CSRF}


def with_tokens(ours: Possessions, theirs: Possessions) -> list[Person]:
    """Machines: each scope alone, all of them, and every way in which a token can be worth less than it says."""
    project, other = ours.project, theirs.project
    operator = make_user("owner", project=project)
    both = make_user("both", role=Role.ADMIN, project=project)
    Membership.objects.create(user=both, project=other, role=Role.ADMIN)
    root, left = User.objects.get(username="root"), make_user("left", role=None)
    gone, late = (make_user(name, project=project) for name in ("gone", "late"))
    found = [_machine(f"{scope} alone", operator, project, [scope]) for scope in Scope]
    found += [
        _machine("everything", operator, project),
        _machine("everything, of a viewer", make_user("onlooker", role=Role.VIEWER, project=project), project),
        _machine("everything, of a curator", make_user("labeller", role=Role.CURATOR, project=project), project),
        _machine("bound to the run", operator, project, run=ours.run),
        _machine("bound to another run", operator, project, run=ours.other),
        _machine("of the run's trainer", operator, project, [Scope.TRAIN], run=ours.run),
        _machine("of somebody in both projects", both, project),
        _machine("of a superuser", root, project),
        _machine("of somebody who left the project", left, project),
        _machine("expired", late, project, ttl=-HOUR, is_known=False),
        _machine("revoked", operator, project, is_known=False),
        _machine("of a dismissed user", gone, project, is_known=False),
        Person("unknown token", {"authorization": f"Token ry_{'x' * 60}"}, is_known=False, scopes=frozenset()),
        Person(
            "an address as a token",
            {"authorization": f"Token {ours.external.address.key}"},
            is_known=False,
            scopes=frozenset(),
        ),
    ]
    User.objects.filter(pk=gone.pk).update(is_active=False)
    ApiToken.objects.filter(name="revoked").delete()
    return found


def _stranger(name: str, token: str) -> Person:
    return Person(f"token: {name}", {"authorization": f"Token {token}"}, is_known=False, scopes=frozenset())


def _machine(
    name: str,
    user: User,
    project: Project,
    scopes: Iterable[Scope] = ALL,
    *,
    run: Any = None,
    ttl: timedelta = HOUR,
    **facts: Any,
) -> Person:
    scopes = frozenset(scopes)
    token = create(user=user, project=project, name=name, scopes=scopes, ttl=ttl, run=run)
    roles = {each.project.slug: Role(each.role) for each in user.memberships.select_related("project")}
    return Person(
        f"token: {name}",
        {"authorization": f"Token {token}"},
        roles=roles,
        is_superuser=user.is_superuser,
        scopes=scopes,
        project=project.slug,
        run="" if run is None else run.key,
        **facts,
    )


@dataclass(frozen=True)
class Key:
    """What stands in a path under /atropos/."""

    name: str
    key: str
    opens: bool = False


def keys(of: Possessions) -> list[Key]:
    """An address that opens its run, and every way in which one does not."""
    tomorrow = timezone.now() + timedelta(days=1)
    gone = make_user("gone from the address", project=of.project)
    User.objects.filter(pk=gone.pk).update(is_active=False)
    onlooker = make_user("onlooker with an address", role=Role.VIEWER, project=of.project)
    elsewhere = make_user("left the address", role=None)

    def make(name: str, owner: User | None, expires_at: datetime = tomorrow, *, opens: bool = False) -> Key:
        address = make_external_run(project=of.project, name=of.mark).address
        address.owner, address.expires_at = owner, expires_at
        address.save()
        return Key(name, address.key, opens)

    former = make("of a run with another address", of.member)
    make_anew = Address.objects.get(key=former.key)
    make_anew.key = new_atropos_key()
    make_anew.save()
    return [
        Key("good", of.external.address.key, opens=True),
        former,
        make("expired", of.external.address.owner, timezone.now()),
        make("of a dismissed user", gone),
        make("of a viewer", onlooker),
        make("of somebody who left the project", elsewhere),
        make("of nobody", None),
        Key("unknown", new_atropos_key()),
        Key("the key of a run", of.run.key),
    ]


@dataclass(frozen=True)
class World:
    """Two projects, and everybody who may want something of them."""

    ours: Possessions
    theirs: Possessions
    people: list[Person]
    staff: list[Person]
    machines: list[Person]
    keys: list[Key]

    def cells(self, *, for_machines: bool) -> Iterator[tuple[Person, Possessions]]:
        """Everybody with what is ours, and with what is theirs.

        A page takes no token, so unless time is no matter it is shown those that would open most.
        """
        machines = self.machines
        if not (for_machines or IS_LONG):
            machines = [machine for machine in machines if machine.name in _STRONGEST]
            assert len(machines) == len(_STRONGEST)
        for person in (*self.people, *machines):
            yield person, self.ours
            yield person, self.theirs

    def marks_hidden_from(self, person: Person) -> list[str]:
        """Words that no answer to this person may hold."""
        both = (self.ours, self.theirs)
        return [of.mark for of in both if not (person.is_known and person.has(Role.VIEWER, of.project.slug))]


def make_world() -> World:
    ours, theirs = possessions("ours"), possessions("theirs")
    people = with_sessions(ours, theirs)
    return World(ours, theirs, people, staff(ours), with_tokens(ours, theirs), keys(ours))
