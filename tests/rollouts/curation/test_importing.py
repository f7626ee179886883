"""What people said elsewhere: every word of a file once, under the account of who said it; bad ones by their place."""

import json
from typing import Any

import pytest

from rollouts.models import Label, Role, Run
from rollouts.services.curation import importing, labels
from rollouts.services.curation.word_files import words_of
from tests.factories import make_user, somebody
from tests.rollouts import story

pytestmark = pytest.mark.django_db


@pytest.fixture
def run() -> Run:
    run = story.launch()
    story.submit(run, [story.scored("a"), story.scored("b")], actor="api:t")
    make_user("ada", role=Role.CURATOR, project=run.project)
    return run


def load(run: Run, data: str | bytes, **people: str) -> tuple[importing.ImportedWords, list[str]]:
    bad: list[str] = []
    done = importing.import_words(
        run,
        words_of(data.encode() if isinstance(data, str) else data, "words.jsonl"),
        user=somebody("cy"),
        actor="user:cy",
        people=people,
        on_bad=lambda at, fault: bad.append(f"{at}: {fault}"),
    )
    return done, bad


def lines(*rows: Any) -> str:
    return "\n".join(json.dumps(row) for row in rows)


def said(run: Run) -> list[tuple[Any, ...]]:
    words = Label.objects.filter(run=run, superseded_by__isnull=True).order_by("group__key", "rollout__index")
    columns = ("group__key", "rollout__index", "verdict", "tags", "score", "note", "actor")
    return list(words.values_list(*columns))


def test_lines_are_stored_once_however_often_they_are_imported(run: Run) -> None:
    data = lines(
        {"group": "a", "verdict": "reject", "tags": ["loop"], "note": "it repeats"},
        {"group": "b", "rollout": 1, "verdict": "accept", "score": 4, "person": "ada"},
    )
    assert load(run, data)[0] == importing.ImportedWords(stored=2)
    assert load(run, data)[0] == importing.ImportedWords(known=2)
    assert said(run) == [
        ("a", None, "reject", ["loop"], None, "it repeats", "user:cy"),
        ("b", 1, "accept", [], 4.0, "", "user:ada, imported by user:cy"),
    ]


def test_what_a_person_says_since_is_not_overruled_by_importing_again(run: Run) -> None:
    rows = [{"group": "a", "rollout": 0, "verdict": verdict, "tags": ["loop"]} for verdict in ("accept", "reject")]
    assert load(run, lines(*rows))[0] == importing.ImportedWords(stored=2)
    labels.say(run.groups.get(key="a"), user=somebody("cy"), actor="user:cy", verdict="withdrawn", rollout=0)
    assert load(run, lines(*rows))[0] == importing.ImportedWords(known=2)
    assert [word[2] for word in said(run)] == ["withdrawn"]
    # Of another rollout, or by somebody else, it is another word.
    assert load(run, lines(rows[0] | {"rollout": 1}, rows[0] | {"person": "ada"}))[0].stored == 2


def test_who_changed_their_mind_twice_ends_at_what_they_said_last(run: Run) -> None:
    rows = [{"group": "a", "verdict": verdict} for verdict in ("accept", "accept", "reject", "accept")]
    assert load(run, lines(*rows))[0] == importing.ImportedWords(stored=3, known=1)
    assert [word[2] for word in said(run)] == ["accept"]
    labels.say(run.groups.get(key="a"), user=somebody("cy"), actor="user:cy", verdict="reject")
    assert load(run, lines(*rows))[0] == importing.ImportedWords(known=4)
    assert [word[2] for word in said(run)] == ["reject"]


