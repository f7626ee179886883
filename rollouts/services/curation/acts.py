"""What people do with groups, one or many at once: recorded as one act, and undone as one.

    reject ──▶ withheld: rejected      a group that waits for a batch goes to the state rejected: it enters none
    exclude ─▶ withheld: excluded      exports leave it out
    restore ─▶ withheld from nothing   a rejected group waits for a batch, or for people, again, or is surplus where no
                                       batch comes
    undo ────▶ withheld as before the act, wherever nothing was done with the group since

Whoever comes first to a group has it: a batch that is being formed, or the act. A group that is in a batch stays in it;
that it was rejected too late is an event of the group, and its page says so.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from django.contrib.auth.models import User
from django.db import connection, transaction

from rollouts.errors import Conflict, Invalid
from rollouts.models import Act, ActItem, Run, ScoredGroup, Verb, Withholding
from rollouts.models.curation import MAX_NOTE
from rollouts.reasons import Reason, ReasonCode
from rollouts.services.transitions import record_notes, transition
from rollouts.states import GROUP_WAITING, RUN_TRAINING, GroupState
from rollouts.storable import UNSTORABLE, is_storable

_AT_ONCE = 1_000
"""Groups of which one transaction holds the locks: a batch that is being formed waits for no more."""
_ACTS = 1_633_907_571
"""First key of the advisory locks of acts, which nobody may update; the second is the act."""
_MEANT = {Verb.REJECT: Withholding.REJECTED.value, Verb.EXCLUDE: Withholding.EXCLUDED.value, Verb.RESTORE: ""}
_NOTED = {
    Withholding.REJECTED.value: ReasonCode.REJECTED_LATE,
    Withholding.EXCLUDED.value: ReasonCode.EXCLUDED,
    "": ReasonCode.RESTORED,
}
"""What the event of a group says whose state stays."""


def perform(run: Run, verb: Verb, group_ids: Iterable[int], *, user: User, actor: str, note: str = "") -> Act:
    """Do something with groups of a run; those that it changes are the act's items.

    Groups that are still being played are left alone, and so are those that are as the act wants them: excluding what
    is rejected changes nothing. The caller has made sure that the user may curate. Locks the act and then the groups, a
    thousand at a time, in id order; it ends where somebody undid it meanwhile. Raises Invalid.
    """
    if verb not in _MEANT:
        raise Invalid(f"{verb} is nothing to do with groups: reject, exclude or restore.", fields={"verb": "is none"})
    _check_note(note)
    act = Act.objects.create(run=run, verb=verb, person=user, actor=actor, note=note)
    for ids in _batches(group_ids):
        with transaction.atomic():
            lock(act)
            if Act.objects.filter(undoes=act).exists():
                break
            rows = _lock(run, ids)
            if verb == Verb.EXCLUDE:
                rows = [row for row in rows if row.withheld != Withholding.REJECTED]
            _withhold(act, dict.fromkeys(rows, _MEANT[verb]))
    return act


def undo(act: Act, *, user: User, actor: str, note: str = "") -> Act:
    """Take an act back: each of its groups is withheld as it was before, unless somebody acted on it since.

    Who undoes it once more goes on where that was broken off. The caller has made sure that the user may curate. Locks
    as `perform` does. Raises Conflict where it is undone.
    """
    _check_note(note)
    told = {"run": act.run, "verb": Verb.UNDO, "person": user, "actor": actor, "note": note}
    with transaction.atomic():
        lock(act)
        undoing, is_new = Act.objects.get_or_create(undoes=act, defaults=told)
        before = dict(ActItem.objects.filter(act=act).values_list("group_id", "withheld_before"))
        first, *others = [*_batches(before)] or [[]]
        count = _put_back(undoing, act, first, before)
    for ids in others:
        with transaction.atomic():
            count += _put_back(undoing, act, ids, before)
    if not (is_new or count):
        raise Conflict("It is undone already.")
    return undoing


def _put_back(undoing: Act, act: Act, ids: Iterable[int], before: Mapping[int, str]) -> int:
    """Let groups of an act be withheld as before it, unless somebody acted on them since; return how many."""
    rows = _lock(act.run, ids)
    # By the items, which are numbered while their groups are locked. Of two acts that go on at once, a thousand groups
    # after the other, each may be the later one at some of them.
    newest = ActItem.objects.filter(group__in=rows).order_by("group_id", "-id").distinct("group_id")
    untouched = {group_id for group_id, act_id in newest.values_list("group_id", "act_id") if act_id == act.pk}
    _withhold(undoing, {row: before[row.pk] for row in rows if row.pk in untouched})
    return len(untouched)


def lock(act: Act) -> None:
    """Keep who does something, a thousand groups at a time, and who undoes it apart until this transaction ends: before
    the row of any group, for all who take both."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [_ACTS, act.pk % 2**31])


