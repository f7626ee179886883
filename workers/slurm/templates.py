"""Templates of jobs, and how many workers are to be jobs: `cluster.toml` in the home, which whoever keeps the
installation writes.

    [templates.default]
    partition = "gpu"
    account = "lab"
    hours = 12
    modules = ["cuda/12.4"]
    interface = "ib0"
    environment = { NCCL_IB_HCA = "mlx5" }

    [workers.players]
    template = "default"
    minimum = 2
    maximum = 16

They are no rows: what they name runs on the nodes outside of any sandbox and as this account, so who may only sign in
must not write them. A launch chooses one by its name and says how much it wants of a node.
"""

import os
import re
import shlex
import sys
import tomllib
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from workers.launchers.base import JobSize
from workers.slurm.queue import name_of

FILE = "cluster.toml"
JOB_LOG = "job.txt"
"""What SLURM and the script of a job write, before what runs in it has a log of its own."""
WARNING_S = 60
"""Before its time is over a job is told, and ends what it runs while that can still save."""
_POOL = re.compile(r"^[a-z0-9][a-z0-9-]{0,31}\Z")
_VARIABLE = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
_SPREAD = ("srun", "--export=ALL", "--kill-on-bad-exit=1", "--wait=0", "--ntasks-per-node=1")
"""Before what is to run on every node: when one of them fails, the others are ended, and else waited for. With all that
the script exports: else srun gives on what sbatch was told to, our secrets alone."""
_LINE = r"^[^\x00-\x1f\x7f]*$"
_Table = TypeVar("_Table", bound=BaseModel)


class TemplateError(Exception):
    """There is no such template, or the file of templates is wrong; the message says which and what to do."""


class Template(BaseModel):
    """How the jobs of a run are given to SLURM. What is not said, SLURM's own defaults say."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    partition: str = Field(default="", pattern=_LINE)
    account: str = Field(default="", pattern=_LINE)
    qos: str = Field(default="", pattern=_LINE)
    constraint: str = Field(default="", pattern=_LINE)
    gres: str = Field(default="gpu", pattern=_LINE)
    """What SLURM calls a GPU, such as `gpu:h100`; a job asks for so many of it as it has processes on GPUs."""
    cores: int = Field(default=1, ge=1)
    """Of a job that does not say."""
    memory_gib: float = Field(default=0.0, ge=0)
    """Of a job that does not say; 0: what SLURM gives."""
    hours: float = Field(default=0.0, ge=0)
    """Of a job that does not say; 0: what SLURM gives."""
    exclusive: bool = False
    """Whether a job has its node to itself."""
    modules: list[str] = []
    """Loaded before anything starts."""
    environment: dict[str, str] = {}
    """Variables of the agent, which passes on what tunes programs (as `NCCL_`), and of nothing that is secret."""
    python: str = Field(default="", pattern=_LINE)
    """The interpreter on the nodes; the one of the control plane when it is not said."""
    projects: list[str] = []
    """Whose runs may be given to SLURM by it, by their slugs; empty: everybody's."""
    shared: bool = True
    """Whether nodes see the home under its path. If not, files go to them and back by way of their agents."""
    interface: str = Field(default="", pattern=_LINE)
    """The network interface of a node on which its door listens, and over which the ranks of several nodes talk; that
    of the way to the control plane when it is not said."""

    @field_validator("modules")
    @classmethod
    def _lines(cls, modules: list[str]) -> list[str]:
        if any(not re.match(_LINE, name) or not name for name in modules):
            raise ValueError("a module is named in one line")
        return modules

    @field_validator("environment")
    @classmethod
    def _variables(cls, environment: dict[str, str]) -> dict[str, str]:
        if wrong := next((name for name in environment if not _VARIABLE.match(name)), None):
            raise ValueError(f"{wrong!r} is no name of a variable")
        if "\0" in "".join(environment.values()):
            raise ValueError("a variable holds no NUL")
        return environment


