"""Code from elsewhere: off until an administrator allows it by name, at every door, and never executed to find out."""

import json
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from environments import registry
from rollouts.errors import Conflict, Invalid, NotFound
from rollouts.models import Role, Run, Trust
from rollouts.services import trust
from rollouts.services.runs import launches
from tests.factories import make_project, make_user
from tests.model_files import write_model
from tests.rollouts.api import Api, make_token, problem
from trainers.config import resolve

pytestmark = pytest.mark.django_db
PRESET = "reverse-text-rl"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model that writes a file when somebody imports the code that it brings along."""
    directory = tmp_path / "hostile"
    write_model(directory)
    config = json.loads((directory / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "hostile.HostileConfig"}
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "hostile.py").write_text(f"open({str(tmp_path / 'marker')!r}, 'w')")
    return directory


@pytest.fixture
def guest(monkeypatch: pytest.MonkeyPatch) -> str:
    """An environment of another package, whose module cannot even be imported."""
    monkeypatch.setitem(registry.places(), "guest", "guest_environment_that_is_not_here:Guest")
    return "guest"


def launch(**overrides: Any) -> Run:
    return launches.launch(
        project=make_project(),
        user=None,
        resolved=resolve(PRESET, overrides={key.replace("__", "."): value for key, value in overrides.items()}),
        actor="user:ada",
        forkable=Run.objects.filter(project=make_project()),
    )


def test_each_kind_of_code_is_refused_at_its_field_with_the_fix(model: Path, guest: str, tmp_path: Path) -> None:
    loss = {"type": "custom", "path": "my_losses.mine"}
    with pytest.raises(Invalid) as refusal:
        launch(
            model__path=str(model),
            model__trust_remote_code=True,
            algorithm__loss=loss,
            environments=[{"name": "reverse_text"}, {"name": guest}],
        )
    fields = refusal.value.fields
    assert sorted(fields) == ["algorithm.loss.path", "environments.1.name", "model.trust_remote_code"]
    assert f"rollyard trust allow remote_code {model}" in fields["model.trust_remote_code"]
    assert "rollyard trust allow loss my_losses.mine" in fields["algorithm.loss.path"]
    assert "rollyard trust allow environment guest" in fields["environments.1.name"]
    assert not Run.objects.exists()
    assert not (tmp_path / "marker").exists()


def test_a_reward_of_another_package_is_code_from_elsewhere() -> None:
    parts = [{"name": "exact"}, {"name": "theirs"}]
    args = {"data": "org/rows", "prompt": "q", "rewards": parts}
    environments = [{"name": "dataset", "python": "mine", "args": args}]
    config = resolve(PRESET, overrides={"environments": environments}).config
    (need,) = trust.missing(config)
    assert (need.field, need.name) == ("environments.0.args.rewards", "reward:theirs")
    trust.allow("environment", "reward:theirs", actor="cli:root")
    assert trust.missing(config) == []
    foreign = [{"name": "pack.words:Words", "python": "mine", "args": {"rewards": parts}}]
    needs = trust.missing(resolve(PRESET, overrides={"environments": foreign}).config)
    assert [need.name for need in needs] == ["pack.words:Words"], "what they call their own arguments is theirs"


def test_an_argument_of_vllm_that_may_do_more_than_tune_is_allowed_by_name(model: Path) -> None:
    words = {"model__path": str(model), "inference__arguments": {"block-size": 32, "middleware": "theirs.Middleware"}}
    with pytest.raises(Invalid) as refusal:
        launch(**words)
    assert list(refusal.value.fields) == ["inference.arguments.middleware"]
    assert "rollyard trust allow argument middleware" in refusal.value.fields["inference.arguments.middleware"]
    trust.allow("argument", "middleware", actor="user:root")
    run = launch(**words)
    trust.withdraw("argument", "middleware", actor="user:root")
    assert [need.name for need in trust.missing_of(run)] == ["middleware"]


@pytest.mark.parametrize(
    "name", ["block-size", "uds", "worker-extension-c", "tensor-parallel-size", "a.b", "--host", ""]
)
def test_what_needs_no_permission_and_what_no_run_may_have_cannot_be_allowed(name: str) -> None:
    with pytest.raises(Invalid):
        trust.allow("argument", name, actor="user:root")


def test_what_is_allowed_by_name_launches_and_what_is_withdrawn_does_not(model: Path) -> None:
    words: dict[str, Any] = {"model__path": str(model), "model__trust_remote_code": True}
    trust.allow("remote_code", str(model), actor="user:root")
    run = launch(**words)
    assert trust.missing_of(run) == []
    trust.withdraw("remote_code", str(model), actor="user:root")
    assert [need.field for need in trust.missing_of(run)] == ["model.trust_remote_code"]
    with pytest.raises(Invalid):
        launch(**words)
    [row] = Trust.objects.all()
    assert (row.allowed_actor, row.withdrawn_actor) == ("user:root", "user:root")


def test_a_name_covers_its_kind_and_nothing_else(model: Path) -> None:
    trust.allow("environment", str(model), actor="user:root")
    with pytest.raises(Invalid):
        launch(model__path=str(model), model__trust_remote_code=True)


def test_what_is_allowed_twice_or_never_was_is_refused() -> None:
    trust.allow("loss", "a.b", actor="user:root")
    with pytest.raises(Conflict):
        trust.allow("loss", "a.b", actor="user:root")
    with pytest.raises(NotFound):
        trust.withdraw("loss", "a.c", actor="user:root")
    for kind, name in [("loss", "undotted"), ("remote_code", "./mine"), ("environment", "reverse_text")]:
        with pytest.raises(Invalid):
            trust.allow(kind, name, actor="user:root")
    for kind, name in [("shell", "a.b"), ("loss", ""), ("loss", "a\nb"), ("loss", "a\u202eb"), ("loss", "x" * 501)]:
        with pytest.raises(Invalid):
            trust.allow(kind, name, actor="user:root")


def test_a_directory_is_the_same_with_a_slash_at_its_end(model: Path) -> None:
    trust.allow("remote_code", f"{model}/", actor="user:root")
    launch(model__path=str(model), model__trust_remote_code=True)


def test_a_fork_of_a_run_whose_model_brings_code_needs_its_permission_too(model: Path) -> None:
    trust.allow("remote_code", str(model), actor="user:root")
    source = launch(model__path=str(model), model__trust_remote_code=True)
    plain = resolve(PRESET, overrides={"model.path": "/nowhere"}).config
    assert trust.missing(plain, source=source) == []
    trust.withdraw("remote_code", str(model), actor="user:root")
    [need] = trust.missing(plain, source=source)
    assert (need.kind, need.name) == ("remote_code", str(model))


def test_a_token_that_may_launch_is_refused_too(model: Path, tmp_path: Path) -> None:
    overrides = {"model.path": str(model), "model.trust_remote_code": True}
    answer = Api(make_token()).post("runs", {"preset": PRESET, "overrides": overrides})
    fields = problem(answer, 422, "untrusted")["fields"]
    assert "trust allow" in fields["model.trust_remote_code"]
    assert not (tmp_path / "marker").exists()


def test_only_an_administrator_of_the_installation_opens_the_page(client: Client) -> None:
    admin = User.objects.create_superuser("root")
    of_project = make_user("pat", role=Role.ADMIN)
    of_project.is_staff = True
    of_project.save()
    for user, status in ((of_project, 403), (admin, 200)):
        client.force_login(user)
        assert client.get("/trust/").status_code == status
    client.force_login(of_project)
    assert client.post("/trust/allow/", {"kind": "loss", "name": "a.b"}).status_code == 403
    assert not Trust.objects.exists()
    client.force_login(admin)
    assert client.get("/trust/allow/").status_code == 405
    assert client.post("/trust/allow/", {"kind": "loss", "name": "a.b"}).status_code == 302
    assert [(row.name, row.allowed_actor) for row in Trust.objects.all()] == [("a.b", "user:root")]
    page = client.get("/trust/").content.decode()
    assert "a.b" in page
    assert client.post("/trust/withdraw/", {"kind": "loss", "name": "a.b"}).status_code == 302
    assert not Trust.objects.filter(withdrawn_at__isnull=True).exists()
