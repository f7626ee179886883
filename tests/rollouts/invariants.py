"""What must hold of every run, whatever happened to it."""

from collections import Counter

from django.db.models import Count

from rollouts.models import (
    Batch,
    BatchItem,
    Evaluation,
    Event,
    GroupTokens,
    Lease,
    PolicyVersion,
    Rollout,
    Run,
    ScoredGroup,
)
from rollouts.reasons import ReasonCode
from rollouts.selectors import runs as run_selectors
from rollouts.states import EVALUATION_TERMINAL, GROUP_TRANSITIONS, RUN_TERMINAL


def check_ledger(run: Run) -> None:
    """Hold the tables of a run that is over against the promises."""
    run = Run.objects.get(pk=run.pk)
    assert run.state in RUN_TERMINAL
    groups = ScoredGroup.objects.filter(run=run)
    states = Counter(groups.values_list("state", flat=True))
    assert not set(states) & GROUP_TRANSITIONS.keys(), states
    assert not Lease.objects.filter(run=run).exists()
    assert not Evaluation.objects.filter(run=run).exclude(state__in=EVALUATION_TERMINAL).exists()

    created = Event.objects.filter(run=run, object_kind="scoredgroup", from_state="").count()
    assert sum(states.values()) == created, "a group was lost, or has no beginning in the log"
    assert sum(line.groups for line in run_selectors.ledger(run)) == groups.filter(purpose="train").count()

    items = BatchItem.objects.filter(batch__run=run)
    assert not items.values("group").annotate(steps=Count("id")).filter(steps__gt=1).exists(), "a group trained twice"
    assert items.filter(batch__state="trained").count() == states["trained"]
    steps = list(Batch.objects.filter(run=run).order_by("step").values_list("step", flat=True))
    assert steps == list(range(len(steps))), "steps are not contiguous"
    assert run.next_step == Batch.objects.filter(run=run, state="trained").count()
    assert items.filter(group__purpose="eval").count() == 0

    settled = groups.exclude(state="surplus", rollout_count=0)
    assert not settled.filter(rollout_count=0).exclude(reason_code=ReasonCode.LEASES_LOST).exists()
    for group in groups.annotate(stored=Count("rollouts")):
        assert group.stored == group.rollout_count, f"{group.state} group {group.pk} is not whole"
    rollouts = Rollout.objects.filter(group__run=run)
    stored = rollouts.values("group").distinct().count()
    assert stored == GroupTokens.objects.filter(group__run=run).count(), "rollouts without tokens, or the reverse"
    assert PolicyVersion.objects.filter(run=run, state="live").count() <= 1

    for kind, model in (("scoredgroup", ScoredGroup), ("batch", Batch), ("evaluation", Evaluation)):
        last = {}
        for event in Event.objects.filter(run=run, object_kind=kind).order_by("id"):
            if event.from_state:
                assert last[event.object_id] == event.from_state, f"the log of {kind} {event.object_id} has a gap"
            last[event.object_id] = event.to_state
        assert last == dict(model.objects.filter(run=run).values_list("pk", "state")), "log and rows disagree"
