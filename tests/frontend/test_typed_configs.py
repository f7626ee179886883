"""Whatever is typed into the launch form as TOML, JSON or a value is answered with what is wrong, never with a 500."""

import re
import tomllib

import pytest
from django.contrib.auth.models import User
from django.test import Client

from tests.rollouts.api import Api, make_token, problem
from trainers.run_config.suggestions import suggest
from trainers.run_config.typed import read_table, read_value

PRESET = "?preset=reverse-text-rl"
HOSTILE = {
    "deep array": "a = " + "[" * 5000 + "]" * 5000,
    "deep enough to pass the parser": "a = " + "[" * 500 + "]" * 500,
    "deep dotted key": ".".join(["a"] * 3000) + " = 1",
    "deep arguments": '[[environments]]\nname = "reverse_text"\nargs = {x = ' + "[" * 90 + "]" * 90 + "}",
    "deep inline tables": "a = " + "{a = " * 2000 + "1" + "}" * 2000,
    "5,000 digits": "max_steps = " + "9" * 5000,
    "400 digits": "max_steps = " + "9" * 400,
    "hexadecimal": "max_steps = 0x" + "f" * 5000,
    "hexadecimal where a number has no bounds": "optimizer.warmup_steps = 0x" + "f" * 5000,
    "a key below a number of a list": "[[optimizer.betas]]\na.b = 1",
    "a key below a text of a list": "[[model.lora.target_modules]]\na = 1",
    "a pair without its first": "optimizer.betas = []",
    "infinite": "[optimizer]\nlr = inf",
    "beyond a float": "[optimizer]\nlr = 1e999999",
    "no number": "[optimizer]\nlr = nan",
    "a date": "max_steps = 2020-01-01",
    "a moment": "name = 2020-01-01T00:00:00Z",
    "a date among arguments": '[[environments]]\nname = "reverse_text"\nargs = {x = 2020-01-01}',
    "a time among arguments": '[[environments]]\nname = "reverse_text"\nargs = {x = 10:00:00}',
    "digits among arguments": '[[environments]]\nname = "reverse_text"\nargs = {x = ' + "9" * 400 + "}",
    "no such day": "a = 2020-02-31",
    "a table that is a text": 'model.path = "a"\nmodel = "b"',
    "a section that is a text": 'model = "b"',
    "a list that is a number": "environments = 3",
    "a list that is a table": "[environments]\na = 1",
    "a dotted key in quotes": '"environments.0.name" = "x"',
    "lists in a list": "environments = [[1]]",
    "everything in a list": 'environments = [1, "a", {name = 3}]',
    "a kind that is a table": "kind = {a = 1}",
    "another kind": 'kind = "sft"',
    "an empty key": '"" = 1',
    "a dot as key": '"." = 1',
    "a NUL": 'name = "a\\u0000"',
    "a NUL as key": '"a\\u0000" = 1',
    "right to left": 'name = "\\u202e"',
    "half a character": 'name = "\\ud800"',
    "a long key": "a" * 60000 + " = 1",
    "many keys": "\n".join(f"a{number} = 1" for number in range(6000)),
    "many tables": "\n".join(f"[a{number}]" for number in range(6000)),
    "many keys within bounds": "\n".join(f"a{number} = 1" for number in range(900)),
    "a long path": 'model.path = "/%s"' % ("a" * 5000),
    "a long way": 'model.path = "%s"' % ("a/" * 5000),
    "a NUL in a path": 'model.path = "\\u0000"',
    "a step that is none": 'model.path = "x@99999999999999999999"',
    "somebody's home": 'model.path = "~root/x"',
    "memory of a process": 'model.path = "/../../proc/self/mem"',
    "a device": 'model.path = "/dev/zero"',
    "more than a column holds": "max_steps = 99999999999999999999",
    "true": "max_steps = true",
    "digits of another script": "a\u0661 = 1",
    "a byte order mark": "\ufeffmax_steps = 1",
    "NUL": "\x00",
}
VALUES = [
    *("[" * 5000, '{"a":' * 3000, "1" * 5000, "1e999", "0x" + "f" * 5000, "nan", "-inf", "2020-01-01", '"\\ud800"'),
    *("\x00", '{"a": "\\ud800"}', '{"\\ud800": 1}', "9" * 400, '{"a": %s}' % ("9" * 5000), '{"a": 1e999}'),
    *('{"a": NaN}', "x = 1", "--1", "1_000", '{"a" = 1}', "{a = 2020-01-01}", "{a = 10:00:00}", "\u202e"),
]
PARTS = 40
LONG = {
    "more characters than a config has": "#" * 20_000,
    "a dotted key": "a." * PARTS + "b = 1",
    "behind others": "[a]\nb = 'x'\nc = [1, 2]\n" + "a." * PARTS + "b = 1",
    "with blanks": "a . \t" * PARTS + "b = 1",
    "in quotes": "'a'.\"b\"." * PARTS + "c = 1",
    "of empty parts": '"".' * PARTS + "a = 1",
    "of escapes": '"\\"\\\\".' * PARTS + "a = 1",
    "of parts with signs": "'#'.\"=\".'['." * PARTS + "a = 1",
    "of a table": "[" + "a." * PARTS + "b]",
    "of a list of tables": "[[" + "a." * PARTS + "b]]",
    "of an inline table": "a = {" + "a." * PARTS + "b = 1}",
    "of an inline table in a list": "a = [1, {b = 2, " + "a." * PARTS + "b = 1}]",
    "behind a text with quotes": 'a = """x""y"""""\n' + "a." * PARTS + "b = 1",
    "behind a raw text with quotes": "a = '''x''y''''\n" + "a." * PARTS + "b = 1",
    "behind a text that ends in a backslash": "a = '\\'\n" + "a." * PARTS + "b = 1",
    "behind a comment with a quote": "a = 1 # it's\n" + "a." * PARTS + "b = 1",
    "on a line that Windows ended": "a = 1\r\n" + "a." * PARTS + "b = 1",
}
DOTS = "a.b.c " * PARTS
SHORT = {
    "numbers": "a = [" + "1.5, " * PARTS + "]",
    "times": "a = [" + "10:00:00.5, " * PARTS + "]",
    "a text": f'a = "{DOTS}"',
    "a word": 'a = "' + "a." * PARTS + '"',
    "a raw text": f"a = '\"{DOTS}'",
    "lines": f'a = """\\"""{DOTS}\n"{DOTS}"""',
    "raw lines": f"a = '''{DOTS}\n'{DOTS}'''",
    "a comment": f"a = 1 # it's {DOTS}",
    "many keys": "\n".join(f"a.b.c.d{number} = 1.0" for number in range(PARTS)),
}


