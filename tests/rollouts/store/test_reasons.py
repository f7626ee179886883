"""Reasons: codes with parameters that are stored, sentences that are made for readers."""

import ast
import json
import re
from pathlib import Path

import pytest
from django.conf import settings

from rollouts.models import Event, Run, ScoredGroup
from rollouts.reasons import Reason, ReasonCode
from rollouts.services.runs import addresses, life
from rollouts.services.transitions import stored, transition
from rollouts.states import GroupState, RunState
from tests.factories import make_event, make_group, make_run, somebody, words

PACKAGES = ("controlplane", "environments", "frontend", "rollouts", "trainers", "workers")


def test_a_sentence_is_made_of_code_and_parameters() -> None:
    reason = Reason(ReasonCode.LAGGED, limit=2, step=7)
    assert (str(reason), reason.heading) == ("lag over 2 steps at step 7", "lag over 2 steps")


def test_a_detail_that_is_not_known_is_left_out() -> None:
    died = Reason(ReasonCode.DIED, exit_code=0, last_words="")
    assert str(died) == "died: exit code 0"
    assert str(Reason(ReasonCode.DIED, exit_code=None, last_words="OSError: no space")) == "died: OSError: no space"


def test_a_reason_can_be_the_reason_of_another() -> None:
    died = Reason(ReasonCode.DIED, exit_code=1, last_words="{braces} [and brackets]")
    hopeless = Reason(ReasonCode.TRAINER_HOPELESS, times=5, last=died)
    sentence = "the trainer died 5 times without a step of progress; last: died: exit code 1: {braces} [and brackets]"
    assert str(hopeless) == sentence
    code, params = stored(hopeless)
    again = Reason.read(code, json.loads(json.dumps(params)))
    assert (again, str(again)) == (hopeless, sentence)


@pytest.mark.parametrize("code", list(ReasonCode))
def test_every_code_is_stored_and_read_back(code: ReasonCode) -> None:
    reason = Reason(code, **dict.fromkeys(code.parameters, 3))
    assert len(code) <= Run._meta.get_field("reason_code").max_length  # type: ignore[operator]
    assert Reason.read(*stored(reason)) == reason
    assert "{" not in str(reason)
    assert "[" not in str(reason) + reason.heading


def test_a_code_takes_its_own_parameters_only() -> None:
    with pytest.raises(TypeError, match="takes"):
        Reason(ReasonCode.LAGGED, limit=2)
    with pytest.raises(TypeError, match="takes"):
        Reason(ReasonCode.ZERO_ADVANTAGE, limit=2)


def test_what_another_version_stored_is_shown_as_it_is() -> None:
    assert str(Reason.read("moon_phase", {"moon": "full"})) == "moon_phase moon=full"
    assert str(Reason.read("lagged", {"limit": 2})) == "lagged limit=2"


@pytest.mark.django_db
def test_a_change_leaves_its_reason_on_the_row_and_in_the_log() -> None:
    run = make_run()
    group = make_group(run)
    reason = Reason(ReasonCode.LAGGED, limit=1, step=4)
    transition(ScoredGroup, [group.pk], to=GroupState.STALE, actor="control plane", reason=reason)
    group.refresh_from_db()
    event = Event.objects.get(object_kind="scoredgroup")
    for row in (group, event):
        assert (row.reason_code, row.reason_params, row.reason) == ("lagged", {"limit": 1, "step": 4}, reason)


@pytest.mark.django_db
def test_no_parameter_is_too_long_or_strange_to_be_stored() -> None:
    run = make_run()
    strange = Reason(ReasonCode.DIED, exit_code=float("nan"), last_words="a\0\ud800" + "b" * 2000)
    hopeless = Reason(ReasonCode.TRAINER_HOPELESS, times=5, last=strange)
    transition(Run, [run.pk], to=RunState.STOPPING, actor="x", reason=hopeless)
    run.refresh_from_db()
    last = run.reason_params["last"]["params"]
    assert (last["exit_code"], len(last["last_words"])) == ("nan", 500)
    assert "a\ufffd\ufffdbbb" in run.state_reason


