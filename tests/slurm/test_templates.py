"""What jobs are given to SLURM by, read from the file of whoever keeps the installation."""

from pathlib import Path

import pytest

from workers.launchers.base import JobSize
from workers.slurm import templates
from workers.slurm.templates import Template, TemplateError

FILE = """
[templates.default]
partition = "cpu"
[templates.large]
partition = "gpu"
gres = "gpu:h100"
hours = 12
projects = ["lab", "other"]
modules = ["cuda/12.4"]
environment = { NCCL_DEBUG = "WARN" }
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "cluster.toml").write_text(FILE)
    return tmp_path


def test_without_a_file_there_is_a_template_that_says_nothing(tmp_path: Path) -> None:
    assert templates.read(tmp_path, "default") == Template()
    with pytest.raises(
        TemplateError, match=r"there is no template large for jobs in .*cluster.toml; there are: default"
    ):
        templates.read(tmp_path, "large")


def test_options_say_what_the_run_asks_for_and_else_what_the_template_does(home: Path, tmp_path: Path) -> None:
    template = templates.read(home, "large")
    words = templates.options(template, JobSize(cores=4, gpus=2, nodes=3), "token", tmp_path)
    assert {"--cpus-per-task=4", "--gres=gpu:h100:2", "--nodes=3", "--time=720", "--no-requeue"} <= set(words)
    assert "--job-name=rollyard-token" in words
    words = templates.options(template, JobSize(hours=1.5, memory_gib=0.5), "token", tmp_path)
    assert {"--cpus-per-task=1", "--time=90", "--mem=512M"} <= set(words)
    assert not any(word.startswith("--gres") for word in words)
    assert "--cpus-per-task=8" in templates.options(template, JobSize(gpus=8), "token", tmp_path), "one for each GPU"


def test_script_is_the_agent_on_each_node_and_quotes_all_that_it_is_given(home: Path) -> None:
    template = templates.read(home, "large").model_copy(update={"environment": {"A": "x'; rm -rf /"}, "python": "/p y"})
    agent = templates.agent(template, Path("/a b"))
    lines = templates.script(template, JobSize(nodes=2), agent).splitlines()
    assert "module load cuda/12.4" in lines
    assert """export A='x'"'"'; rm -rf /'""" in lines
    spread = "srun --export=ALL --kill-on-bad-exit=1 --wait=0 --ntasks-per-node=1"
    assert lines[-1] == f"exec {spread} --cpus-per-task=1 '/p y' -m workers.agent '/a b' ''"
    alone = templates.script(template.model_copy(update={"exclusive": True}), JobSize(gpus=8, nodes=2), agent)
    assert "--cpus-per-task" not in alone
    assert "--cpu-bind=none" in alone
    assert "--cpus-per-task=6 " in templates.script(template, JobSize(cores=6, nodes=2), agent)
    assert templates.script(template, JobSize(), agent, ignored=["USR2"]).splitlines()[1] == "trap '' USR2"
    assert not any(line.startswith("trap") for line in lines)
    assert templates.script(template, JobSize(), agent).splitlines()[-1].startswith("exec '/p y' -m workers.agent")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("templates = 3", "templates are tables"),
        ("[template.default]", "has template, which means nothing"),
        ("[templates.default", "cannot be read"),
        ("[templates.default]\nhours = -1", "hours: Input should be greater than or equal to 0"),
        ('[templates.default]\nmodules = ["a\\nb"]', "a module is named in one line"),
        ('[templates.default]\npartition = "a\\nb"', "partition: String should match pattern"),
    ],
)
def test_file_that_is_wrong_says_where(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "cluster.toml").write_text(content)
    with pytest.raises(TemplateError, match=said):
        templates.read(tmp_path, "default")


def test_pools_of_workers_are_read_beside_the_templates(tmp_path: Path) -> None:
    assert templates.worker_pools(tmp_path) == {}
    (tmp_path / "cluster.toml").write_text("[workers.few]\nminimum = 2\n[workers.many]\nmaximum = 9\ncores = 4\n")
    pools = templates.worker_pools(tmp_path)
    assert [(name, pool.minimum, pool.most, pool.need.cores) for name, pool in pools.items()] == [
        ("few", 2, 2, 0),
        ("many", 0, 9, 4),
    ]
    assert templates.names(tmp_path) == ["default"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[workers.few]\nminimum = 3\nmaximum = 2", "the pool few in .* maximum 2 is below minimum 3"),
        ("[workers.few]\nminimal = 3", "minimal: Extra inputs are not permitted"),
        ('[workers."a b"]', "'a b' names no pool of workers"),
        ("[pools.few]", "has pools, which means nothing: write .*workers.NAME"),
    ],
)
def test_pool_that_is_wrong_says_where(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "cluster.toml").write_text(content)
    with pytest.raises(TemplateError, match=said):
        templates.worker_pools(tmp_path)