@pytest.mark.parametrize("toml", LONG.values(), ids=LONG)
def test_what_would_take_long_to_parse_is_refused_before(toml: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tomllib, "loads", lambda _: pytest.fail("it was parsed"))
    for read, text in ((read_table, toml), (read_value, f"{{{toml}")):
        with pytest.raises(ValueError, match="more than"):
            read(text)


@pytest.mark.parametrize("toml", SHORT.values(), ids=SHORT)
def test_dots_that_part_no_keys_are_read(toml: str) -> None:
    assert read_table(toml) == tomllib.loads(toml)


DEEP = "environments.0.args." + "a." * 20_000 + "b"
SENT = {
    "keys": ({"config": {f"a{number}": 1 for number in range(2000)}}, "config", "more than 1000 keys"),
    "overrides": ({"overrides": {f"a{number}": 1 for number in range(2000)}}, "config", "more than 1000 keys"),
    "parts": ({"overrides": {DEEP: 1}}, DEEP, "more than 32 deep"),
    "bits": ({"config": {"optimizer": {"warmup_steps": 2**64}}}, "config", "more than 64 bits"),
    "characters": ({"overrides": {"a" * 70_000: 1}}, "config", "more than 64000 characters"),
}


@pytest.mark.parametrize(("given", "key", "sentence"), SENT.values(), ids=SENT)
@pytest.mark.django_db
def test_what_is_sent_to_the_api_has_the_same_bounds(given: dict[str, object], key: str, sentence: str) -> None:
    refused = Api(make_token()).post("runs", {"preset": "reverse-text-rl", **given})
    fields = problem(refused, 422, "invalid_config")["fields"]
    assert list(fields) == [key]
    assert sentence in fields[key]


def test_nothing_is_suggested_for_a_word_longer_than_any_key() -> None:
    assert suggest("max_stepz", ["max_steps"]) == "max_steps"
    assert suggest("s" * 1000, ["s" * 999]) == ""


@pytest.mark.parametrize("toml", HOSTILE.values(), ids=HOSTILE)
def test_overrides_are_answered(client: Client, toml: str) -> None:
    for path in ("/runs/new/", "/runs/new/check/"):
        assert client.post(path + PRESET, {"toml": toml}).status_code in {200, 302, 422}


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_every_field_takes_every_text(client: Client, operator: User, value: str) -> None:
    page = client.get(f"/runs/new/{PRESET}").content.decode()
    names = set(re.findall(r'name="([^"]+)"', page)) - {"csrfmiddlewaretoken", "project"}
    assert len(names) > 50
    filled = dict.fromkeys(sorted(names), value)
    assert client.post(f"/runs/new/check/{PRESET}", filled).status_code == 200
    for structured in ("environments.0.args", "environments.0.weight", "model.path"):
        assert client.post(f"/runs/new/check/{PRESET}", {structured: value}).status_code == 200