@pytest.mark.django_db
def test_the_words_of_whoever_stops_a_run_are_a_parameter() -> None:
    first, second = make_run(), make_run()
    assert life.request_stop(first, actor="user:ada", reason="enough").reason == words("enough")
    assert life.request_stop(second, actor="user:ada").reason == Reason(ReasonCode.STOP_ASKED, actor="user:ada")


@pytest.mark.django_db
def test_an_event_says_whether_something_was_made_or_changed_or_only_happened() -> None:
    run = make_run()
    made = make_event(run)
    changed = make_event(run, from_state="starting")
    addresses.change(run, owner=somebody(), actor="user:ada")
    noted = Event.objects.order_by("-id")[0]
    assert [event.kind for event in (made, changed, noted)] == ["created", "changed", "noted"]
    assert (noted.from_state, noted.to_state) == ("running", "running")
    assert noted.reason == Reason(ReasonCode.ATROPOS_KEY_ROTATED)


def test_nothing_in_the_product_decides_by_the_text_of_a_reason() -> None:
    assert not [place for path in _sources() for place in _decisions(path)]


@pytest.mark.parametrize(
    "line",
    [
        "row.state_reason == 'asked to end'",
        "'never started' in observation.reason",
        "row.state_reason.split(' at step ')",
        "str(error).startswith('no')",
        "error.message.partition(':')",
        "Replica.objects.filter(state_reason__contains='x')",
        "re.search('died', replica.state_reason)",
        "run.reason.heading == 'x'",
        "'x' in str(run.reason)",
        "reason.split(', the first with')[0]",
        "seen.reason not in OUTSIDE_REASONS",
        "origin == 'command line'",
    ],
)
def test_the_search_for_decisions_finds_them(line: str) -> None:
    assert list(_decisions_in(ast.parse(line)))


_TEXTS = {"reason", "state_reason", "heading", "message", "sentence", "complaint", "origin"}
_ERRORS = {"error", "exc", "exception", "refused", "problem"}
_METHODS = {"split", "rsplit", "partition", "rpartition", "startswith", "endswith", "removeprefix", "removesuffix"}
_SETS_OF_CODES = {"IN_LOSS"}
"""Of mask reasons, which are numbers."""


def _sources() -> list[Path]:
    root = Path(settings.BASE_DIR)
    found = [path for package in PACKAGES for path in (root / package).rglob("*.py")]
    # What libraries of others say of errors is words alone, for the most part: bridges may read them.
    return [path for path in found if not {"bridges", "migrations", "node_modules"} & set(path.parts)]


def _decisions(path: Path) -> list[str]:
    return [f"{path}:{line}" for line in _decisions_in(ast.parse(path.read_text()))]


def _decisions_in(tree: ast.AST) -> list[int]:
    """Lines on which the sentence of a reason or of an error is compared, searched or taken apart."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if (isinstance(node, ast.Compare) and _compares(node))
        or (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _takes_apart(node, node.func))
    ]


def _compares(node: ast.Compare) -> bool:
    if isinstance(node.ops[0], ast.Is | ast.IsNot):
        return False
    sides = [node.left, *node.comparators]
    others = [side for side in sides if not _is_sentence(side)]
    is_with_text = any(isinstance(side, ast.Constant | ast.JoinedStr | ast.Name) for side in others)
    return is_with_text and len(others) < len(sides) and not _SETS_OF_CODES & set(map(ast.unparse, others))


def _takes_apart(node: ast.Call, method: ast.Attribute) -> bool:
    if method.attr in _METHODS:
        return _is_sentence(method.value)
    if ast.unparse(method.value) == "re":
        return any(map(_is_sentence, node.args))
    return method.attr in {"filter", "exclude", "get"} and any(
        re.match("(state_)?reason(__|$)", each.arg or "") for each in node.keywords
    )


def _is_sentence(node: ast.AST) -> bool:
    """Whether it is the text of a reason, an error or an origin: `x.state_reason`, `str(error)`, `reason`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "str" and node.args:
        return ast.unparse(node.args[0]).split(".")[-1] in _TEXTS | _ERRORS
    if isinstance(node, ast.Name):
        return node.id in _TEXTS - {"message"}  # which is one of a conversation
    return isinstance(node, ast.Attribute) and node.attr in _TEXTS
