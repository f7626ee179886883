"""What each route needs of whoever asks: the table that SECURITY.md puts in sentences.

A route is here under the words of the code that answers it; one that is not here fails `test_matrix.py`. So does a
method: what a rule does not name is refused, and changes nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

from rollouts.doors.native.access import ROLE_FOR
from rollouts.models import Role, Run, Scope
from rollouts.services.datasets import exports
from tests.access.people import Person
from tests.access.world import Possessions
from tests.frontend.test_launch import filled as launch_form
from tests.hostile.case import good
from tests.hostile.wires import json_of
from tests.rollouts import story
from tests.rollouts.doors.atropos.api import introduction, item, registration

Need = Callable[[Person, Possessions, Run], bool]
"""Whether somebody may do it with the run, or with what else is the project's."""


def anybody(person: Person, _of: Possessions, _run: Run) -> bool:
    """Signed in or not."""
    return not person.is_of_run


def sends_form(person: Person, of: Possessions, run: Run) -> bool:
    """As `anybody`, from a page of ours."""
    return anybody(person, of, run) and "x-csrftoken" in person.headers


def member_of_any(person: Person, _of: Possessions, _run: Run) -> bool:
    """Whoever is signed in: what is answered is of their projects."""
    return person.has_session and not person.is_of_run


def page(role: Role) -> Need:
    """A session of somebody with this role in the project."""
    return lambda person, of, _: member_of_any(person, of, _) and person.has(role, of.project.slug)


def operator_of_any(person: Person, of: Possessions, run: Run) -> bool:
    """A session of somebody who may launch somewhere."""
    return member_of_any(person, of, run) and person.has_somewhere(Role.OPERATOR)


def superuser(person: Person, of: Possessions, run: Run) -> bool:
    """Machines are the installation's."""
    return member_of_any(person, of, run) and person.is_superuser


def staff(person: Person, of: Possessions, run: Run) -> bool:
    """Whoever may enter the administration site."""
    return member_of_any(person, of, run) and (person.is_staff or person.is_superuser)


def no_staff(person: Person, of: Possessions, run: Run) -> bool:
    """Whoever may still sign in as staff; staff is led to the start page."""
    return anybody(person, of, run) and not staff(person, of, run)


def api(*scopes: Scope) -> Need:
    """A token of the project with these scopes, bound to no other run, or a session; and the role that goes with it."""

    def allows(person: Person, of: Possessions, run: Run) -> bool:
        project = of.project.slug
        if not person.is_known or not all(person.has(ROLE_FOR[scope], project) for scope in scopes):
            return False
        if person.scopes is None:
            return True
        return person.scopes >= set(scopes) and person.project == project and person.run in {"", run.key}

    return allows


def anybody_of_api(person: Person, _of: Possessions, _run: Run) -> bool:
    """What describes the API is no secret; a bad token is said to be one all the same."""
    return person.is_known or person.scopes is None


def api_list(person: Person, _of: Possessions, _run: Run) -> bool:
    """Whatever opens the API and may read: the answer has what they may see."""
    return person.is_known and (person.scopes is None or Scope.READ in person.scopes)


def unbound_list(person: Person, of: Possessions, run: Run) -> bool:
    """As `api_list`, with no token that is bound to a run."""
    return not person.run and api_list(person, of, run)


def unbound(*scopes: Scope) -> Need:
    """As `api`, with no token that is bound to a run: what is asked for goes beyond one run."""
    return lambda person, of, run: not person.run and api(*scopes)(person, of, run)


def nobody(_person: Person, _of: Possessions, _run: Run) -> bool:
    return False


Body = Callable[[Possessions], Any]
"""bytes as they are; a dict of a form; anything else as JSON."""


def nothing(_of: Possessions) -> bytes:
    return b""


