"""What a step was trained on: the ledger seen from the optimizer."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from frontend.access import page
from rollouts.selectors import pages, runs, token_values


@page
@require_safe
def step(request: HttpRequest, key: str, step: int) -> HttpResponse:
    """The batch of one step: its members, how far behind they were, its hash and what was measured."""
    run = runs.get(request.user, key)
    found = pages.get_step(run, step)
    rewards = [reward for member in found.members for reward in member.rewards if reward is not None]
    context = {
        "run": run,
        "step": found,
        "previous": step - 1 if step > 0 else None,
        "next": step + 1 if step < found.newest else None,
        "worst_lag": max((member.lag for member in found.members if member.lag is not None), default=None),
        "reward_mean": sum(rewards) / len(rewards) if rewards else None,
        "seen": token_values.of_step(run, step),
        "rollouts": sum(len(member.rewards) for member in found.members),
    }
    return render(request, "step/step.html", context)