class WorkerPool(BaseModel):
    """Workers that are jobs of one kind, and between which numbers there are of them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    template: str = "default"
    minimum: int = Field(default=0, ge=0, le=1000)
    """There are as many whether there is work or not."""
    maximum: int = Field(default=0, ge=0, le=1000)
    """There may be as many while runs could begin more than is played; 0: as many as `minimum`."""
    cores: int = Field(default=0, ge=0)
    """Of each; so with memory and hours, 0: as the template says."""
    memory_gib: float = Field(default=0.0, ge=0)
    hours: float = Field(default=0.0, ge=0)
    concurrency: int = Field(default=8, ge=1, le=1000)
    """Runs that each is told of side by side."""
    connections: int = Field(default=4, ge=1, le=100)
    """To the database, of each at most: the embedded one takes 120 of all of us together."""

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        if self.maximum and self.maximum < self.minimum:
            raise ValueError(f"maximum {self.maximum} is below minimum {self.minimum}")
        return self

    @property
    def most(self) -> int:
        return self.maximum or self.minimum

    @property
    def need(self) -> JobSize:
        """What the job of each wants of its node."""
        return JobSize(cores=self.cores, memory_gib=self.memory_gib, hours=self.hours)


def read(home: Path, name: str, *, project: str | None = None) -> Template:
    """The template of this name, if runs of the project may use it; without a file there is one called `default`.
    Raises TemplateError."""
    templates = {"default": {}, **_tables(home, "templates")}
    if name not in templates:
        raise TemplateError(f"there is no template {name} for jobs in {home / FILE}; there are: {', '.join(templates)}")
    found = _valid(Template, templates[name], f"the template {name} in {home / FILE}")
    if project is not None and found.projects and project not in found.projects:
        raise TemplateError(f"the template {name} is for runs of other projects: {home / FILE} says of which")
    return found


def names(home: Path) -> list[str]:
    """Those of the templates that there are. Raises TemplateError."""
    return list({"default": {}, **_tables(home, "templates")})


def worker_pools(home: Path) -> dict[str, WorkerPool]:
    """The pools of workers by their names; none without a file. Raises TemplateError."""
    pools = _tables(home, "workers")
    if wrong := next((name for name in pools if not _POOL.match(name)), None):
        raise TemplateError(f"{home / FILE}: {wrong!r} names no pool of workers: up to 32 of a-z, 0-9 and hyphens do")
    return {name: _valid(WorkerPool, pool, f"the pool {name} in {home / FILE}") for name, pool in pools.items()}


def _tables(home: Path, kind: str) -> Mapping[str, Any]:
    file = home / FILE
    try:
        content = tomllib.loads(file.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise TemplateError(f"{file} cannot be read: {error}") from None
    if unknown := set(content) - {"templates", "workers"}:
        written = "[templates.NAME] and [workers.NAME]"
        raise TemplateError(f"{file} has {', '.join(sorted(unknown))}, which means nothing: write {written}")
    found = content.get(kind, {})
    if not isinstance(found, Mapping):
        raise TemplateError(f"{file}: {kind} are tables: write [{kind}.NAME]")
    return found


def _valid(kind: type[_Table], table: object, what: str) -> _Table:
    try:
        return kind.model_validate(table, strict=False)
    except ValidationError as error:
        told = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise TemplateError(f"{what} is wrong: {told}") from None


def options(template: Template, need: JobSize, token: str, output: Path, avoids: Sequence[str] = ()) -> list[str]:
    """The words of `sbatch` for a job that writes to a file and is not to have the nodes that it avoids; no shell reads
    them."""
    hours, memory_gib = need.hours or template.hours, need.memory_gib or template.memory_gib
    said = {
        "job-name": name_of(token),
        # A job that is given back starts anew, as another replica, without the two minutes that SLURM holds it.
        "no-requeue": None,
        "nodes": str(need.nodes),
        "ntasks": str(need.nodes),
        "ntasks-per-node": "1",
        "cpus-per-task": str(cores_of(template, need)),
        "nice": str(need.nice) if need.nice else "",
        "signal": f"B:USR1@{WARNING_S}",
        "chdir": "/",
        "output": _as_pattern(output) if template.shared else os.devnull,
        "open-mode": "append",
        "partition": template.partition,
        "account": template.account,
        "qos": template.qos,
        "constraint": template.constraint,
        "exclude": ",".join(avoids),
        "gres": f"{template.gres}:{need.gpus}" if need.gpus else "",
        "mem": f"{max(1, round(memory_gib * 1024))}M" if memory_gib else "",
        "time": str(max(1, round(hours * 60))) if hours else "",
    }
    words = [f"--{key}" if value is None else f"--{key}={value}" for key, value in said.items() if value != ""]
    return [*words, "--exclusive"] if template.exclusive else words


def _as_pattern(file: Path) -> str:
    """A name in which SLURM puts nothing in place of what follows a %."""
    return str(file).replace("\\", "\\\\").replace("%", "%%")


def fresh_token() -> str:
    """A token of a job that is no replica's."""
    return str(uuid.uuid4())


def agent(template: Template, directory: Path) -> list[str]:
    """What of ours a job of a replica runs, after the interpreter."""
    return ["-m", "workers.agent", str(directory), template.interface]


def cores_of(template: Template, need: JobSize) -> int:
    """How many a job has on each of its nodes: where nobody says, one for each GPU, and one without."""
    return need.cores or max(template.cores, need.gpus)


def _spread(template: Template, need: JobSize) -> list[str]:
    # A step does not take over how many cores its job has, and would have one; of nodes of its own it has all, unbound.
    return [*_SPREAD, "--cpu-bind=none" if template.exclusive else f"--cpus-per-task={cores_of(template, need)}"]


def script(template: Template, need: JobSize, words: Sequence[str], *, ignored: Sequence[str] = ()) -> str:
    """A job that runs Python with these words on each of its nodes, in the place of the shell: so it gets the job's
    signals. Those that are `ignored` end nothing before it heeds them."""
    packages = Path(__file__).resolve().parents[2]
    python = template.python or sys.executable
    lines = [
        # A login shell: elsewhere there is no `module`.
        "#!/bin/bash -l",
        *(_line("trap", "", signal) for signal in ignored),
        *(_line("module", "load", name) for name in template.modules),
        *(f"export {name}={_quoted(value)}" for name, value in template.environment.items()),
        "umask 077",
        f"export PYTHONPATH={_quoted(str(packages))}",
        _line("exec", *(_spread(template, need) if need.nodes > 1 else ()), python, *words),
    ]
    return "\n".join([*lines, ""])


def _line(*words: str) -> str:
    return " ".join(_quoted(word) for word in words)


def _quoted(word: str) -> str:
    """The only way in which anything comes into a script."""
    return shlex.quote(word)
