"""People in the loop, by the keyboard of a scripted person: can a run live on them, and do they come in time?

    python -m benchmarks.people scores     a run of 20 steps whose every reward is a person's score
    python -m benchmarks.people rejects    a curator rejects groups of the demo as they arrive
    python -m benchmarks.people loop       what people accept and prefer is what SFT and DPO learn from

Each warms the demo's model up in a home of its own first; the person sits before Chromium. `scores`: every group is
held, and the person scores what is on the screen, so that no reward of the environment counts. `rejects`: of what was
rejected in time nothing may be in a batch, and what came too late has to keep its step. `loop`: rollouts of a short
run, words by keys, a version of examples and one of pairs, a run of SFT and one of DPO launched from their pages,
held-out reward before and after, and of every example the step at which its group was trained. Prints what was found as
one JSON object; the exit status is 0 when every count is as it must be.
"""

import argparse
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, TimeoutError, sync_playwright

from benchmarks.examples import EXAMPLES, held_out, in_own_home, warm_up
from controlplane.cli import lessons
from controlplane.cli.lessons import say

_EXAMPLE = "reverse-text"
_SMALL = ["sampling.group_size=4", "batch.batch_size=16", "evaluation.every=10", "evaluation.problems=128"]
_SLOW = ["sampling.group_size=4", "batch.batch_size=128", "workers.concurrency=4", "evaluation.every=20"]
"""A batch takes some seconds to come together: time for somebody to look at what waits for it."""
_LEARNER = """max_steps = 30
trainer.checkpoint_every = 30
evaluation = {every = 30, problems = 128, temperature = 1.0}
"""
_PATIENCE_MS = 20_000
_IDLE_S = 1.0
_IDLE_AT_MOST = 5


