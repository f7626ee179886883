"""Two projects that have one of everything. What is of one must not be seen, named or changed from the other."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from django.contrib.auth.models import User
from django.db.models import Model as Row
from django.utils import timezone

from rollouts.models import (
    Act,
    Attempt,
    DatasetVersion,
    Delivery,
    EnvironmentClient,
    Export,
    LabelQueue,
    Lease,
    Model,
    Project,
    ReplicaKind,
    Role,
    Run,
    RunEnvironment,
    ScoredGroup,
    TokenValues,
    Trial,
    Verb,
)
from rollouts.services import endpoints
from rollouts.services.batches import forming, replays
from rollouts.services.curation import acts, labels, queues, turns
from rollouts.services.datasets import exports, making
from rollouts.services.datasets.choosing import Recipe
from rollouts.services.runs import checkpoints, replicas
from tests.factories import make_trial, make_user
from tests.model_files import make_model, make_warm
from tests.rollouts import story
from tests.rollouts.api import make_token
from tests.rollouts.doors.atropos.api import make_external_run
from tests.rollouts.runs.test_runs import checkpoint
from trainers.wire import TrainingBatch


@dataclass(frozen=True)
class Possessions:
    """What a project has."""

    project: Project
    run: Run
    """Trained a step, has a trainer and a group at work."""
    epoch: int
    other: Run
    """Ordered a replay of the first."""
    external: Run
    """Of a trainer and environments that speak the Atropos protocol."""
    values: TokenValues
    trial: Trial
    model: Model
    only: Model
    """Of a name that no model of the other project has."""
    lease: Lease
    act: Act
    queue: LabelQueue
    """With an item, and somebody at it."""
    dataset: DatasetVersion
    """The first one of a dataset."""
    export: Export
    """Of it, done."""
    member: User
    mark: str
    """In the names of its runs: whoever reads it has read of the project."""

    @property
    def group(self) -> ScoredGroup:
        """One that was trained."""
        return self.values.rollout.group

    def parameters(self) -> dict[str, Any]:
        """What stands in the routes for what this project has."""
        return {
            "key": self.run.key,
            "group": self.group.key,
            "step": 0,
            "number": self.values.pk,
            "rollout": self.values.rollout_id,
            "trial": self.trial.key,
            "act": self.act.key,
            "queue_key": self.queue.key,
            "dataset_key": self.dataset.dataset.key,
            "version": 1,
            "export_key": self.export.key,
            "file": "manifest.json",
            "project": self.project.slug,
            "name": self.model.name,
            "id": self.member.pk,
        }

    def row(self, model: type[Row]) -> Row | None:
        """A row of this model that is the project's; of accounts its member's. None: there is none."""
        rows = model._default_manager.order_by("pk")
        ways = {Project: {"pk": self.project.pk}, User: {"pk": self.member.pk}, Run: {"pk": self.run.pk}}
        names = {field.name for field in model._meta.get_fields() if field.is_relation}
        for name, way in (
            ("run", {"run__project": self.project}),
            ("project", {"project": self.project}),
            ("batch", {"batch__run__project": self.project}),
            ("group", {"group__run__project": self.project}),
            ("act", {"act__run__project": self.project}),
            ("queue", {"queue__project": self.project}),
            ("dataset", {"dataset__project": self.project}),
            ("version", {"version__dataset__project": self.project}),
            ("item", {"item__queue__project": self.project}),
            ("attempt", {"attempt__run__project": self.project}),
        ):
            if name in names:
                ways.setdefault(model, way)
        return rows.filter(**ways.get(model, {})).first()


def possessions(slug: str) -> Possessions:
    """A project with at least one row in every table that rows of projects have."""
    project = Project.objects.create(slug=slug, name=f"Project {slug}")
    mark = f"the-secret-of-{slug}"
    run, epoch = story.train(project=project, name=mark, evaluation={"problems": 4}, max_steps=9)
    for each in story.claim(run, 10)[1:]:
        story.settle(each)
    delivery = forming.fetch(run, epoch=epoch, step=0)
    assert delivery is not None
    rollout = msgspec.msgpack.decode(delivery.body, type=TrainingBatch).rollouts[0]
    story.ack(run, epoch, 0, delivery.sha256, [story.seen(rollout)], **{"loss/mean": 1.0})
    story.announce(run, epoch, 1)
    checkpoints.add_checkpoint(run, epoch=epoch, checkpoint=checkpoint(run, 0))
    replicas.ready(replicas.create(run, kind=ReplicaKind.INFERENCE, slot=0, launcher="local"), loaded_version=0)
    other = story.launch(project=project, name=mark)
    replays.order(other, source=run, first_step=0, last_step=0, actor="user:ada")
    external = make_external_run(project=project, name=mark)
    _serve(external, run)
    run.directory.mkdir(parents=True, exist_ok=True)
    for name in ("a.jsonl", "b.jsonl"):
        (run.directory / name).write_text("{}\n")
    member = make_user(f"member-of-{slug}", role=Role.VIEWER, project=project)
    make_token(project=project, run=run)
    model = make_warm(project)
    endpoints.add(
        name=f"only-of-{slug}", base_url="https://a.example/v1", model="m", projects=[project], actor="user:root"
    )
    values = TokenValues.objects.select_related("rollout__group").get(batch__run=run)
    group = values.rollout.group
    labels.say(group, user=member, actor=f"user:{member}", verdict="accept", note=mark)
    queue = queues.create(project, name=mark, actor=f"user:{member}", guideline=mark, words_per_item=2)
    turns.take(queue, member)
    dataset = making.make(
        project,
        name=f"set-of-{slug}",
        form="examples",
        recipe=Recipe(runs=[run.key]),
        actor=f"user:{member}",
        note=mark,
        licence=mark,
    )
    return Possessions(
        project=project,
        run=story.fresh(run),
        epoch=epoch,
        other=story.fresh(other),
        external=Run.objects.select_related("address").get(pk=external.pk),
        values=values,
        act=acts.perform(run, Verb.EXCLUDE, [group.pk], user=member, actor=f"user:{member}", note=mark),
        queue=queue,
        dataset=dataset,
        export=_export(dataset, member),
        trial=make_trial(run),
        model=model,
        only=make_model(project, f"only-of-{slug}", Path(model.source)),
        lease=Lease.objects.filter(run=run).latest("pk"),
        member=member,
        mark=mark,
    )


def _export(version: DatasetVersion, member: User) -> Export:
    export = exports.request(version, form="sft", user=member, actor=f"user:{member}")
    exports.write_all("w")
    export.refresh_from_db()
    return export


def _serve(external: Run, trained: Run) -> None:
    now = timezone.now()
    attempt = Attempt.objects.create(
        run=external, number=1, batch_size=4, max_token_len=64, save_checkpoint_interval=0, starting_step=0, num_steps=9
    )
    EnvironmentClient.objects.create(
        attempt=attempt,
        index=0,
        environment=RunEnvironment.objects.create(run=external, name="gsm8k", args={}, weight=1.0),
        wandb_name="words_0",
        max_token_length=64,
        weight=1.0,
        group_size=2,
        batch_size=4,
    )
    Delivery.objects.create(batch=trained.batches.get(step=0), attempt=attempt, expires_at=now, sent_at=now)
