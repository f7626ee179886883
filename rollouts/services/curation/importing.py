"""Store what people said elsewhere: each word once, under the account of who said it."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from django.contrib.auth.models import User
from django.db.models import Q

from rollouts.errors import Conflict, Invalid
from rollouts.models import Label, Run, ScoredGroup
from rollouts.services.curation import reviews
from rollouts.services.curation.word_files import Told, Word
from rollouts.storable import UNSTORABLE, is_storable


@dataclass
class ImportedWords:
    """What became of the words of files."""

    stored: int = 0
    known: int = 0
    """The same person has said the same of it before, whatever they said since."""
    bad: int = 0


@dataclass
class _Told:
    """What the files said so far of one thing, in the name of one person."""

    last: tuple[Any, ...] = ()
    times: Counter[tuple[Any, ...]] = field(default_factory=Counter)


def import_words(
    run: Run,
    told: Iterable[Told],
    *,
    user: User,
    actor: str,
    people: Mapping[str, str],
    on_bad: Callable[[str, str], None],
) -> ImportedWords:
    """Store every word of a run's groups; ``on_bad`` is told where one stands that cannot be, and why.

    ``people``: the name in a file -> that of an account, where they differ. A word without a person is the importing
    user's. The caller has made sure that the user may curate. What is stored when it is interrupted stays, and is known
    the next time. Locks the rows of groups that are held for people, one at a time.
    """
    done = ImportedWords()
    so_far: defaultdict[tuple[Any, ...], _Told] = defaultdict(_Told)
    accounts: dict[str, User | None] = {"": user}
    for each in told:
        fault = each.fault
        if each.word is not None:
            fault = _say(run, each.word, accounts, people, actor, done, so_far)
        if fault:
            done.bad += 1
            on_bad(each.at, fault)
    return done


def _say(
    run: Run,
    word: Word,
    accounts: dict[str, User | None],
    people: Mapping[str, str],
    actor: str,
    done: ImportedWords,
    so_far: defaultdict[tuple[Any, ...], _Told],
) -> str:
    """Store a word unless it is known; returns why it cannot be stored, or nothing."""
    name = people.get(word.person, word.person)
    if not is_storable(word.group + name):
        return f"the name of the group or of the person {UNSTORABLE}"
    if name not in accounts:
        members = Q(memberships__project=run.project_id) | Q(is_superuser=True)
        accounts[name] = User.objects.filter(members, username=name, is_active=True).first()
    person = accounts[name]
    if person is None:
        return f"the project has no member {name}: say whose words these are, by --person '{word.person}=ACCOUNT'"
    group = ScoredGroup.objects.filter(run=run, key=word.group[:64]).first()
    if group is None or group.key != word.group:
        return f"run {run.key} has no group {word.group[:64]}"
    if _is_known(group, person, word, so_far[group.pk, person.pk, word.rollout, word.other]):
        done.known += 1
        return ""
    said: dict[str, Any] = {
        "rollout": word.rollout,
        "other": word.other,
        "preference": word.preference,
        "tags": word.tags,
    }
    said |= {"score": word.score, "note": word.note, "seconds": word.seconds}
    by = actor if name == "" else f"user:{person.get_username()}, imported by {actor}"
    try:
        reviews.say(group, user=person, actor=by[:150], verdict=word.verdict, **said)
    except (Invalid, Conflict) as refused:
        return refused.message
    done.stored += 1
    return ""


def _is_known(group: ScoredGroup, person: User, word: Word, told: _Told) -> bool:
    """Whether the person has said this of it as often before as the files say it: who changed their mind twice said
    the same twice."""
    said = (word.verdict, word.preference, tuple(dict.fromkeys(word.tags)), word.score, word.note)
    if said == told.last:
        return True
    told.last = said
    told.times[said] += 1
    of_rollout = {"rollout__isnull": True} if word.rollout is None else {"rollout__index": word.rollout}
    of_other = {"other__isnull": True} if word.other is None else {"other__index": word.other}
    mine = Label.objects.filter(group=group, person=person, queue__isnull=True, **of_rollout, **of_other)
    known = mine.values_list("verdict", "preference", "tags", "score", "note")
    return sum((*each[:2], tuple(each[2]), *each[3:]) == said for each in known) >= told.times[said]
