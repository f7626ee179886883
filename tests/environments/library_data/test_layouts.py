"""Data sets as their authors publish them load unmodified: directories of theirs in small, with rows made up here."""

import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from environments.errors import InvalidArguments
from environments.library.data.files import DataFiles
from environments.library.data.rows import read
from environments.types import JsonObject, Split
from tests.environments.library_data.tables import loaded, problems, solved, write

COUNT = 24


def write_csv(path: Path, records: Iterable[Sequence[object]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(records)
    return path


def gsm8k_rows(word: str) -> list[JsonObject]:
    return [{"question": f"{word} {n} + 1?", "answer": f"<<{n}+1={n + 1}>>\n#### {n + 1}"} for n in range(COUNT)]


def math_row(word: str, n: int) -> JsonObject:
    solution = rf"We add: $\boxed{{{n + 1}}}$."
    return {"problem": f"{word}: ${n} + 1$?", "level": f"Level {1 + n % 5}", "type": "Algebra", "solution": solution}


def gsm8k_of_github(root: Path) -> None:
    for split in ("train", "test"):
        write(root / f"{split}.jsonl", gsm8k_rows(split))
        write(root / f"{split}_socratic.jsonl", gsm8k_rows(f"{split} socratic"))
    write(root / "example_model_solutions.jsonl", [{"question": "x", "ground_truth": "y"}])


def gsm8k_of_the_hub(root: Path) -> None:
    for config in ("main", "socratic"):
        for split in ("train", "test"):
            write(root / config / f"{split}-00000-of-00001.parquet", gsm8k_rows(f"{config} {split}"))
    (root / "README.md").write_text(
        "---\nlicense: mit\nconfigs:\n- config_name: main\n  data_files:\n  - split: train\n    path: main/train-*\n"
        "  - split: test\n    path: main/test-*\n- config_name: socratic\n  data_files:\n  - split: train\n"
        "    path: socratic/train-*\n  - split: test\n    path: socratic/test-*\n---\n# GSM8K\n"
    )


def math_of_its_archive(root: Path) -> None:
    for split in ("train", "test"):
        for n in range(COUNT):
            path = root / split / "algebra" / f"{n}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(math_row(split, n)))


def math_of_the_hub(root: Path) -> None:
    for subject in ("algebra", "number_theory"):
        for split in ("train", "test"):
            rows = [math_row(f"{subject} {split}", n) for n in range(COUNT // 2)]
            write(root / subject / f"{split}-00000-of-00001.parquet", rows)


def mmlu_of_its_archive(root: Path) -> None:
    for subject in ("abstract_algebra", "virology"):
        for split, count in (("dev", 5), ("val", 8), ("test", COUNT // 2)):
            records = [(f"{split}, {subject} {n}?", n, n + 1, n + 2, n + 3, "ABCD"[n % 4]) for n in range(count)]
            write_csv(root / split / f"{subject}_{split}.csv", records)
    records = [(f'A text, "quoted",\nof two lines {n}?', "a", "b", "c", "d", "B") for n in range(COUNT)]
    write_csv(root / "auxiliary_train" / "race_train.csv", records)
    (root / "README.txt").write_text("See the paper.")


def mmlu_of_the_hub(root: Path) -> None:
    for config in ("all", "virology", "auxiliary_train"):
        for split in ("train",) if config == "auxiliary_train" else ("auxiliary_train", "dev", "validation", "test"):
            rows = [
                {"question": f"{split} {n}?", "subject": "virology", "choices": list("wxyz"), "answer": n % 4}
                for n in range(COUNT)
            ]
            write(root / config / f"{split}-00000-of-00001.parquet", rows)


@pytest.mark.parametrize(
    ("name", "layout", "word"),
    [
        ("gsm8k", gsm8k_of_github, "t"),
        ("gsm8k", gsm8k_of_the_hub, "main"),
        ("math", math_of_its_archive, "t"),
        ("math", math_of_the_hub, ""),
        ("choices", mmlu_of_its_archive, ""),
        ("choices", mmlu_of_the_hub, ""),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_it_loads_from_a_directory_as_it_is(tmp_path: Path, name: str, layout: object, word: str) -> None:
    layout(tmp_path)  # type: ignore[operator]
    environment = loaded(name, tmp_path)
    assert [environment.count(split) for split in Split] == [COUNT, COUNT]
    assert all(problem.messages[-1].text.startswith(word) for problem in problems(environment, Split.EVAL))
    assert not any("socratic" in problem.messages[-1].text for problem in problems(environment, Split.TRAIN))
    assert solved(environment, environment.problem(Split.EVAL, 3)) == 1.0


def test_subjects_and_examples_of_mmlu_are_in_the_names_of_its_files(tmp_path: Path) -> None:
    mmlu_of_its_archive(tmp_path)
    environment = loaded("choices", tmp_path, subjects=["virology"], few_shot=2, eval_split="test")
    assert environment.count(Split.EVAL) == COUNT // 2
    for problem in problems(environment, Split.EVAL):
        *examples, asked = [message.text for message in problem.messages if message.role == "user"]
        assert [text.startswith("dev, virology") for text in examples] == [True, True]
        assert asked.startswith("test, virology")


def test_gpqa_has_a_column_for_each_choice_and_the_right_one_first(tmp_path: Path) -> None:
    columns = ["Record ID", "Question", "Correct Answer", *(f"Incorrect Answer {n}" for n in (1, 2, 3))]
    columns.append("High-level domain")
    records = [(f"r{n}", f"What is {n}?", f"it is {n}", "x", "y", "z", "Physics") for n in range(64)]
    write_csv(tmp_path / "gpqa_main.csv", [columns, *records])
    environment = loaded("choices", tmp_path)
    found = [problem for split in Split for problem in problems(environment, split)]
    assert len(found) == 64
    assert {problem.data["answer"] for problem in found} == set("ABCD")
    assert all(solved(environment, problem) == 1.0 for problem in found[:5])
    with pytest.raises(InvalidArguments, match="shuffle: leave it on"):
        loaded("choices", tmp_path, shuffle=False)


def test_a_readme_says_which_files_are_which(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv", "c/d.csv"):
        write_csv(tmp_path / name, [["question", "answer"], [name, "1"]])
    (tmp_path / "README.md").write_text(
        "---\nconfigs:\n- config_name: one\n  data_files: a.csv\n- config_name: two\n  default: true\n  data_files:\n"
        "  - split: train\n    path: [b.csv]\n  - split: test\n    path: c/*\n---\n"
    )
    files = DataFiles(str(tmp_path))
    assert [files.of("train"), files.of("test")] == [[tmp_path / "b.csv"], [tmp_path / "c/d.csv"]]
    assert DataFiles(str(tmp_path), "one").of("train") == [tmp_path / "a.csv"]
    with pytest.raises(ValueError, match="has no config 'three'; it has one, two"):
        DataFiles(str(tmp_path), "three")


@pytest.mark.parametrize("pattern", ["../*", "/etc/*", "a/../../b"])
def test_a_readme_names_no_file_of_others(tmp_path: Path, pattern: str) -> None:
    write(tmp_path / "train.jsonl", [{"a": 1}])
    (tmp_path / "README.md").write_text(f"---\nconfigs:\n- config_name: x\n  data_files: '{pattern}'\n---\n")
    with pytest.raises(ValueError, match="lies outside of the data set"):
        DataFiles(str(tmp_path))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a,a\n1,2\n", "has to name its columns, each once"),
        (b"a,b\n1,2,3\n", "row 2 of .* has 3 values for 2 columns"),
        (b"a,b\n\xff,1\n", "is no CSV in UTF-8"),
        (b"", "no rows in there"),
    ],
)
def test_what_is_no_csv_is_named(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "x.csv").write_bytes(content)
    with pytest.raises(ValueError, match=words):
        read([tmp_path / "x.csv"])
