"""Queues over the API: made, worked through and read by tokens, each of which is somebody's."""

from typing import Any

import pytest

from rollouts.models import Label, LabelQueue, Role, Run, Scope
from rollouts.services.curation import turns
from tests.factories import make_project, make_user
from tests.rollouts import story
from tests.rollouts.api import Api, make_token, problem

pytestmark = pytest.mark.django_db
BOTH = (Scope.READ, Scope.CURATE)


@pytest.fixture
def run() -> Run:
    run = story.launch()
    story.submit(run, [story.scored(key) for key in "abc"], actor="api:t")
    return run


def curator(name: str = "cy", scopes: Any = BOTH, **fields: Any) -> Api:
    user = fields.pop("user", None) or make_user(name, role=Role.CURATOR)
    return Api(make_token(scopes, user=user, **fields))


def make(api: Api, **fields: Any) -> str:
    answer = api.post("queues", {"name": "Loops"} | fields)
    assert answer.status_code == 201, answer.content
    return str(answer.json()["queue"])


def take(api: Api, queue: str) -> Any:
    answer = api.post(f"queues/{queue}/take")
    assert answer.status_code == 200, answer.content
    return answer.json()["item"]


def say(api: Api, queue: str, verdict: str = "accept", **said: Any) -> Any:
    answer = api.post(f"queues/{queue}/word", {"turn": take(api, queue)["turn"], "verdict": verdict} | said)
    assert answer.status_code == 201, answer.content
    return answer.json()


def test_a_queue_is_made_read_guided_and_closed(run: Run) -> None:
    api = curator()
    asked = {
        "unit": "rollout",
        "filter": {"run": run.key, "text": "loop"},
        "guideline": "first",
        "tags": ["loop"],
        "words_per_item": 2,
        "people": ["cy"],
    }
    made = api.get(f"queues/{(key := make(api, **asked))}").json()
    assert made | asked == made
    assert (made["guideline_version"], made["items"], made["closed_at"], made["source"]) == (1, 0, None, None)
    assert api.get("queues").json() == {"queues": [made], "next_before": None}
    guided = api.post(f"queues/{key}/guideline", {"text": "second"}).json()
    assert (guided["guideline"], guided["guideline_version"]) == ("second", 2)
    assert api.post(f"queues/{key}/people", {"people": []}).json()["people"] == []
    assert api.post(f"queues/{key}/close").json()["closed_at"] is not None
    problem(api.post(f"queues/{key}/take"), 409, "state_conflict")


def test_items_are_taken_answered_and_taken_back(run: Run) -> None:
    api = curator()
    queue = make(api, on_reject="reject", tags=["loop"])
    item = take(api, queue)
    assert (item["run"], item["group"], item["rollout"], item["left"]) == (run.key, "a", None, None)
    assert [each["reward"] for each in item["rollouts"]] == [1.0, 0.0]
    assert take(api, queue)["turn"] == item["turn"]
    said = say(api, queue, "reject", tags=["loop"], note="no")
    assert (said["group"], said["queue"], said["is_adjudicated"], said["actor"]) == ("a", queue, False, "api:test")
    assert run.groups.get(key="a").state == "rejected"
    assert api.get(f"queues/{queue}").json()["done"] == 1
    back = api.post(f"queues/{queue}/undo").json()["item"]
    assert back["turn"] == item["turn"]
    assert run.groups.get(key="a").state == "ready"
    problem(api.post(f"queues/{queue}/undo"), 404, "not_found")
    problem(api.post(f"queues/{queue}/word", {"turn": "x", "verdict": "accept"}), 404, "not_found")


def test_a_closed_queue_gives_nothing_back_and_takes_no_word_if_it_is_blind(run: Run) -> None:
    api = curator()
    for name, is_blind in (("seeing", False), ("blind", True)):
        queue = make(api, name=name, is_blind=is_blind)
        say(api, queue)
        body = {"turn": take(api, queue)["turn"], "verdict": "accept"}
        api.post(f"queues/{queue}/close")
        problem(api.post(f"queues/{queue}/undo"), 409, "state_conflict")
        answered = api.post(f"queues/{queue}/word", body)
        if is_blind:
            problem(answered, 409, "state_conflict")
        else:
            assert answered.status_code == 201


