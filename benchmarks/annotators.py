"""Many people at one queue: does anybody meet another's item, and how long does the next one take?

    python -m benchmarks.annotators --people 8 --items 2000
    python -m benchmarks.annotators --words 2 --blind --kill-every-s 60
    python -m benchmarks.annotators --people 1 --more 100000 --minutes 10 --kill-every-s 60

Everybody has a session of their own and uses the pages as a browser does: the word is posted, and the page of the next
item comes with the answer. Starts a Rollyard in an empty home. With --kill-every-s a web process is killed again and
again (SIGKILL), whichever is next, and who was asking asks again. Prints one JSON object: items a minute, milliseconds
from a word to the next item, asking again included, how many processes were killed and requests lost, and what went
wrong. The exit status is 0 if every item has its words, each of another person, and nobody ever saw an item of others.
With --minutes it ends then, and what was said until then is looked at: every word that was answered is there, once.
"""

import argparse
import json
import os
import platform
import random
import re
import signal
import statistics
import sys
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks import large_store
from benchmarks.examples import in_own_home
from controlplane.cli import lessons
from controlplane.cli.lessons import say

_CHUNK = 50
"""Groups that are stored together."""
_CSRF = "b" * 32
_TIMEOUT_S = 30.0
_START_DEADLINE_S = 60.0
_PATIENCE_S = 0.2
"""Before somebody asks again who found nothing, or nobody who answers."""
_VERDICTS = [{"verdict": "accept"}, {"verdict": "reject"}]
_WORDS = {"group": _VERDICTS, "rollout": _VERDICTS, "pair": [{"side": "left"}, {"side": "right"}, {"side": "tie"}]}
_ITEM = re.compile(r'aria-current="page">item (\d+)<')
_TURN = re.compile(r'name="turn"\s+value="([0-9a-f-]{36})"')


@dataclass
class Person:
    """Somebody at work."""

    name: str
    session: str
    waited_ms: list[float] = field(default_factory=list)
    shown: set[int] = field(default_factory=set)
    """Every item that they had before them."""
    lost: int = 0
    """Requests without an answer."""
    faults: list[str] = field(default_factory=list)

    def work(self, url: str, queue: str, unit: str, done: threading.Event) -> None:
        """Take one item after the other, and say a word on each, until all are done."""
        cookies = {"rollyard_session": self.session, "rollyard_csrf": _CSRF}
        path, chance = f"{url}/queues/{queue}", random.Random(self.name)
        with httpx.Client(cookies=cookies, headers={"X-CSRFToken": _CSRF}, timeout=_TIMEOUT_S) as client:
            turn, began = "", time.monotonic()
            while not done.is_set():
                try:
                    if not turn:
                        page = client.post(f"{path}/take/", follow_redirects=True)
                    else:
                        word = {"turn": turn, **chance.choice(_WORDS[unit])}
                        page = client.post(f"{path}/say/", data=word, follow_redirects=True)
                except httpx.TransportError:
                    self.lost += 1
                    time.sleep(_PATIENCE_S)
                    continue
                if page.status_code >= 500:  # a web process that is just starting
                    self.lost += 1
                    time.sleep(_PATIENCE_S)
                    continue
                if page.status_code != 200:
                    self.faults.append(f"{self.name} was answered {page.status_code}")
                    return
                if turn:
                    self.waited_ms.append(1000 * (time.monotonic() - began))
                item, found = _ITEM.search(page.text), _TURN.search(page.text)
                turn = found[1] if item and found else ""
                if item and found:
                    self.shown.add(int(item[1]))
                else:
                    time.sleep(_PATIENCE_S)
                began = time.monotonic()


def main() -> int:
    options = _parser().parse_args()
    return _measure(options) if options.job else in_own_home("annotators", keep=False)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--people", type=int, default=8)
    parser.add_argument("--items", type=int, default=2_000)
    parser.add_argument("--more", type=int, default=0, help="groups besides, which fill the same queue")
    parser.add_argument("--minutes", type=float, default=0.0, help="0: until every item has its words")
    parser.add_argument("--words", type=int, default=1, help="people an item")
    parser.add_argument("--blind", action="store_true")
    parser.add_argument("--unit", choices=["group", "rollout", "pair"], default="group")
    parser.add_argument("--kill-every-s", type=float, default=0.0, help="0: no process is killed")
    parser.add_argument("--deadline-s", type=float, default=3_600.0)
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    return parser


def _measure(options: argparse.Namespace) -> int:
    import django

    django.setup()
    queue, people = _prepare(options)
    done, killed = threading.Event(), list[int]()
    url = os.environ["ROLLYARD_URL"].rstrip("/")
    threads = [threading.Thread(target=person.work, args=(url, queue.key, options.unit, done)) for person in people]
    if options.kill_every_s:
        threads.append(threading.Thread(target=_kill, args=(options.kill_every_s, done, killed), daemon=True))
    say(f"{len(people)} people begin on {options.items} items, of {options.words} words each")
    began = time.monotonic()
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads[: len(people)]):
        limit_s = 60 * options.minutes or options.deadline_s
        if (not options.minutes and _is_done(queue, options)) or time.monotonic() > began + limit_s:
            break
        time.sleep(0.25)
    seconds = time.monotonic() - began
    done.set()
    for thread in threads[: len(people)]:
        thread.join()
    found = report(queue, people, options, seconds) | {"killed": len(killed)}
    print(json.dumps(found))
    sys.stdout.flush()
    return 0 if not found["faults"] else 1


