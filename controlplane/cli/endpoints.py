"""Commands about endpoints: which models of others runs and evaluations may ask, and whether they answer."""

import asyncio
import time
from typing import Annotated, Any

import typer

from controlplane.cli.terminal import Json, actor, complaint, connect, fail, list_rows, print_json, project_of, say

_app = typer.Typer(no_args_is_help=True, help="Models behind the OpenAI chat API that runs and evaluations may ask.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="What configs call it.")]


def register(app: typer.Typer) -> None:
    """Add the commands to a program."""
    app.add_typer(_app, name="endpoints")


@_app.command("list")
def list_endpoints(
    removed: Annotated[bool, typer.Option("--removed", help="Those that were removed too.")] = False,
    as_json: Json = False,
) -> None:
    """List the endpoints. No key is shown: only where it is found."""
    connect()
    from rollouts.models import Endpoint

    found = Endpoint.objects.prefetch_related("projects")
    rows = [_row(row) for row in (found if removed else found.filter(removed_at__isnull=True))]
    list_rows(rows, _line, "There is no endpoint yet: `rollyard endpoints add NAME` adds one.", as_json)


@_app.command("add")
def add(
    name: Name,
    base_url: Annotated[str, typer.Option(metavar="URL", help="Up to /chat/completions, such as https://HOST/v1.")],
    model: Annotated[str, typer.Option(help="What the server calls the model.")],
    key: Annotated[
        str, typer.Option(metavar="REFERENCE", help="env:NAME or file:NAME, never the key itself; none: no key.")
    ] = "",
    project: Annotated[list[str] | None, typer.Option(help="A project that may ask it; may be repeated.")] = None,
    all_projects: Annotated[bool, typer.Option("--all-projects", help="Every project may ask it.")] = False,
    max_in_flight: Annotated[int, typer.Option(help="Requests that one driver has there at a time.")] = 8,
    timeout_s: Annotated[int, typer.Option(help="Seconds for one request.")] = 60,
    note: Annotated[str, typer.Option(help="For people.")] = "",
    as_json: Json = False,
) -> None:
    """Let runs and evaluations ask a model. It is never changed afterwards: remove it, and add another."""
    connect()
    from rollouts.errors import ControlPlaneError
    from rollouts.services import endpoints

    try:
        row = endpoints.add(
            name=name,
            base_url=base_url,
            model=model,
            key_reference=key,
            max_in_flight=max_in_flight,
            timeout_s=timeout_s,
            projects=[project_of(slug) for slug in project or []],
            is_for_all=all_projects,
            note=note,
            actor=actor(),
        )
    except ControlPlaneError as error:
        fail(complaint(error))
    if as_json:
        print_json(_row(row))
    else:
        say(f"endpoint {name} may be asked; see whether it answers: rollyard endpoints check {name}")


@_app.command("remove")
def remove(name: Name, as_json: Json = False) -> None:
    """Let nobody ask it any more."""
    connect()
    from rollouts.errors import ControlPlaneError
    from rollouts.services import endpoints

    try:
        row = endpoints.remove(name, actor=actor())
    except ControlPlaneError as error:
        fail(complaint(error))
    print_json(_row(row)) if as_json else say(f"endpoint {name} may not be asked any more")


@_app.command("check")
def check(name: Name, as_json: Json = False) -> None:
    """Ask it for one word, with the key as this shell finds it."""
    connect()
    from django.conf import settings

    from environments.endpoints import keys
    from rollouts.models import Endpoint
    from rollouts.services import endpoints

    row = Endpoint.objects.filter(name=name, removed_at__isnull=True).first()
    if row is None:
        fail(f"there is no endpoint {name}; `rollyard endpoints list` names those that there are")
    try:
        secret = keys.read(row.key_reference, settings.HOME.path)
    except keys.KeyMissing as error:
        fail(str(error))
    answered = asyncio.run(_ask(endpoints.as_target(row), secret))
    if isinstance(answered, str):
        fail(answered)
    if as_json:
        print_json({"name": name, **answered})
    else:
        said = f"{answered['prompt_tokens']} tokens in, {answered['completion_tokens']} out"
        say(f"{name} answers in {answered['seconds']} s ({said})")


async def _ask(endpoint: Any, key: str) -> dict[str, Any] | str:
    """What it took, or why it gave no answer."""
    from environments.config import SamplingParams
    from environments.endpoints.client import EndpointClient
    from environments.errors import EndpointError
    from environments.types import Message

    client, began = EndpointClient(endpoint, key), time.monotonic()
    try:
        hello = [Message(role="user", content="Say: yes")]
        answer = await client.chat(hello, sampling=SamplingParams(temperature=0, max_tokens=16))
    except EndpointError as error:
        return str(error)
    finally:
        await client.aclose()
    seconds = round(time.monotonic() - began, 2)
    return {
        "seconds": seconds,
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
    }


def _line(row: dict[str, Any]) -> str:
    who = "every project" if row["is_for_all"] else ", ".join(row["projects"])
    until = f", until {row['removed_at']} ({row['removed_by']})" if row["removed_at"] else ""
    return f"{row['name']:<20} {row['model']:<28} {row['base_url']}  {who}; {row['added_by']}{until}"


def _row(row: Any) -> dict[str, Any]:
    return {
        "name": row.name,
        "base_url": row.base_url,
        "model": row.model,
        "key_reference": row.key_reference,
        "max_in_flight": row.max_in_flight,
        "timeout_s": row.timeout_s,
        "is_for_all": row.is_for_all,
        "projects": sorted(project.slug for project in row.projects.all()),
        "note": row.note,
        "added_by": row.added_actor,
        "added_at": row.added_at.isoformat(timespec="seconds"),
        "removed_by": row.removed_actor,
        "removed_at": row.removed_at.isoformat(timespec="seconds") if row.removed_at else None,
    }