def test_bad_lines_are_told_by_number_and_the_others_are_stored(run: Run) -> None:
    rows = [
        "{",
        lines({"group": "a", "verdict": "accept"}),
        "",
        lines({"group": "z", "verdict": "accept"}),
        lines({"group": "a", "rollout": 9, "verdict": "accept"}),
        lines({"group": "a", "verdict": "perhaps"}),
        lines({"group": "a", "verdict": "accept", "person": "nobody"}),
        lines({"group": "a", "verdict": "accept", "colour": "red"}),
        "[1]",
    ]
    done, bad = load(run, "\n".join(rows))
    assert (done.stored, done.bad) == (1, 7)
    assert [line.split(": ")[0] for line in bad] == [f"words.jsonl:{number}" for number in (1, 4, 5, 6, 7, 8, 9)]
    assert "no group z" in bad[1]
    assert "--person 'nobody=ACCOUNT'" in bad[4]


LATIN = '{"group": "a", "verdict": "accept", "note": "schön"}'.encode("latin-1")
GOOD = b'{"group": "a", "verdict": "accept"}'


def test_what_stands_behind_a_line_of_which_nothing_can_be_made_is_stored(run: Run) -> None:
    unreadable = [
        LATIN,
        b'{"group": "a", "verdict": ' + b"[" * 100_000,
        b'{"group": "a\\u0000", "verdict": "accept"}',
        b'{"group": "a", "verdict": "accept", "person": "\\u0000"}',
    ]
    done, bad = load(run, b"\n".join([*unreadable, GOOD]))
    assert (done.stored, done.bad) == (1, len(unreadable))
    assert [line.split(": ")[0] for line in bad] == [f"words.jsonl:{number}" for number in (1, 2, 3, 4)]
    done, bad = load(run, b"[" + LATIN + b", " + GOOD + b"]")
    assert (done.known, [line.partition(": 'utf-8'")[0] for line in bad]) == (1, ["words.jsonl: item 1"])
    _, bad = load(run, b"[" * 100_000)
    assert [line.split(": ")[:2] for line in bad] == [["words.jsonl", "is no JSON"]]


def test_tasks_of_label_studio_are_read(run: Run) -> None:
    tasks = [
        {
            "id": 1,
            "data": {"group": "a", "rollout": 0, "text": "..."},
            "annotations": [
                {
                    "completed_by": {"email": "ada@example.org"},
                    "lead_time": 12.5,
                    "result": [
                        {"type": "choices", "from_name": "verdict", "value": {"choices": ["Reject", "loop"]}},
                        {"type": "rating", "from_name": "score", "value": {"rating": 2}},
                        {"type": "textarea", "from_name": "why", "value": {"text": ["it repeats", "itself"]}},
                    ],
                },
                {
                    "completed_by": 7,
                    "was_cancelled": True,
                    "result": [{"type": "choices", "from_name": "verdict", "value": {"choices": ["Reject"]}}],
                },
                {
                    "completed_by": 9,
                    "lead_time": 200_000.0,
                    "result": [{"type": "choices", "from_name": "verdict", "value": {"choices": ["Accept"]}}],
                },
                {"completed_by": 8, "result": [{"type": "rating", "from_name": "score", "value": {"rating": 1}}]},
            ],
        },
        {"id": 2, "data": {"text": "names no group"}, "annotations": []},
    ]
    make_user("eve", role=Role.CURATOR, project=run.project)
    done, bad = load(run, json.dumps(tasks), **{"ada@example.org": "ada", "7": "", "9": "eve"})
    assert Label.objects.get(verdict="accept").seconds == labels.MAX_SECONDS
    assert bad == [
        "words.jsonl: item 1: 8 has none of the choices accept, reject, skip",
        "words.jsonl: item 2: `data.group` must say the key of the group",
    ]
    assert (done.stored, done.bad) == (3, 2)
    assert sorted(each[2:] for each in said(run)) == [
        ("accept", [], None, "", "user:eve, imported by user:cy"),
        ("reject", ["loop"], 2.0, "it repeats\nitself", "user:ada, imported by user:cy"),
        ("skip", [], None, "", "user:cy"),
    ]


