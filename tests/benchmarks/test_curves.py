"""A curve of several seeds is a picture that a browser can read, with a line and a label for each of them."""

import xml.etree.ElementTree as ElementTree
from itertools import pairwise
from pathlib import Path

from benchmarks.curves import write_svg

_SVG = "{http://www.w3.org/2000/svg}"


def test_every_seed_has_a_line_from_its_first_version_to_its_last(tmp_path: Path) -> None:
    write_svg(tmp_path / "curve.svg", {"1": {"0": 0.25, "20": 0.5, "40": 0.75}, "2": {"0": 0.0, "40": 1.0}})
    root = ElementTree.parse(tmp_path / "curve.svg").getroot()
    lines = [
        [tuple(map(float, point.split(","))) for point in each.attrib["points"].split()]
        for each in root.iter(f"{_SVG}polyline")
    ]
    assert [len(line) for line in lines] == [3, 2]
    assert lines[0][0][0] == lines[1][0][0] < lines[0][-1][0] == lines[1][-1][0]
    heights = [y for _, y in lines[0]]
    assert heights == sorted(heights, reverse=True), "more reward is further up"
    assert heights[1] * 2 == heights[0] + heights[2]


def test_labels_of_seeds_that_end_alike_do_not_lie_on_each_other(tmp_path: Path) -> None:
    write_svg(tmp_path / "curve.svg", {seed: {"0": 0.1, "10": 0.5} for seed in ("1", "2", "3")})
    texts = ElementTree.parse(tmp_path / "curve.svg").getroot().iter(f"{_SVG}text")
    heights = sorted(float(each.attrib["y"]) for each in texts if (each.text or "").startswith("seed"))
    assert [after - before for before, after in pairwise(heights)] == [12.0, 12.0]
