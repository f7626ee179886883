"""Where a group went: its members side by side."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from frontend.access import may_curate, page
from frontend.conversation import JsonObject, told
from frontend.differing import Compared, compared
from frontend.pages.group import timeline
from frontend.pages.group.advantage import explain
from frontend.pages.run.rollouts.rollouts import split_prompt
from rollouts.models import Label, Rollout, Run, ScoredGroup
from rollouts.selectors import curation, datasets, groups, runs, token_values
from rollouts.services.curation import edits


@page
@require_safe
def group(request: HttpRequest, key: str, group: str) -> HttpResponse:
    """The members of one group side by side: what they were given, what they answered, what it was worth."""
    run = runs.get(request.user, key)
    return show(request, run, groups.get(run, group))


def show(request: HttpRequest, run: Run, row: ScoredGroup, *, refused: str = "") -> HttpResponse:
    """The page of a group. `refused`: why the word that the request says of it was not stored; its form keeps it."""
    rollouts = list(row.rollouts.all())
    prompts = [split_prompt(rollout.messages) for rollout in rollouts]
    shared = prompts[0][0] if prompts else []
    is_shared = all(prompt == shared for prompt, _ in prompts)
    tools = rollouts[0].tools if rollouts else None
    same_tools = all(rollout.tools == tools for rollout in rollouts)
    item = next(iter(row.batch_items.all()), None)
    seen = token_values.of_group(run, row.pk)
    timelines = timeline.of_group(rollout.spans for rollout in rollouts)
    algorithm, stored = run.parsed.algorithm_of(row.environment.name), item.advantages if item else None
    given = groups.given_advantages(row)
    explanation = explain(algorithm, rollouts, stored, per_token=given.per_token, zeroed=given.zeroed)
    members = [
        {
            "rollout": rollout,
            "tools": [] if same_tools else told(rollout.tools),
            "messages": rest if is_shared else rollout.messages,
            "earlier": [_behind(shared if is_shared else [], each) for each in rollout.earlier_branches or []],
            "why": explanation.members[at],
            "seen": seen.get(rollout.pk, []),
            "timeline": timelines[at],
            "corrections": _corrections(rollout, row.words),  # type: ignore[attr-defined]
        }
        for at, (rollout, (_, rest)) in enumerate(zip(rollouts, prompts, strict=True))
    ]
    context = {
        "run": run,
        "group": row,
        "tools": told(tools) if same_tools else [],
        "prompt": shared if is_shared else [],
        "members": members,
        "matches": _matches(members),
        "explanation": explanation,
        "item": item,
        "lag": _lag(item.batch.step, row.min_policy_version) if item else None,
        "rewards": [rollout.counting_reward for rollout in rollouts],
        "acts": curation.acts_on(row),
        "decided": curation.decided(row),
        "datasets": datasets.of_group(row),
        "may_curate": may_curate(request, run),
        "refused": refused,
        "typed": request.POST if refused else {},
    }
    return render(request, "group/group.html", context, status=422 if refused else 200)


def _lag(step: int, version: int | None) -> int | None:
    """A group from outside may name the version that the step makes."""
    return None if version is None else max(0, step - version)


@dataclass(frozen=True)
class Correction:
    """What somebody put in the place of what the policy said."""

    said: Label
    messages: list[Compared]
    """Those that were changed."""


def _corrections(rollout: Rollout, words: Sequence[Label]) -> list[Correction]:
    found = []
    for said in words:
        if said.rollout_id == rollout.pk and said.edited:
            pairs = edits.changed(rollout.messages, said.edited)
            after, _ = compared([new for _, new in pairs], [old for old, _ in pairs])
            found.append(Correction(said, after))
    return found


def _behind(prompt: list[JsonObject], messages: list[JsonObject]) -> list[JsonObject]:
    """A branch without the prompt that the page shows once."""
    return messages[len(prompt) :] if messages[: len(prompt)] == prompt else messages


def _matches(members: Sequence[JsonObject]) -> list[list[JsonObject]]:
    """Members that played one match, beside each other; without seats all are in one list."""
    played: Counter[str] = Counter()
    matches: defaultdict[int, list[JsonObject]] = defaultdict(list)
    for member in members:
        seat = member["rollout"].seat
        matches[played[seat] if seat else 0].append(member)
        played[seat] += 1
    return list(matches.values())
