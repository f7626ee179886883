"""What a model or a prompt wrote is shown as text, and what would be invisible is spelled out."""

import html

import pytest
from django.test import Client
from django.urls import reverse

from frontend.visible import visible_html
from rollouts.services.curation import labels
from tests.factories import make_batch, make_event, make_group, make_run, somebody

SCRIPT = "</pre><script>alert('x')</script><img src=x onerror=alert(1)>"


def test_markup_in_prompts_completions_keys_and_reasons_stays_text(client: Client) -> None:
    run = make_run(next_step=1)
    group = make_group(run, prompt=SCRIPT, completions=[SCRIPT, SCRIPT], problem_key=SCRIPT)
    make_batch(run, 0, [group])
    make_event(run, reason=SCRIPT)
    paths = [reverse(name, args=[run.key]) for name in ("run", "run-rollouts", "run-events")]
    paths += [reverse("group", args=[run.key, group.key]), reverse("step", args=[run.key, 0])]
    for path in paths:
        page = client.get(path).content.decode()
        assert "<script>alert" not in page
        assert "<img src=x" not in page
        assert "&lt;script&gt;" in page


def test_a_long_name_is_cut_before_its_hidden_characters_are_marked(client: Client) -> None:
    run = make_run()
    group = make_group(run, problem_key=f"1234567\u200b{'9' * 40}")
    labels.say(group, user=somebody(), actor="user:ada", verdict="accept")
    page = client.get(reverse("run-people", args=[run.key])).content.decode()
    assert f'>1234567<span class="control" title="ZERO WIDTH SPACE">U+200B</span>{"9" * 31}…</a>' in page


@pytest.mark.parametrize("key", ["a/b", "a/", "a\nb", "a?b#c", "%2e", "a b", "\u202ea"])
def test_whatever_key_a_group_was_given_its_pages_open(client: Client, key: str) -> None:
    run = make_run(next_step=1)
    group = make_group(run, key=key)
    make_batch(run, 0, [group])
    for path in [
        reverse("run", args=[run.key]),
        reverse("run-rollouts", args=[run.key]),
        reverse("step", args=[run.key, 0]),
    ]:
        page = client.get(path)
        assert reverse("group", args=[run.key, key]) in html.unescape(page.content.decode())
    assert client.get(reverse("group", args=[run.key, key])).status_code == 200


def test_markup_in_a_search_stays_text(client: Client) -> None:
    assert "<script>alert" not in client.get("/", {"q": SCRIPT}).content.decode()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\u202eb", "U+202E"),
        ("a\u2066b", "U+2066"),
        ("a\x1b[31mb", "U+001B"),
        ("a\u200bb", "U+200B"),
        ("a\ufeffb", "U+FEFF"),
        ("a\U000e0041b", "U+E0041"),
        ("a\rb", "U+000D"),
    ],
)
def test_invisible_characters_are_spelled_out(text: str, shown: str) -> None:
    html = visible_html(text)
    assert shown in html
    assert text[1] not in html


def test_the_tooltip_names_the_character() -> None:
    assert 'title="RIGHT-TO-LEFT OVERRIDE"' in visible_html("\u202e")


def test_ordinary_text_of_any_language_is_left_alone() -> None:
    text = "naïve 日本語 عربي 👩‍👩‍👧 line\n\ttab"
    assert visible_html(text) == text


def test_text_around_a_spelled_character_is_escaped() -> None:
    assert visible_html("<\x00>").startswith("&lt;<span")