def _prepare(options: argparse.Namespace) -> tuple[Any, list[Person]]:
    """A queue with enough to look at, and people with sessions."""
    from django.contrib.auth.models import User

    from environments.types import PlayedGroup
    from rollouts.formats.arrays import pack_group
    from rollouts.models import Membership, Role
    from rollouts.services.curation import queues
    from rollouts.services.curation.filters import QueueFilter
    from rollouts.services.groups import intake
    from rollouts.services.runs import projects
    from rollouts.states import RunState

    run = lessons.launch(lessons.resolved("external-trainer", []), actor="annotators")
    give_up_at = time.monotonic() + _START_DEADLINE_S
    while run.state == RunState.PENDING:  # the reconciler starts it
        if time.monotonic() > give_up_at:
            raise SystemExit("the run was not started: look at the log of the reconciler")
        time.sleep(_PATIENCE_S)
        run.refresh_from_db()
    for first in range(0, options.items, _CHUNK):
        numbers = range(first, min(first + _CHUNK, options.items))
        groups = [
            PlayedGroup(key=f"g{at}", environment="reverse_text", problem_key=f"p{at}", rollouts=_rollouts(at))
            for at in numbers
        ]
        packed = [pack_group(group, ("groups", at)) for at, group in enumerate(groups)]
        intake.submit(run, packed, actor="api:annotators")
    if options.more:
        large_store.fill(run, options.more, size=2)
    queue = queues.create(
        projects.ensure_default(),
        name="annotators",
        actor="user:admin",
        unit=options.unit,
        words_per_item=options.words,
        is_blind=options.blind,
        filter=QueueFilter(max_reward=0.0) if options.unit == "rollout" else None,
    )
    people = []
    for number in range(options.people):
        user = User.objects.create_user(f"annotator-{number}")
        Membership.objects.create(user=user, project=projects.ensure_default(), role=Role.CURATOR)
        people.append(Person(user.username, _session(user)))
    return queue, people


def _rollouts(number: int) -> list[Any]:
    from environments.types import Message, PlayedRollout, StopReason

    return [
        PlayedRollout(
            token_ids=[65, 66, 67, 68],
            loss_mask=[0, 0, 1, 1],
            inference_logprobs=[0.0, 0.0, -0.5, -0.5],
            reward=float(at == 0),
            stop_reason=StopReason.STOP,
            dispatch_policy_version=0,
            first_policy_version=0,
            last_policy_version=0,
            messages=[
                Message(role="user", content=f"Reverse this, number {number}: " + "word " * 40),
                Message(role="assistant", content=f"Answer {at} of {number}: " + "drow " * 60),
            ],
        )
        for at in range(2)
    ]


def _session(user: Any) -> str:
    from django.conf import settings
    from django.test import Client

    client = Client()
    client.force_login(user)
    return client.cookies[settings.SESSION_COOKIE_NAME].value


def _is_done(queue: Any, options: argparse.Namespace) -> bool:
    return bool(queue.items.filter(is_open=False).count() >= options.items + options.more)


def _kill(every_s: float, done: threading.Event, killed: list[int]) -> None:
    """Kill one web process of this Rollyard after the other; adds their ids."""
    while not done.wait(every_s):
        here = psutil.Process(os.getppid()).children(recursive=True)
        web = [each for each in here if "controlplane.web.serve" in each.cmdline()]
        if web:
            pid = web[len(killed) % len(web)].pid
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
            say(f"killed a web process, {len(killed)} in all")


def report(queue: Any, people: list[Person], options: argparse.Namespace, seconds: float) -> dict[str, Any]:
    from rollouts.models import Label

    waited = sorted(each for person in people for each in person.waited_ms)
    percentiles = statistics.quantiles(waited, n=100) if len(waited) > 1 else [0.0] * 99
    faults = [fault for person in people for fault in person.faults]
    counting: defaultdict[int, list[str]] = defaultdict(list)
    rows = Label.objects.filter(queue=queue, superseded_by__isnull=True, turn__isnull=False)
    for item_id, person in rows.values_list("turn__item_id", "person__username"):
        counting[item_id].append(person)
    fewest, items = (0 if options.minutes else options.words), options.items + options.more
    for item in queue.items.all():
        by = counting.get(item.pk, [])
        if not fewest <= item.words == len(by) == len(set(by)) <= options.words:
            faults.append(f"item {item.pk} counts {item.words} words and has those of {sorted(by)}")
    if not options.minutes and len(counting) != items:
        faults.append(f"{len(counting)} of {items} items have a word")
    if len(rows) < len(waited):
        faults.append(f"{len(waited)} words were answered, and {len(rows)} are there")
    return {
        "people": options.people,
        "items": options.items,
        "words_per_item": options.words,
        "unit": options.unit,
        "blind": options.blind,
        "seconds": round(seconds, 1),
        "items_per_minute": round(60 * len(counting) / seconds, 1),
        "words_per_minute": round(60 * len(waited) / seconds, 1),
        "next_item_ms": {"p50": round(percentiles[49], 1), "p95": round(percentiles[94], 1)},
        "lost_requests": sum(person.lost for person in people),
        "faults": [*faults, *_meetings(people, options.words)][:20],
        "python": platform.python_version(),
        "cores": os.cpu_count(),
    }


def _meetings(people: list[Person], words: int) -> list[str]:
    """Items that more people had before them than it wants words: nobody's time is over so soon."""
    counted = Counter(item for person in people for item in person.shown)
    return [f"{most} people had item {item} before them" for item, most in counted.items() if most > words]


if __name__ == "__main__":
    sys.exit(main())
