"""The code of an environment as text: found without running it, and what it imports beside itself."""

import os
from pathlib import Path

import pytest

from environments import registry, sources


def install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: dict[str, str], place: str) -> None:
    for path, text in files.items():
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(registry, "places", lambda: {"theirs": place})


def test_ours_are_their_module_and_what_it_uses_beside_it() -> None:
    found = sources.read("wordle")
    assert {"environments/library/wordle.py", "environments/library/wordle_words.py"} <= found.keys()
    assert "environments/library/blackjack.py" not in found
    assert "environments/env.py" not in found


@pytest.mark.parametrize("name", registry.names())
def test_the_code_of_everything_that_ships_is_found(name: str) -> None:
    assert sources.read(name)


def test_nothing_of_somebody_elses_is_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bomb = f"open({str(tmp_path / 'marker')!r}, 'w')\n"
    files = {
        "their_games/__init__.py": bomb,
        "their_games/deep/__init__.py": bomb,
        "their_games/deep/game.py": bomb + "from .words import WORDS\nfrom their_games import secret\nimport os\n",
        "their_games/deep/words.py": bomb,
        "their_games/secret.py": bomb,
    }
    install(monkeypatch, tmp_path, files, "their_games.deep.game:Game")
    assert sources.read("theirs").keys() == {"their_games/deep/game.py", "their_games/deep/words.py"}
    assert not (tmp_path / "marker").exists()


def test_a_module_alone_is_its_own_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, tmp_path, {"one_game.py": "class Game: ..."}, "one_game:Game")
    assert sources.read("theirs") == {"one_game.py": "class Game: ..."}


@pytest.mark.parametrize("text", ["def broken(:", "\0", "import " + "a." * 3000 + "b", f"from {'.' * 30} import x"])
def test_code_that_cannot_be_read_is_kept_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> None:
    install(monkeypatch, tmp_path, {"one_game.py": text}, "one_game:Game")
    assert sources.read("theirs") == {"one_game.py": text}


def test_of_what_is_not_here_or_too_large_nothing_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, tmp_path, {"one_game.py": "x" * (sources.MOST_BYTES + 1)}, "one_game:Game")
    assert sources.read("theirs") == {}
    assert sources.read("no_such_environment") == {}
    assert sources.read("../../etc/passwd") == {}


@pytest.mark.parametrize("helper", ["words.py", "words/__init__.py"])
def test_a_link_below_the_package_is_not_followed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, helper: str) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / Path(helper).name).write_text("a key that signs")
    files = {"their_games/__init__.py": "", "their_games/game.py": "if 0: from their_games import words"}
    install(monkeypatch, tmp_path, files, "their_games.game:Game")
    link = tmp_path / "their_games" / Path(helper).parts[0]
    link.symlink_to(tmp_path / "home" / ("words.py" if link.suffix else ""))
    assert sources.read("theirs") == {}


def test_a_package_may_be_a_link_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = {"work/__init__.py": "", "work/game.py": "from . import words", "work/words.py": "WORDS = ()"}
    install(monkeypatch, tmp_path, files, "linked_games.game:Game")
    (tmp_path / "linked_games").symlink_to("work")
    assert sources.read("theirs").keys() == {f"linked_games/{name}.py" for name in ("game", "words")}


def test_a_file_is_not_read_beyond_what_may_be_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, tmp_path, {"one_game.py": "import vast"}, "one_game:Game")
    with open(tmp_path / "vast.py", "wb") as file:
        file.truncate(2**42)
    assert sources.read("theirs") == {}
    (tmp_path / "vast.py").unlink()
    os.mkfifo(tmp_path / "vast.py")
    assert sources.read("theirs").keys() == {"one_game.py"}


def test_nobody_reads_a_module_of_ours_by_naming_it_as_a_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "local_settings.py").write_text("PASSWORD = 'hunter2'")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert sources.read("local_settings:PASSWORD") == {}
    assert sources.read("local_settings") == {}


def test_the_digest_tells_names_and_texts_apart() -> None:
    assert sources.digest({"a": "b", "c": "d"}) == sources.digest({"c": "d", "a": "b"})
    assert len({sources.digest(each) for each in ({"a": "bc"}, {"ab": "c"}, {"a": "b", "c": ""}, {"a": "bc\n"})}) == 4