@dataclass(frozen=True)
class Call:
    """One method of a route."""

    need: Need
    body: Body = nothing
    """One that would be taken, so that a refusal is one of whoever asks."""
    query: str = ""
    run: Callable[[Possessions], Run] = lambda of: of.run
    headers: Callable[[Possessions], Mapping[str, str]] = lambda of: {}
    writes: str = ""
    """Why a GET may change something; empty: it may not."""
    path: str = ""
    """Of a route that is a regular expression."""
    is_form: bool = False


Rule = Mapping[str, Call]
"""Method -> what it needs."""


def get(need: Need, **facts: Any) -> Rule:
    return {"GET": Call(need, **facts)}


def post(need: Need, body: Body = nothing, **facts: Any) -> Rule:
    return {"POST": Call(need, body, **facts)}


def form(need: Need, body: Callable[[Possessions], dict[str, str]] = lambda of: {}, **facts: Any) -> Rule:
    return {"POST": Call(need, body, is_form=True, **facts)}


def with_file(of: Possessions) -> dict[str, str]:
    """Puts the file of the export back, which a call before may have removed: no rollback does."""
    place = exports.directory(of.export)
    place.mkdir(parents=True, exist_ok=True)
    (place / "manifest.json").write_text("{}")
    return {}


def made_of(of: Possessions) -> dict[str, str]:
    """What makes another version of a dataset of the project."""
    return {"name": of.dataset.dataset.name, "project": of.project.slug}


def recipe_of(of: Possessions) -> Any:
    return made_of(of) | {"recipe": {"runs": [of.run.key]}}


def rows_of(of: Possessions) -> Any:
    return made_of(of) | {"rows": [{"prompt": "p", "completion": "c"}]}


viewer, curator, operator = page(Role.VIEWER), page(Role.CURATOR), page(Role.OPERATOR)
EPOCH = {"headers": lambda of: {"rollyard-epoch": str(of.epoch)}}
SHA = "a" * 64


def weights(of: Possessions) -> dict[str, Any]:
    return {"version": 2, "path": str(of.run.directory / "weights" / "step_2"), "manifest_sha256": SHA, "size_bytes": 1}


def checkpoint(of: Possessions) -> dict[str, Any]:
    return {
        "step": 1,
        "path": str(of.run.directory / "checkpoints" / "step_1"),
        "manifest_sha256": SHA,
        "size_bytes": 1,
    }


def settled(of: Possessions) -> dict[str, Any]:
    return {"token": str(of.lease.token), "problem_key": "p", "rollouts": [story.rollout()]}


def launch(of: Possessions) -> dict[str, str]:
    return {"preset": "external-trainer", "project": of.project.slug}


def launched(of: Possessions) -> dict[str, str]:
    return launch_form("external-trainer") | {"project": of.project.slug}


