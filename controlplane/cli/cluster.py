"""`rollyard doctor --cluster`: SLURM, its partitions, and what the nodes are like, by a short job of each template."""

import json
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from django.conf import settings

from controlplane.cli.doctor import FAIL, OK, WARN, Row
from controlplane.safety import PLAIN_HTTP_VARIABLE
from workers.given import NoWay, given
from workers.launchers.base import JobSize
from workers.slurm import probe, queue, templates

_JOB_S = 60.0
_MAX_SKEW_S = 30.0
"""Certificates and tokens mind more; what is done here never compares two clocks."""


def examine() -> list[Row]:
    """Every finding, job after job. None raises."""
    if not queue.is_installed():
        fix = "install SLURM's clients here, with the slurm.conf of the cluster and munge's key"
        return [Row("slurm", FAIL, "there is no sbatch on this machine", fix)]
    try:
        partitions = queue.partitions()
    except (queue.SlurmAway, queue.SlurmRefused) as error:
        return [Row("slurm", FAIL, str(error), "start slurmctld and munged, or set SLURM_CONF")]
    rows = [Row("slurm", OK, "its controller answers")]
    rows += [
        Row(f"partition {name}", OK if up else WARN, f"{up} of {count} nodes are up", "" if up else "sinfo -R says why")
        for name, (up, count) in partitions.items()
    ]
    names = ["default"]
    with suppress(templates.TemplateError):  # which its row says
        names = templates.names(settings.ROLLYARD_HOME)
    for name in names:
        rows += _of_template(name)
    return [*rows, *_of_pools()]


def _of_pools() -> Iterator[Row]:
    """Whether the workers that are to be there can be, without starting one."""
    home = settings.ROLLYARD_HOME
    try:
        pools = templates.worker_pools(home)
    except templates.TemplateError as error:
        yield Row("workers", FAIL, str(error), "write it anew")
        return
    for name, pool in pools.items():
        at = f"workers {name}"
        try:
            template = templates.read(home, pool.template)
            given(pool, template)
            options = templates.options(template, pool.need, templates.fresh_token(), home / templates.JOB_LOG)
            queue.would_take(options, templates.script(template, pool.need, ["-m", "workers.remote"]))
        except (templates.TemplateError, queue.SlurmRefused, queue.SlurmAway, NoWay) as error:
            yield Row(at, FAIL, str(error), f"see [workers.{name}] in {home / templates.FILE}")
        else:
            yield Row(at, OK, f"{pool.minimum} to {pool.most} of them are to be there")


def _of_template(name: str) -> Iterator[Row]:
    at = f"template {name}"
    try:
        template = templates.read(settings.ROLLYARD_HOME, name)
    except templates.TemplateError as error:
        yield Row(at, FAIL, str(error), "write it anew")
        return
    # In the home, for that has to be seen by the nodes.
    directory = Path(tempfile.mkdtemp(prefix="probe-", dir=settings.ROLLYARD_HOME))
    try:
        yield from _by_job(at, template, directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _by_job(at: str, template: templates.Template, directory: Path) -> Iterator[Row]:
    marker = secrets.token_hex(8)
    (directory / "marker").write_text(marker)
    token = templates.fresh_token()
    words = ("-m", "workers.slurm.probe", str(directory), settings.NODES_URL, template.interface)
    began = time.monotonic()
    try:
        options = templates.options(template, JobSize(), token, directory / templates.JOB_LOG)
        queue.submit(options, templates.script(template, JobSize(), words), {})
        found = _wait(directory, token)
    except queue.SlurmRefused as error:
        yield Row(at, FAIL, str(error), f"change it in {settings.ROLLYARD_HOME / templates.FILE}")
        return
    except queue.SlurmAway as error:
        yield Row(at, FAIL, str(error), "ask again once SLURM answers")
        return
    if isinstance(found, str):
        yield Row(at, FAIL, found, "see what its job wrote, above; python in the template names another interpreter")
        return
    yield Row(at, OK, f"a job of it ran on {found['node']} and was done after {time.monotonic() - began:.0f} s")
    yield from _compare(at, template, found, marker)


def _wait(directory: Path, token: str) -> dict[str, Any] | str:
    """What the job found, or why there is nothing."""
    give_up_at, look = time.monotonic() + _JOB_S, queue.Queue()
    job: queue.Job | None = None
    while time.monotonic() < give_up_at:
        with suppress(OSError, ValueError):
            found: dict[str, Any] = json.loads((directory / probe.FILE).read_text())
            return found
        job = look.jobs().get(token)
        if job is not None and job.comment.startswith("{"):
            said: dict[str, Any] = json.loads(job.comment)
            return said
        if job is not None and job.has_ended and not (directory / probe.FILE).exists():
            written = directory / templates.JOB_LOG
            told = written.read_text()[-300:] if written.exists() else ""
            return f"its job is {job.state.lower()}: {told.strip() or 'it wrote nothing that can be seen from here'}"
        time.sleep(0.5)
    queue.cancel(token)
    return f"its job was not done within {_JOB_S:.0f} s" + (f": {job.state.lower()}, {job.because}" if job else "")


def _compare(at: str, template: templates.Template, found: dict[str, Any], marker: str) -> Iterator[Row]:
    if not template.shared:
        yield Row(f"{at}: home", OK, "not looked for: files go to the node and back")
    elif found["marker"] != marker:
        yield Row(f"{at}: home", FAIL, found["marker"], "mount ROLLYARD_HOME at the same path on the nodes")
    else:
        yield Row(f"{at}: home", OK, f"the node sees {settings.ROLLYARD_HOME}")
    if "unreachable" in found:
        fix = (
            "set ROLLYARD_NODES_URL to an address of this machine that nodes reach: a TLS proxy's, or where "
            f"`rollyard up --host` listens, which needs {PLAIN_HTTP_VARIABLE}=1"
        )
        yield Row(f"{at}: way here", FAIL, f"{settings.NODES_URL}: {found['unreachable']}", fix)
    else:
        way = f"{settings.NODES_URL} answers; servers there listen on {found.get('address', '')}"
        yield Row(f"{at}: way here", OK, way)
        skew_s = abs(found["skew_s"])
        fix = "" if skew_s < _MAX_SKEW_S else "synchronise them (chrony)"
        yield Row(f"{at}: clock", OK if not fix else WARN, f"about {skew_s:.0f} s from this machine's", fix)
    if "no_address" in found:
        yield Row(f"{at}: interface", FAIL, found["no_address"], "name one of these in the template")
    if found["sandbox"]:
        yield Row(f"{at}: sandbox", FAIL, found["sandbox"], "one of these; until then every job is refused")
    else:
        yield Row(f"{at}: sandbox", OK, "one was made on the node and worked")
    here, there = probe.versions(), found["versions"]
    differing = [
        f"{name} {there.get(name, 'missing')} (here {here.get(name, 'missing')})"
        for name in sorted({*here, *there})
        if here.get(name) != there.get(name)
    ]
    if differing:
        yield Row(f"{at}: versions", WARN, ", ".join(differing), "install the same, or name a python in the template")
    else:
        yield Row(f"{at}: versions", OK, "those of this machine")