def _batches(group_ids: Iterable[int]) -> Iterator[list[int]]:
    ids = sorted(set(group_ids))
    return (ids[at : at + _AT_ONCE] for at in range(0, len(ids), _AT_ONCE))


def _lock(run: Run, ids: Iterable[int]) -> list[ScoredGroup]:
    groups = ScoredGroup.objects.filter(run=run, pk__in=list(ids), settled_at__isnull=False)
    return list(groups.order_by("id").select_for_update(no_key=True))


def _withhold(act: Act, meant: Mapping[ScoredGroup, str]) -> None:
    """Let groups, whose rows are locked, be withheld as is meant, with the state and the event that go with it."""
    changed = {row: withheld for row, withheld in meant.items() if row.withheld != withheld}
    ActItem.objects.bulk_create(ActItem(act=act, group=row, withheld_before=row.withheld) for row in changed)
    rows_of: defaultdict[str, list[ScoredGroup]] = defaultdict(list)
    for row, withheld in changed.items():
        rows_of[withheld].append(row)
    for withheld, rows in rows_of.items():
        moved = {*_move(act, rows, withheld)}
        stay = [row for row in rows if row.pk not in moved]
        ScoredGroup.objects.filter(pk__in=[row.pk for row in stay]).update(withheld=withheld)
        reason = Reason(_NOTED[withheld], actor=act.actor, note=act.note)
        record_notes(stay, run_id=act.run_id, actor=act.actor, reason=reason)


def _move(act: Act, rows: Iterable[ScoredGroup], withheld: str) -> list[int]:
    """Change the states that no longer fit: of groups that wait for a batch, and of those that were rejected then."""
    ids = [row.pk for row in rows]
    if withheld == Withholding.REJECTED:
        reason, to = Reason(ReasonCode.REJECTED, actor=act.actor, note=act.note), GroupState.REJECTED
        return transition(
            ScoredGroup, ids, to=to, expect=GROUP_WAITING, actor=act.actor, reason=reason, withheld=withheld
        )
    # The run itself is not locked: what waits when it ends becomes surplus then.
    is_training = Run.objects.filter(pk=act.run_id, state__in=RUN_TRAINING).exists()
    reason = Reason(ReasonCode.RESTORED, actor=act.actor, note=act.note)
    moved: list[int] = []
    for is_held in (False, True):
        own = [row.pk for row in rows if (row.review_until is not None) == is_held]
        waits = GroupState.HELD if is_held else GroupState.READY
        to = waits if is_training else GroupState.SURPLUS
        expect = [GroupState.REJECTED]
        moved += transition(ScoredGroup, own, to=to, expect=expect, actor=act.actor, reason=reason, withheld=withheld)
    return moved


def _check_note(note: str) -> None:
    if len(note) > MAX_NOTE:
        raise Invalid("The note is too long.", fields={"note": f"must have at most {MAX_NOTE} characters"})
    if not is_storable(note):
        raise Invalid(f"The note {UNSTORABLE}.", fields={"note": UNSTORABLE})
