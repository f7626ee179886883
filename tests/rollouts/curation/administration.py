"""What the tests of the administration site share: rows in every table, and people who may see some of them."""

from typing import Any

import msgspec
from django.contrib.auth.models import Permission
from django.db.models import Model
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from environments.types import Problem
from rollouts.models import (
    Attempt,
    Delivery,
    EnvironmentClient,
    EnvironmentSource,
    KeptPool,
    PlacementKind,
    Project,
    ReplicaKind,
    Role,
    Run,
    RunDataset,
    ScoredGroup,
    Verb,
    WorkerJob,
)
from rollouts.services import endpoints, trust
from rollouts.services.batches import forming, replays
from rollouts.services.curation import acts, labels, queues, turns
from rollouts.services.datasets import exports, making
from rollouts.services.datasets.choosing import Recipe
from rollouts.services.groups import loads
from rollouts.services.outside import sessions
from rollouts.services.runs import checkpoints, placements, replica_loads, replicas
from rollouts.services.runs.placements import Wish
from tests.factories import make_project, make_trial, make_user, somebody
from tests.model_files import make_warm
from tests.rollouts import story
from tests.rollouts.api import make_token
from tests.rollouts.runs.test_runs import checkpoint
from trainers.wire import TrainingBatch


def address(model: type[Model], page: str, *args: Any) -> str:
    return reverse(f"admin:rollouts_{model._meta.model_name}_{page}", args=args)


def staff(role: Role, project: Project) -> Client:
    """Signed in as somebody who may do everything in the administration site, but has a role in one project only."""
    user = make_user(f"staff-{role}-{project.slug}", role=role, project=project)
    user.is_staff = True
    user.save()
    user.user_permissions.set(Permission.objects.all())
    client = Client()
    client.force_login(user)
    return client


def make_world() -> Run:
    """A run of an installation with at least three rows in every table."""
    run, epoch = story.train(
        evaluation={"problems": 4},
        max_steps=9,
        algorithm__max_async_level=3,
        trainer__keep_weights=6,
        environments=[{"name": "reverse_text", "pools": {}}],
    )
    for each in story.claim(run, 10)[4:]:
        story.settle(each)
    for number in range(3):
        loads.report(run, holder=f"host:{number}", sessions=9, queued=0, asking=5, scoring=1, tokens=4_000)
    assert placements.promise(run, "gpu-box", [Wish(PlacementKind.GPU, ["0", "1", "2"], 3)]) is None
    for name in ("a", "b", "c"):
        KeptPool.objects.create(name=name, minimum=0, maximum=1)
        WorkerJob.objects.create(token=f"worker-{name}", pool=name, number="7", state="running")
    for step in range(3):
        delivery = forming.fetch(run, epoch=epoch, step=step)
        assert delivery is not None
        rollout = msgspec.msgpack.decode(delivery.body, type=TrainingBatch).rollouts[0]
        story.ack(run, epoch, step, delivery.sha256, [story.seen(rollout)], **{"loss/mean": 1.0})
        story.announce(run, epoch, step + 1)
        checkpoints.add_checkpoint(run, epoch=epoch, checkpoint=checkpoint(run, step))
        server = replicas.create(run, kind=ReplicaKind.INFERENCE, slot=step, launcher="local")
        replica_loads.report(server, running=1, waiting=0, cache_share=0.5, tokens=9)
    for number in range(3):
        make_trial(run)
        EnvironmentSource.objects.create(name="words", version=str(number), sha256="0" * 64, files={"words.py": "1"})
        sessions.open_session(
            run,
            Problem(key="p", messages=[]),
            environment="agent",
            group=f"g{number}",
            group_size=1,
            deadline_s=60,
            owner=somebody(),
            actor="api:agent",
        )
    for row in ScoredGroup.objects.filter(settled_at__isnull=False)[:3]:
        labels.say(row, user=somebody(), actor="user:somebody", verdict="accept")
        acts.perform(run, Verb.EXCLUDE, [row.pk], user=somebody(), actor="user:somebody")
    for number in range(3):
        queue = queues.create(run.project, name=f"queue-{number}", actor="user:somebody")
        turns.take(queue, somebody())
        # Of groups that nobody withholds: each has a member at least.
        version = making.make(
            run.project, name=f"set-{number}", form="examples", recipe=Recipe(runs=[run.key]), actor="user:somebody"
        )
        exports.request(version, form="sft", user=None, actor="user:somebody")
        RunDataset.objects.create(run=story.launch(), version=version)
    for step in range(3):
        replays.order(story.launch(), source=run, first_step=step, last_step=step, actor="user:ada")
        serve_attempt(run, step)
    for number in range(3):
        story.launch(evaluation={"problems": 1})
        make_project(f"project-{number}")
        make_warm(make_project(f"project-{number}"))
        make_token(project=make_project(f"project-{number}"), run=run if number else None)
        trust.allow("loss", f"losses.number_{number}", actor="user:root")
        endpoints.add(
            name=f"judge-{number}", base_url="https://a.example/v1", model="m", is_for_all=True, actor="user:root"
        )
    return run


def serve_attempt(run: Run, number: int) -> None:
    """A closed attempt of a trainer that speaks the Atropos protocol, with an environment and a batch it got."""
    now = timezone.now()
    attempt = Attempt.objects.create(
        run=run,
        number=number,
        batch_size=4,
        max_token_len=64,
        save_checkpoint_interval=0,
        starting_step=0,
        num_steps=9,
        state="closed",
        closed_at=now,
    )
    EnvironmentClient.objects.create(
        attempt=attempt,
        index=0,
        environment=run.environments.get(),
        wandb_name="words_0",
        max_token_length=64,
        weight=1.0,
        group_size=2,
        batch_size=4,
    )
    Delivery.objects.create(batch=run.batches.get(step=number), attempt=attempt, expires_at=now, sent_at=now)