def test_records_of_argilla_are_read(run: Run) -> None:
    records = [
        {
            "id": "1",
            "fields": {"reply": "..."},
            "metadata": {"group": "b"},
            "responses": {
                "verdict": [{"value": "accept", "user_id": "u1"}, {"value": "reject", "user_id": "u2"}],
                "tags": [{"value": ["short", "kind"], "user_id": "u1"}],
                "where": [{"value": [{"label": "loop", "start": 0, "end": 3}], "user_id": "u2"}],
                "quality": [{"value": 5, "user_id": "u1"}, {"value": 1, "user_id": "u3"}],
                "why": [{"value": "because it is right", "user_id": "u1"}],
            },
            "suggestions": {},
        }
    ]
    done, bad = load(run, json.dumps(records), u1="ada", u2="")
    assert (bad, done.stored) == (["words.jsonl: item 1: u3 has none of the choices accept, reject, skip"], 2)
    assert sorted(each[2:] for each in said(run)) == [
        ("accept", ["short", "kind"], 5.0, "because it is right", "user:ada, imported by user:cy"),
        ("reject", ["loop"], None, "", "user:cy"),
    ]


def test_a_sentence_without_spaces_is_a_note(run: Run) -> None:
    sentence = "这个回答是错的，" * 8
    answers = {"verdict": [{"value": "reject", "user_id": "u"}], "why": [{"value": sentence, "user_id": "u"}]}
    records = [{"id": "1", "fields": {}, "metadata": {"group": "a"}, "responses": answers}]
    assert load(run, json.dumps(records), u="ada")[1] == []
    assert [each[2:6] for each in said(run)] == [("reject", [], None, sentence)]


def test_what_people_mark_in_a_text_is_a_tag_and_no_note_of_theirs(run: Run) -> None:
    marked = {"start": 0, "end": 4, "text": "it repeats"}
    results = [
        {"type": "choices", "value": {"choices": ["reject"]}},
        {"type": "textarea", "value": {"text": ["it repeats"]}},
        {"type": "textarea", "value": {"text": "and is rude"}},
        {"type": "labels", "value": marked | {"labels": ["loop"]}},
        {"type": "hypertextlabels", "value": marked | {"hypertextlabels": ["rude"]}},
        {"type": "paragraphlabels", "value": marked | {"paragraphlabels": ["long", "loop"]}},
    ]
    tasks = [{"data": {"group": "a"}, "annotations": [{"completed_by": 1, "result": results}]}]
    assert load(run, json.dumps(tasks), **{"1": ""})[1] == []
    assert [each[3:6] for each in said(run)] == [(["loop", "rude", "long"], None, "it repeats\nand is rude")]


def test_every_text_of_a_record_is_in_the_note(run: Run) -> None:
    texts = {"why": "because it repeats", "how": "word for word", "verdict": "reject"}
    responses = {name: [{"value": value, "user_id": "u"}] for name, value in texts.items()}
    assert load(run, json.dumps([{"metadata": {"group": "a"}, "responses": responses}]), u="")[1] == []
    assert [each[5] for each in said(run)] == ["because it repeats\nword for word"]


def test_an_imported_score_is_a_reward_where_people_are_in_the_loop() -> None:
    run = story.launch(environments=[{"name": "reverse_text", "review": {}}])
    story.submit(run, [story.scored("a")], actor="api:t")
    load(run, lines(*({"group": "a", "rollout": at, "verdict": "accept", "score": at} for at in range(2))))
    group = run.groups.get()
    assert (group.state, group.given_rewards) == ("ready", [0.0, 1.0])


def test_what_is_no_file_of_words_is_told_in_a_sentence(run: Run) -> None:
    odd = '[{"responses": {"a": 1}, "metadata": {"group": "a"}}]'
    for data in ("[", "[1, 2]", "\x00\x01", '{"annotations": 3}', odd):
        done, bad = load(run, data)
        assert done.stored == 0
        assert bad
    assert load(run, "")[0] == importing.ImportedWords()