_COUNT = count()
"""For names that are taken once."""
PAGES: dict[str, Rule] = {
    "healthz": get(anybody),
    "readyz": get(anybody),
    "login/link/<str:token>": get(nobody, writes="signs in whoever has the link, once", path="/login/link/unknown"),
    "favicon.ico": get(anybody),
    "login/": get(anybody) | form(sends_form, lambda of: {"username": "nobody", "password": "x"}),
    "logout/": form(member_of_any),
    "": get(member_of_any),
    "runs/": get(member_of_any),
    "runs/new/": get(operator_of_any) | form(operator, launched, query="preset=external-trainer"),
    "runs/new/check/": form(operator, launched, query="preset=external-trainer"),
    "runs/new/make-model/": form(operator, launched, query="preset=external-trainer"),
    "fleet/": get(member_of_any),
    "models/": get(member_of_any),
    "models/<slug:project>/<str:name>/": get(viewer),
    "models/<slug:project>/<str:name>/remove/": form(operator),
    "environments/": get(member_of_any),
    "environments/<str:name>/": get(member_of_any, path="/environments/reverse_text/"),
    "environments/<str:name>/code/<int:before>/<int:after>/": get(nobody, path="/environments/reverse_text/code/1/2/"),
    "environments/<str:name>/try/": form(
        operator,
        lambda of: {"run": of.run.key, "args": "{}", "split": "train", "problem_index": "0"},
        path="/environments/reverse_text/try/",
    ),
    "evaluations/": get(member_of_any),
    "evaluations/new/": form(
        operator,
        lambda of: {"project": of.project.slug, "target": of.only.name, "environments": "reverse_text"},
    ),
    "evaluations/compare/": get(nobody, query="first=0&second=0"),
    "evaluations/<str:key>/": get(viewer),
    "queues/": get(member_of_any),
    "queues/new/": form(curator, lambda of: {"name": f"queue {next(_COUNT)}", "project": of.project.slug}),
    "queues/<str:queue_key>/": get(viewer),
    "queues/<str:queue_key>/guide/": form(curator),
    "queues/<str:queue_key>/assign/": form(curator),
    "queues/<str:queue_key>/close/": form(curator),
    "queues/<str:queue_key>/bulk/": get(curator, query="verb=exclude")
    | form(curator, lambda of: {"verb": "exclude", "count": "0"}),
    "queues/<str:queue_key>/annotate/": get(curator),
    "queues/<str:queue_key>/take/": form(curator),
    # A turn is one person's: `test_bodies.py` says a word on it.
    "queues/<str:queue_key>/say/": form(nobody),
    "queues/<str:queue_key>/undo/": form(curator),
    "datasets/": get(member_of_any),
    "datasets/new/": form(curator, lambda of: made_of(of) | {"runs": of.run.key}),
    "datasets/<str:dataset_key>/": get(viewer),
    "datasets/<str:dataset_key>/describe/": form(curator),
    "datasets/<str:dataset_key>/difference/": get(viewer),
    "datasets/<str:dataset_key>/<int:version>/": get(viewer),
    "exports/": get(member_of_any),
    "exports/live/": get(member_of_any),
    "exports/new/": form(curator, lambda of: {"version": str(of.dataset.pk), "form": "sft", "file_format": "jsonl"}),
    "exports/<str:export_key>/cancel/": form(curator),
    "exports/<str:export_key>/remove/": form(curator),
    "exports/<str:export_key>/files/<str:file>/": get(curator, headers=with_file),
    "trust/": get(superuser),
    "trust/allow/": form(superuser, lambda of: {"kind": "loss", "name": "losses.another"}),
    "trust/withdraw/": form(superuser, lambda of: {"kind": "loss", "name": "losses.ours"}),
    "runs/<str:key>/": get(viewer),
    "runs/<str:key>/trials/<str:trial>/": get(viewer),
    "runs/<str:key>/live/": get(viewer, query="view=overview"),
    "runs/<str:key>/connect/": get(operator),
    "runs/<str:key>/connect/rotate/": form(operator),
    "runs/<str:key>/connect/renew/": form(operator),
    "runs/<str:key>/stop/": form(operator),
    "runs/<str:key>/rollouts/": get(viewer),
    "runs/<str:key>/samples/": get(member_of_any),
    "runs/<str:key>/config/": get(viewer),
    "runs/<str:key>/events/": get(viewer),
    "runs/<str:key>/cost/": get(viewer),
    "runs/<str:key>/people/": get(viewer),
    "runs/<str:key>/label/": form(curator, lambda of: {"group": of.group.key, "verdict": "accept"}),
    "runs/<str:key>/act/": form(curator, lambda of: {"group": of.group.key, "verb": "exclude"}),
    "runs/<str:key>/acts/<str:act>/undo/": form(curator),
    "runs/<str:key>/groups/<key:group>/": get(viewer),
    "runs/<str:key>/steps/<int:step>/": get(viewer),
    "runs/<str:key>/tokens/<int:number>/": get(viewer),
    "runs/<str:key>/raw-tokens/<int:rollout>/": get(viewer),
}
ADMIN: dict[str, Rule] = {
    "admin/": get(staff),
    "admin/login/": get(no_staff) | form(sends_form, lambda of: {"username": "nobody", "password": "x"}),
    "admin/logout/": form(staff),
    "admin/password_change/": get(staff),
    "admin/password_change/done/": get(staff),
    "admin/autocomplete/": get(staff, query="app_label=rollouts&model_name=membership&field_name=project"),
    "admin/jsi18n/": get(staff),
    "admin/r/<path:content_type_id>/<path:object_id>/": get(nobody, path="/admin/r/1/1/"),
    "admin/auth/user/<id>/password/": get(superuser),
    r"admin/^(?P<app_label>[a-z]+)/$": get(staff, path="/admin/rollouts/"),
    "admin/(?P<url>.*)$": get(nobody, path="/admin/nowhere"),
}
"""Of the administration site, what is no model's: those pages are in `admin.py`."""
RUN = "api/v1/runs/<slug:key>"
QUEUE = "api/v1/queues/<slug:queue_key>"
EXPORT = "api/v1/exports/<slug:export_key>"
DATASET = "api/v1/datasets/<slug:dataset_key>"
API: dict[str, Rule] = {
    "api/v1/schema": get(anybody_of_api),
    "api/v1/docs": get(anybody_of_api),
    "api/v1/models": get(api_list),
    "api/v1/runs": get(api_list) | post(unbound(Scope.LAUNCH), launch),
    RUN: get(api(Scope.READ)),
    f"{RUN}/stop": post(api(Scope.LAUNCH), lambda of: {}),
    f"{RUN}/metrics": get(api(Scope.READ)),
    f"{RUN}/events": get(api(Scope.READ)),
    f"{RUN}/cost": get(api(Scope.READ)),
    f"{RUN}/evaluations": get(api(Scope.READ)),
    # Numbers that nobody has: `test_bodies.py` compares what there is.
    "api/v1/evaluations/compare": get(nobody, query="first=0&second=0"),
    "api/v1/exports": get(api_list)
    | post(unbound(Scope.CURATE), lambda of: {"version": str(of.dataset), "form": "sft", "project": of.project.slug}),
    EXPORT: get(unbound(Scope.READ)),
    # Of one that is done there is nothing to cancel: 409.
    f"{EXPORT}/cancel": post(unbound(Scope.CURATE)),
    f"{EXPORT}/remove": post(unbound(Scope.CURATE)),
    f"{EXPORT}/files/<str:file>": get(unbound(Scope.CURATE), headers=with_file),
    f"{RUN}/labels": get(api(Scope.READ))
    | post(api(Scope.CURATE), lambda of: {"group": of.group.key, "verdict": "accept"}),
    f"{RUN}/acts": get(api(Scope.READ))
    | post(api(Scope.CURATE), lambda of: {"verb": "exclude", "groups": [of.group.key]}),
    f"{RUN}/acts/<slug:act>/undo": post(api(Scope.CURATE)),
    "api/v1/queues": get(unbound_list)
    | post(unbound(Scope.CURATE), lambda of: {"name": f"queue {next(_COUNT)}", "project": of.project.slug}),
    QUEUE: get(unbound(Scope.READ)),
    f"{QUEUE}/guideline": post(unbound(Scope.CURATE), lambda of: {"text": "look closely"}),
    f"{QUEUE}/people": post(unbound(Scope.CURATE), lambda of: {"people": []}),
    f"{QUEUE}/close": post(unbound(Scope.CURATE)),
    f"{QUEUE}/agreement": get(unbound(Scope.READ)),
    f"{QUEUE}/take": post(unbound(Scope.CURATE)),
    # A turn is one person's, and so is a word: `test_bodies.py` and `test_api_queues.py` say and take back some.
    f"{QUEUE}/word": post(nobody, lambda of: {"turn": "0", "verdict": "accept"}),
    f"{QUEUE}/undo": post(nobody),
    "api/v1/datasets": get(api_list) | post(unbound(Scope.CURATE), recipe_of),
    "api/v1/datasets/import": post(unbound(Scope.CURATE), rows_of),
    DATASET: get(unbound(Scope.READ)),
    f"{DATASET}/notes": post(unbound(Scope.CURATE)),
    f"{DATASET}/difference": get(unbound(Scope.READ), query="before=1&after=1"),
    f"{DATASET}/versions/<int:version>": get(unbound(Scope.READ)),
    f"{DATASET}/versions/<int:version>/members": get(unbound(Scope.READ)),
    f"{RUN}/replays": get(api(Scope.READ))
    | post(
        unbound(Scope.LAUNCH, Scope.READ),
        lambda of: {"source": of.run.key, "first_step": 0, "last_step": 0},
        run=lambda of: of.other,
    ),
    f"{RUN}/groups": post(api(Scope.SUBMIT), lambda of: json_of(good())),
    f"{RUN}/sessions": post(api(Scope.PLAY), lambda of: {"problem": {"key": "p", "messages": []}}),
    f"{RUN}/work/claim": post(api(Scope.SUBMIT), lambda of: {"holder": "x"}, run=lambda of: of.other),
    f"{RUN}/work/renew": post(api(Scope.SUBMIT), lambda of: {"tokens": [str(of.lease.token)]}),
    f"{RUN}/work/settle": post(api(Scope.SUBMIT), settled),
    f"{RUN}/trainer": post(api(Scope.TRAIN), lambda of: {}),
    f"{RUN}/trainer/finish": post(api(Scope.TRAIN), **EPOCH),
    f"{RUN}/batches/<int:step>": get(api(Scope.TRAIN), writes="a fetched batch is delivered", **EPOCH),
    f"{RUN}/steps/<int:step>": post(api(Scope.TRAIN), lambda of: {"metrics": {"loss/mean": 2.0}}, **EPOCH),
    f"{RUN}/steps/<int:step>/token-values": get(api(Scope.READ)),
    f"{RUN}/token-values/<int:number>": get(api(Scope.READ)),
    f"{RUN}/policy-versions": post(api(Scope.TRAIN), weights, **EPOCH),
    f"{RUN}/checkpoints": post(api(Scope.TRAIN), checkpoint, **EPOCH),
    r"api/v1/^(?P<path>[\s\S]*)$": get(nobody, path="/api/v1/nowhere"),
}


