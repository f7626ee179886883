"""What counts as the policy's answer, whatever it wrote."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.rewards import replies
from environments.types import Message, Problem
from tests.environments.rewards.replying import problem, rollout, spoken


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("42", "42"),
        ("<think>41</think>42", "42"),
        ("so it is 41</think>42", "42"),
        ("42 <think>or 41", "42 "),
        ("<think>42", ""),
        ("<think>42</think>", ""),
        ("a\ud800b", "a?b"),
    ],
)
def test_thoughts_are_no_answer(text: str, answer: str) -> None:
    assert replies.answer(problem(), rollout(text)) == answer


def test_reasoning_that_the_template_told_apart_is_no_answer() -> None:
    assert replies.answer(problem(), rollout(None, thought="42")) == ""


def test_a_rollout_without_a_reply_has_an_empty_answer() -> None:
    assert replies.answer(problem(), spoken([])) == ""
    assert replies.answer(problem(), spoken(problem().messages)) == ""


def test_examples_in_the_problem_are_not_the_policys() -> None:
    asked = Problem(key="k", messages=[Message("user", "1"), Message("assistant", "one"), Message("user", "2")])
    assert replies.answer(asked, spoken(asked.messages)) == ""
    assert replies.answer(asked, spoken([*asked.messages, Message("assistant", "two")])) == "two"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("<a>1</a>", "1"),
        ("<a>1</a> or <a>2</a>", "2"),
        ("<a> <a>2</a>", "2"),
        ("<a>1</a> <a>2", "1"),
        ("<a>1", None),
        ("</a>1<a>", None),
        ("<a></a>", ""),
    ],
)
def test_the_last_whole_tag_counts(text: str, found: str | None) -> None:
    assert replies.in_tag(text, "a") == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("```\na\n```", "a"),
        ("so\n```py\na\nb\n```\nand\n```js\nc\n```\n.", "c"),
        ("```\na\n```\n```\nopen", "a"),
        ("```\nopen", None),
        ("a ```b``` c", None),
        ("```\n```", ""),
    ],
)
def test_the_last_whole_block_of_code_counts(text: str, found: str | None) -> None:
    assert replies.in_fence(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1. Code:\n\n   ```python\n   def f():\n       return 1\n   ```\n\n2. Done.", "def f():\n    return 1"),
        ("1. One:\n   ```py\n   a\n   ```\n2. Two:\n   ```py\n   b\n\n   c\n   ```", "b\n\nc"),
        ("- It is\n  - this:\n      ```\n      a\n       b\n      ```", "a\n b"),
        ("1. Code:\n   ```\n   a\n```", "a"),
        ("10. Code:\n    ```\n    a\n    ```", "a"),
        ("- ```py\n  a\n  ```", "a"),
        ("  ```\n  a = '''\nb'''\n  ```", "a = '''\nb'''"),
        ("Here it is: ```python\na\n    b\n```\nDone.", "a\n    b"),
        ("1. Here: ```python\n   a\n   ```", "a"),
        ("1. One:\n   ```\n   a\n   ```\n\nAll:\n```\nb\n```", "b"),
        ("It begins with ```\n```py\na\n```", "a"),
        ("1. Type ```\n2. Then:\n   ```py\n   a\n   ```", "a"),
        ("```py\nreal\n```\nRun it: ```\n$ python x\n```", "real"),
        ("```py\nreal\n```\n1. Run it:\n   ```\n   $ python x\n   ```", "real"),
        ("```py\nreal\n```\n1. Run it:\n   ```\n   $ python x\n```", "real"),
        ("- [x] plan\n\nNow:\n    ```\n    a\n    ```", None),
        ("1. Open:\n   ```\n   a", None),
        ("1. Use ```a``` or\n   ```b``` there", None),
    ],
)
def test_a_block_of_code_may_stand_in_a_list_and_begin_behind_words(text: str, found: str | None) -> None:
    assert replies.in_fence(text) == found


@pytest.mark.parametrize(
    "code",
    [
        'def f():\n    """Do. Example: ```python\n    f(1)\n    ```\n    """\n    return 1',
        'def f():\n    """Do:\n\n    1. Call it:\n\n       ```\n       f(1)\n       ```\n    """\n    return 1',
        "- [x] plan\n\ndef f(): '''\n    ```\n    f(1)\n    ```\n    '''",
    ],
)
def test_an_example_in_a_docstring_is_no_block(code: str) -> None:
    assert replies.in_fence(code) is None


@pytest.mark.parametrize(
    "code", ['def f():\n    """\n    ```\n    f()\n    ```\n    """', "a = 1\n    ```\n    b\n    ```\nc = 2"]
)
def test_backticks_in_code_end_no_block_and_begin_none(code: str) -> None:
    assert replies.in_fence(f"```py\n{code}\n```") == code
    assert replies.in_fence(code) is None


@given(st.lists(st.sampled_from(["a", "", "  b", "```", "```py", "```py x"]), max_size=12))
def test_what_stands_between_lines_at_the_margin_alternates(lines: list[str]) -> None:
    fences = [at for at, line in enumerate(lines) if line.startswith("```")]
    begin, end = fences[len(fences) // 2 * 2 - 2 : len(fences) // 2 * 2] or (None, None)
    assert replies.in_fence("\n".join(lines)) == (None if begin is None else "\n".join(lines[begin + 1 : end]))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1\}}", r"\{1\}"),
        (r"\boxed{1", None),
        ("1}", None),
        (r"\boxed{10} and \boxed{", "10"),
        (r"\boxed{10} and \boxed{1{2}", "10"),
        (r"\boxed{10} goes into \boxed{}, or \boxed{ }", "10"),
        (r"\boxed{\boxed{10}}", "10"),
        (r"\boxed{}", ""),
        (r"} \boxed{1}", "1"),
        (r"{ \boxed{1}", "1"),
        (r"\boxed{1" + "2" * 20_000 + "}", None),
    ],
)
def test_the_last_box_counts_with_its_braces(text: str, found: str | None) -> None:
    assert replies.in_box(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1,234.5", "1234.5"),
        ("from 3 to -4.", "-4"),
        ("7-4", "4"),
        ("−4", "-4"),
        ("1e5", "1e5"),
        (".5", ".5"),
        ("$1,000 in all", "1000"),
        ("١٢", None),
        ("none", None),
    ],
)
def test_the_last_number_is_found(text: str, found: str | None) -> None:
    assert replies.last_number(text) == found


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=1e300))
def test_any_number_that_python_writes_is_read_back(number: float) -> None:
    for written in (repr(number), f"{number:,.3f}"):
        found = replies.last_number(f"It is {written}.")
        assert found is not None
        assert replies.is_same_number(found, written.replace(",", ""))


@given(st.text(alphabet="<>/a`\n{}\\boxedthink1, ", max_size=60))
def test_nothing_that_is_said_breaks_the_reading(text: str) -> None:
    replies.without_thoughts(text)
    for found in (replies.in_tag(text, "a"), replies.in_fence(text), replies.in_box(text), replies.last_number(text)):
        assert found is None or len(found) <= len(text)


def test_a_missing_answer_is_the_problems_fault_and_named() -> None:
    with pytest.raises(ValueError, match="no 'answer'; it has solution"):
        replies.wanted_texts(problem(solution="x"), "answer")
    with pytest.raises(ValueError, match="is blank"):
        replies.wanted_texts(problem(answer=["x", " "]), "answer")