def test_an_item_is_the_persons_whichever_way_they_come(run: Run) -> None:
    cy = make_user("cy", role=Role.CURATOR)
    one, two = curator(user=cy), curator(user=cy)
    queue = make(one)
    item = take(one, queue)
    assert take(two, queue)["turn"] == item["turn"]
    assert take(curator("di"), queue)["group"] == "b"
    turn = turns.take(LabelQueue.objects.get(key=queue), cy)
    assert turn is not None
    assert str(turn.key) == item["turn"]
    said = say(two, queue)
    assert Label.objects.get(key=said["label"]).person == cy


def test_a_pair_is_preferred_corrected_by_nobody_and_agreed_upon(run: Run) -> None:
    one, two = curator(), curator("di")
    queue = make(one, unit="pair", words_per_item=2)
    item = take(one, queue)
    assert (item["rollout"], item["other"]) == (0, 1)
    assert item["left"] in ("first", "other")
    assert [each["reward"] for each in item["rollouts"]] == [None, None]
    body = {"turn": item["turn"], "verdict": "accept"}
    assert list(problem(one.post(f"queues/{queue}/word", body), 422, "invalid")["fields"]) == ["preference"]
    for mine, theirs in (("first", "first"), ("tie", "tie"), ("other", "first")):
        assert say(one, queue, preference=mine)["preference"] == mine
        say(two, queue, preference=theirs)
    found = one.get(f"queues/{queue}/agreement").json()
    assert (found["words"]["pairs"], found["disagreements"]) == (3, 1)
    assert found["words"]["percent"] == pytest.approx(2 / 3)
    # Coincidences of units of two: first 2+1, tie 2, other 1: 1 - (6 - 1) * 2 / (36 - 9 - 4 - 1).
    assert found["words"]["alpha"] == pytest.approx(1 - 5 * 2 / 22)
    disputed = make(one, name="Adjudicate", source=queue)
    assert say(one, disputed, preference="other")["is_adjudicated"]
    assert take(one, disputed) is None


def test_how_far_people_agree_blindly_is_told_to_those_who_are_given_no_items(run: Run) -> None:
    one, lead = curator(), Api(make_token(BOTH, user=make_user("lead", role=Role.ADMIN)))
    queue = make(one, is_blind=True, words_per_item=2, people=["cy"])
    say(one, queue)
    assert "until it is closed" in problem(one.get(f"queues/{queue}/agreement"), 403, "forbidden")["detail"]
    assert lead.get(f"queues/{queue}/agreement").json()["disagreements"] == 0
    one.post(f"queues/{queue}/close")
    assert one.get(f"queues/{queue}/agreement").json()["disagreements"] == 0


def test_a_rollout_is_corrected(run: Run) -> None:
    messages = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "5"}]
    group = story.scored("d")
    group.rollouts[0].messages = messages
    story.submit(run, [group], actor="api:t")
    api = curator()
    queue = make(api, unit="rollout", filter={"text": "5"})
    edited = [messages[0], messages[1] | {"content": "4"}]
    assert say(api, queue, edited=edited)["edited"] == edited
    [label] = api.get(f"runs/{run.key}/labels?group=d").json()["labels"]
    assert label["edited"] == edited


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"filter": {"text": "x" * 201}}, "filter.text"),
        ({"filter": {"run": "nobodys"}}, "filter.run"),
        ({"people": ["nobody"]}, "people"),
        ({"source": "nobodys"}, "source"),
        ({"unit": "pair", "on_reject": "reject"}, "on_reject"),
    ],
)
def test_a_queue_that_makes_no_sense_is_refused_by_the_name_of_the_field(
    run: Run, fields: dict[str, Any], named: str
) -> None:
    refused = problem(curator().post("queues", {"name": "q"} | fields), 422, "invalid")
    assert list(refused["fields"]) == [named]


def test_what_may_be_done_depends_on_the_token_and_who_it_is_of(run: Run) -> None:
    queue = make(curator())
    reader = curator("reader", (Scope.READ,))
    problem(reader.post(f"queues/{queue}/take"), 403, "forbidden")
    assert reader.get(f"queues/{queue}").status_code == 200
    viewer = curator(user=make_user("viewer", role=Role.VIEWER))
    problem(viewer.post(f"queues/{queue}/take"), 403, "forbidden")
    bound = curator("bound", run=run)
    problem(bound.get("queues"), 403, "forbidden")
    problem(bound.post(f"queues/{queue}/take"), 403, "forbidden")
    elsewhere = make_project("elsewhere")
    stranger = curator(user=make_user("stranger", role=Role.CURATOR, project=elsewhere), project=elsewhere)
    problem(stranger.get(f"queues/{queue}"), 404, "not_found")
    assert stranger.get("queues").json()["queues"] == []