@dataclass(frozen=True)
class AtroposCall:
    """A call under an address. Whoever knows a good one may make it, and nobody else."""

    body: Any = None
    writes: str = ""
    """Why a GET may change something beyond noting the address's use."""


ATROPOS: dict[tuple[str, str], AtroposCall] = {
    ("", "GET"): AtroposCall(),
    ("register", "POST"): AtroposCall(registration()),
    ("register-env", "POST"): AtroposCall(introduction()),
    ("disconnect-env", "POST"): AtroposCall({"env_id": 0}),
    ("wandb_info", "GET"): AtroposCall(),
    ("info", "GET"): AtroposCall(),
    ("batch", "GET"): AtroposCall(writes="hands out a batch, which is how the protocol has it"),
    ("latest_example", "GET"): AtroposCall(),
    ("scored_data", "POST"): AtroposCall(item()),
    ("scored_data_list", "POST"): AtroposCall([item()]),
    ("status", "GET"): AtroposCall(),
    ("status-env", "GET"): AtroposCall({"env_id": 0}, writes="is an environment's sign of life"),
    ("reset_data", "GET"): AtroposCall(writes="resets at an address for old clients"),
    ("reset_data", "POST"): AtroposCall(),
    ("openapi.json", "GET"): AtroposCall(),
    ("docs", "GET"): AtroposCall(),
    ("redoc", "GET"): AtroposCall(),
}