def main() -> int:
    options = _parser().parse_args()
    if not options.job:
        return in_own_home("people", keep=False)
    import django

    # Playwright keeps a loop in this thread, in which Django would refuse the database.
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
    django.setup()
    try:
        found = {"scores": live_on_scores, "rejects": reject_as_they_arrive, "loop": learn_from_words}[options.what](
            options
        )
    except lessons.NotDone as reason:
        say(f"people: {reason}")
        return 1
    say(json.dumps(found))
    return 0 if found["is_sound"] else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["scores", "rejects", "loop"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--words", type=int, default=200, help="`loop`: said in each of its two queues")
    parser.add_argument("--screenshots", type=Path, help="directory for what the person sees")
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    return parser


def live_on_scores(options: argparse.Namespace) -> dict[str, Any]:
    """Train on a person's scores alone."""
    from rollouts.models import Label, QueueUnit, ScoredGroup

    run = _launch(options, [*_SMALL, "environments.0.review={share = 1.0, deadline_s = 36000.0}"])
    queue = _queue(run, QueueUnit.ROLLOUT, state="held")
    with _person() as page:
        said = _work(page, run, queue, _score, options, lambda _words: run.is_over)
    trained = ScoredGroup.objects.filter(run=run, state="trained").prefetch_related("rollouts", "labels")
    by_people = 0
    for group in trained:
        words = group.labels.filter(superseded_by__isnull=True).order_by("rollout__index")
        by_people += [label.score for label in words] == group.given_rewards
    found = {
        "run": run.key,
        "state": run.state,
        "steps": run.next_step,
        "trained_groups": len(trained),
        "trained_on_the_scores_of_people": by_people,
        "words": Label.objects.filter(run=run).count(),
        **said,
        "held_out": _held_out(run),
    }
    return found | {"is_sound": run.state == "finished" and by_people == len(trained) > 0}


def reject_as_they_arrive(options: argparse.Namespace) -> dict[str, Any]:
    """Reject every second group while it waits for its batch, or too late."""
    from rollouts.models import BatchItem, QueueUnit, RejectEffect, ScoredGroup, Withholding

    run = _launch(options, [*_SLOW, f"max_steps={options.steps}"])
    queue = _queue(run, QueueUnit.GROUP, state="ready", on_reject=RejectEffect.REJECT)
    with _person() as page:
        said = _work(page, run, queue, _reject_every_second, options, lambda _words: run.is_over)
    rejected = ScoredGroup.objects.filter(run=run, withheld=Withholding.REJECTED)
    in_time, late = rejected.filter(state="rejected"), rejected.exclude(state="rejected")
    in_batches = set(BatchItem.objects.filter(batch__run=run).values_list("group", flat=True))
    found = {
        "run": run.key,
        "state": run.state,
        "steps": run.next_step,
        "rejected_in_time": in_time.count(),
        "of_these_in_a_batch": in_time.filter(pk__in=in_batches).count(),
        "rejected_too_late": late.count(),
        "of_these_with_a_step": late.filter(pk__in=in_batches).count(),
        "ledger": dict(_ledger(run)),
        **said,
        "held_out": _held_out(run),
    }
    is_sound = found["of_these_in_a_batch"] == 0 < found["rejected_in_time"] and run.state == "finished"
    return found | {"is_sound": is_sound and found["rejected_too_late"] == found["of_these_with_a_step"]}


def learn_from_words(options: argparse.Namespace) -> dict[str, Any]:
    """From rollouts over words and versions of datasets to models that learned from them."""
    from rollouts.models import DatasetForm, QueueUnit
    from rollouts.services.datasets import making
    from rollouts.services.datasets.choosing import Recipe

    run = _launch(options, [*_SMALL, "evaluation.every=20"])
    lessons.finish(run)
    found: dict[str, Any] = {"run": run.key, "held_out_rl": _held_out(run)}
    ways = [
        ("good", QueueUnit.ROLLOUT, _accept_what_is_right, DatasetForm.EXAMPLES, "optimizer.lr = 3e-4\n"),
        ("pairs", QueueUnit.PAIR, _prefer, DatasetForm.PAIRS, ""),
    ]
    for name, unit, say_of, form, more in ways:
        queue = _queue(run, unit, state="trained")
        with _person() as page:
            said = _work(page, run, queue, say_of, options, lambda words: words >= options.words)
        recipe = Recipe(queue=queue.key, accepted=form == DatasetForm.EXAMPLES)
        version = making.make(run.project, name=name, form=form, recipe=recipe, actor="people")
        with _person() as page:
            learner = _launch_from_its_page(page, version, _LEARNER + more)
        lessons.finish(learner)
        members = version.members.select_related("group")
        found[name] = {
            **said,
            "version": str(version),
            "members": version.member_count,
            "with_a_step": sum(member.step is not None for member in members),
            "learner": learner.key,
            "learned_from": [str(each.version) for each in learner.datasets.select_related("version__dataset")],
            "held_out": _held_out(learner),
        }
    learned = [found[name] for name, *_ in ways]
    is_sound = all(each["members"] == each["with_a_step"] > 0 for each in learned)
    return found | {"is_sound": is_sound and all(each["learned_from"] == [each["version"]] for each in learned)}


def _launch_from_its_page(page: Page, version: Any, toml: str) -> Any:
    """The run that the buttons of a version's page lead to, with what is typed besides."""
    from rollouts.models import Run

    page.goto(f"{os.environ['ROLLYARD_URL']}/datasets/{version.dataset.key}/{version.version}/")
    page.get_by_role("link", name="Train on it").click()
    page.get_by_role("link", name=f"{_EXAMPLE}-sft", exact=True).click()
    page.locator("textarea[name=toml]").fill(toml)
    page.locator("form button.primary[type=submit]").click()
    page.wait_for_url(re.compile(r"/runs/(?!new)\w+/"))
    return Run.objects.get(key=page.url.rstrip("/").rsplit("/", 1)[1])


def _launch(options: argparse.Namespace, words: list[str]) -> Any:
    warm_up(_EXAMPLE, options.seed, [f"seed={options.seed}"], options.job)
    words = [f"seed={options.seed}", f"max_steps={options.steps}", *words]
    return lessons.launch(lessons.resolved(EXAMPLES / _EXAMPLE / "rl.toml", words), actor="people")


def _queue(run: Any, unit: str, *, state: str = "", on_reject: str = "") -> Any:
    from rollouts.services.curation import filters, queues

    chosen = filters.QueueFilter(run=run.key, state=state)  # type: ignore[arg-type]
    return queues.create(
        run.project, name=f"{unit}s of {run.key}", actor="people", unit=unit, filter=chosen, on_reject=on_reject
    )


@contextmanager
def _person() -> Iterator[Page]:
    """A browser in which the administrator has signed in."""
    from controlplane.web import login
    from rollouts.services.runs import projects

    executable = next(filter(None, map(shutil.which, ["chromium", "chromium-browser", "google-chrome"])), None)
    if executable is None:
        raise lessons.NotDone("there is no Chromium on this machine: `make chromium` installs it")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(_PATIENCE_MS)
        page.goto(os.environ["ROLLYARD_URL"] + login.issue(projects.ensure_admin()))
        yield page
        browser.close()


def _work(
    page: Page,
    run: Any,
    queue: Any,
    say_of: Callable[[Page, int], None],
    options: argparse.Namespace,
    is_done: Callable[[int], bool],
) -> dict[str, Any]:
    """Go through the queue until it is done: how many words, in what time, and how long the next item took."""
    page.goto(f"{os.environ['ROLLYARD_URL']}/queues/{queue.key}/annotate/")
    began, waits, words, idle = time.monotonic(), [], 0, 0
    while not is_done(words):
        if page.locator("form[data-draft]").count() == 0:
            page.keyboard.press("Enter")
            page.wait_for_load_state()
            if page.locator("form[data-draft]").count() == 0:
                page.wait_for_timeout(_IDLE_S * 1_000)
                run.refresh_from_db()
                idle += 1
                if run.is_over and idle == _IDLE_AT_MOST:  # of a run that is over nothing more comes
                    break
                continue
        idle = 0
        at = page.locator("[aria-current=page]").inner_text()
        say_of(page, words)
        pressed = time.monotonic()
        try:
            page.wait_for_function("at => document.querySelector('[aria-current=page]')?.innerText !== at", arg=at)
        except TimeoutError:
            say(f"people: the page stays at {at}")
        waits.append(time.monotonic() - pressed)
        words += 1
        if options.screenshots and words in (3, 30):
            page.screenshot(path=str(options.screenshots / f"{options.what}-{words}.png"))
        if words % 20 == 0:
            run.refresh_from_db()
            say(f"people: {words} words, step {run.next_step}")
    waits.sort()
    minutes = (time.monotonic() - began) / 60
    return {
        "words_said": words,
        "per_minute": round(words / minutes, 1),
        "next_item_p50_ms": round(waits[len(waits) // 2] * 1_000) if waits else None,
        "next_item_p95_ms": round(waits[int(len(waits) * 0.95)] * 1_000) if waits else None,
    }


def _nearness(page: Page, within: str) -> float:
    """How near what the policy said is to the text backwards: a person's own judgement, read from the screen."""
    asked = page.locator(".prompt-panel .message.user pre").last.inner_text().strip()
    said = page.locator(f"{within} .message.assistant pre").last.inner_text().strip()
    return SequenceMatcher(None, asked[::-1], said).ratio()


def _score(page: Page, _number: int) -> None:
    nearness = _nearness(page, ".member")
    page.keyboard.press("c")
    page.keyboard.type(f"{nearness:.2f}")
    page.keyboard.press("Escape")
    page.keyboard.press("a")


def _accept_what_is_right(page: Page, _number: int) -> None:
    page.keyboard.press("a" if _nearness(page, ".member") == 1 else "x")


def _prefer(page: Page, _number: int) -> None:
    left, right = _nearness(page, "#left"), _nearness(page, "#right")
    page.keyboard.press("t" if left == right else "ArrowLeft" if left > right else "ArrowRight")


def _reject_every_second(page: Page, number: int) -> None:
    page.keyboard.press("x" if number % 2 else "a")


def _ledger(run: Any) -> Iterator[tuple[str, int]]:
    from django.db.models import Count

    from rollouts.models import ScoredGroup

    yield from ScoredGroup.objects.filter(run=run).values_list("state").annotate(Count("pk")).order_by("state")


def _held_out(run: Any) -> dict[str, float]:
    return {str(version): round(value, 3) for version, value in held_out(run).items()}


if __name__ == "__main__":
    sys.exit(main())
