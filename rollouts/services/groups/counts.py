"""What drivers find out of environments that did not say in time how many problems they have, as their run began."""

from django.db.models import Q

from environments.types import Split
from rollouts.models import Run, RunEnvironment, RunKind
from rollouts.services.groups import evaluations, problems
from trainers.run_config import EnvironmentRef


def note(run: Run, ref: EnvironmentRef, split: Split, count: int) -> None:
    """Remember how many problems a split has, if the run goes by that and nobody has said so yet. Idempotent."""
    rows = RunEnvironment.objects.filter(run=run, name=ref.run_name)
    plan = run.parsed.evaluation
    is_evaluated = plan is not None and plan.problems > 0 and Split(plan.split) is split
    if count < 1:
        return  # nothing of it can be played, which fails its groups
    if is_evaluated and rows.filter(problem_count=None).exists():
        evaluations.note_count(run, ref.run_name, count)
    # A bound that a person set is there before anybody has counted.
    is_unbounded = Q(problems=None) | Q(problems__gt=count)
    if run.kind == RunKind.RL and split is Split.TRAIN and rows.filter(is_unbounded).exists():
        problems.note_count(run, ref, count)
