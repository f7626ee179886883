"""Which files a run may be given: naming one is reading it."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from controlplane import apps
from rollouts.errors import Invalid
from rollouts.models import Run
from rollouts.services import model_checks
from rollouts.services.runs import launches, places
from tests.factories import make_project, make_run
from tests.model_files import make_model, write_model
from trainers.config import resolve
from workers.fleet import hub

pytestmark = pytest.mark.django_db


def faults(path: Path | str, key: str = "model.path", **options: Any) -> dict[str, str]:
    """What is said of a config that names this path."""
    preset = "reverse-text-sft" if key.startswith("data") else "reverse-text-rl"
    rank = {"model.lora.rank": 8} if "lora" in key else {}
    config = resolve(preset, overrides={key: str(path), **rank}).config
    given = {"project": make_project(), "readable": Run.objects.filter(project=make_project()), **options}
    try:
        places.check(config, **given)
    except Invalid as refusal:
        return refusal.fields
    return {}


def environment_faults(data: Path | str) -> dict[str, str]:
    """What is said of an environment that is to read this data set."""
    environments = [{"name": "reverse_text"}, {"name": "gsm8k", "args": {"data": str(data)}}]
    config = resolve("reverse-text-rl", overrides={"environments": environments}).config
    try:
        places.check(config, project=make_project(), readable=Run.objects.none())
    except Invalid as refusal:
        return refusal.fields
    return {}


def test_the_data_set_of_an_environment_is_looked_at_like_every_other_place(tmp_path: Path) -> None:
    for data in (settings.HOME.path / "secret_key", make_run().directory, "/etc", "here/rows.jsonl"):
        assert list(environment_faults(data)) == ["environments.1.args.data"], data
    assert environment_faults(tmp_path) == {}
    assert environment_faults("openai/gsm8k") == {}


def test_data_that_is_not_there_is_refused_at_the_launch_with_what_to_do(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    words = f"there is no {nowhere} on this machine: put the data there, or name it as the hub does."
    assert environment_faults(nowhere) == {"environments.1.args.data": words}
    assert faults(nowhere, "data.path") == {"data.path": words}


def test_the_data_set_of_an_environment_is_fetched_from_the_hub_before_anything_starts() -> None:
    environments = [{"name": "gsm8k", "args": {"data": "openai/gsm8k"}}]
    config = resolve("reverse-text-rl", overrides={"environments": environments}).config
    assert ("dataset", "openai/gsm8k") in hub.names_of(config)


@pytest.mark.parametrize("key", ["model.path", "model.lora.path", "data.path"])
def test_the_installations_own_files_are_refused_at_the_key(key: str) -> None:
    home = settings.HOME.path
    for path in (home, home / "secret_key", home / "postgres", home.parent, Path("/"), home / "models" / ".." / "logs"):
        assert list(faults(path, key)) == [key], path


def test_a_link_to_them_is_no_way_around(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(settings.HOME.path / "secret_key")
    assert "belongs to the installation" in faults(tmp_path / "link")["model.path"]


def test_a_link_to_files_of_ones_own_is_refused_because_it_can_be_turned_elsewhere(tmp_path: Path) -> None:
    run = make_run()
    run.directory.mkdir(parents=True)
    (tmp_path / "link").symlink_to(run.directory)
    (run.directory / "link").symlink_to(tmp_path)
    assert "is a way around" in faults(tmp_path / "link")["model.path"]
    assert "is a link" in faults(run.directory / "link" / "weights")["model.path"]


@pytest.mark.skipif(os.geteuid() != 0, reason="ONLY ROOT gives runs another account, to which something may be closed")
@pytest.mark.parametrize("key", ["model.path", "model.lora.path", "data.path"])
def test_what_is_closed_to_the_account_of_runs_is_refused_with_what_to_do(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = write_model(tmp_path / "closed" / "model")
    model = make_model(make_project(), "closed", closed)
    assert "cannot read" in apps.closed_to_runs(closed)
    for each in (closed, *closed.iterdir()):
        each.chmod(0o755)
    closed.parent.chmod(0o700)
    monkeypatch.setattr(model_checks, "closed_to_runs", apps.closed_to_runs)
    assert re.search(r"lies in .*, which is closed .*: copy it elsewhere", faults(closed, key)[key])
    assert ("there is no" in str(faults(tmp_path / "missing", key))) == key.startswith("data")
    named = resolve("reverse-text-rl", overrides={"model.path": model.name})
    with pytest.raises(Invalid) as refusal:
        launches.find_start(make_project(), named, forkable=Run.objects.none())
    assert "which is closed" in refusal.value.fields["model.path"]


@pytest.mark.parametrize("key", ["model.lora.path", "data.path"])
@pytest.mark.parametrize("named", ["./model", "../" * 20 + "var/lib/runs", "a/b/c", "data.jsonl", "~/model"])
def test_a_relative_path_is_refused_because_nobody_knows_where_it_starts(key: str, named: str) -> None:
    assert "write the absolute path" in faults(named, key)[key]


def test_the_dots_of_an_absolute_path_have_to_go(tmp_path: Path) -> None:
    assert "without .." in faults(f"{tmp_path}/a/../b")["model.path"]


def test_a_name_that_the_hub_may_have_is_no_path_even_where_a_file_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret_key").write_text("secret")
    assert faults("secret_key", "data.path") == {}
    assert tmp_path not in [place.resolve() for place in hub.places("secret_key", "dataset")]
    assert hub.places("secret_key", "dataset") == [hub.cache() / "datasets--secret_key"]


@pytest.mark.parametrize(
    "named", ["/run/user/1000", "/proc/self/environ", "/etc/shadow", "/dev/shm", "/tmp", "/home/somebody/.ssh/id_rsa"]
)
def test_what_holds_keys_and_sockets_is_shown_to_no_run(named: str) -> None:
    assert list(faults(named, "data.path")) == ["data.path"]


def test_a_pipe_is_no_data(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "neither a file nor a directory" in faults(tmp_path / "pipe", "data.path")["data.path"]


def test_what_the_hub_left_in_its_cache_may_be_read() -> None:
    assert faults("/home/somebody/.cache/huggingface/hub/models--a--b/snapshots/c") == {}


def test_files_of_ones_own_runs_may_be_read_and_those_of_others_not() -> None:
    own, foreign = make_run(), make_run(project=make_project("foreign"))
    assert faults(own.directory / "weights" / "step_3") == {}
    assert "not yours" in faults(foreign.directory / "weights" / "step_3")["model.path"]


def test_what_is_registered_in_the_project_or_lies_elsewhere_may_be_read(tmp_path: Path) -> None:
    model = make_model(make_project(), "mine", settings.HOME.path / "somewhere" / "mine")
    assert faults(Path(model.source)) == {}
    assert list(faults(Path(model.source), project=make_project("foreign"))) == ["model.path"]
    assert faults(tmp_path / "models" / "mine") == {}
    assert faults(settings.HOME.path / "models" / "mine") == {}
