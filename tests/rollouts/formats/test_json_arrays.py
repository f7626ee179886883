"""Arrays as JSON: each float32 with the fewest digits that say which one it is."""

import json

import msgspec
import numpy as np

from rollouts.formats.json_arrays import decimals, encode

GOLDEN = (
    b"[-0.7,1.0,-0.0,0.1,1e-7,0.000015,123456.7,16777216.0,1e+16,-3.4028235e+38,1e-45,1.1754944e-38,"
    b"-0.49999997,7.1054274e-15,null,null]"
)
"""Stored batches are hashes of such text: it may not change with a library."""


def test_numbers_are_written_as_they_always_were() -> None:
    numbers = [-0.7, 1, -0.0, 0.1, 1e-7, 1.5e-5, 123456.7, 2**24, 1e16, -3.4028235e38, 1e-45, 2**-126]
    assert encode(np.array([*numbers, -0.49999997, 2.0**-47, np.nan, np.inf], "<f4")) == GOLDEN


def test_every_number_reads_back_as_the_same_float32_and_no_shorter_one_does() -> None:
    some = np.frombuffer(np.random.default_rng(7).bytes(4 * 20_000), "<f4")
    powers = np.ldexp(np.float32(1), np.arange(-149, 128)).astype("<f4")
    array = np.concatenate([some[np.isfinite(some)], powers, -powers])
    read = json.loads(encode(array))
    assert np.array(read, np.float32).tobytes() == array.tobytes()
    assert read == [float(str(number)) for number in array]
    assert decimals(array) == read


def test_structs_raw_text_and_arrays_of_every_kind_go_together() -> None:
    class Pair(msgspec.Struct):
        left: object
        right: object = None

    table = np.arange(6, dtype="<i4").reshape(3, 2)
    value = {"a": Pair(msgspec.Raw(b'{"b":[1, 2]}')), "c": [table[1:], table[:0], np.array([0, 1], "u1")]}
    assert encode(value) == b'{"a":{"left":{"b":[1, 2]},"right":null},"c":[[[2,3],[4,5]],[],[0,1]]}'
    assert decimals(np.array([np.nan, 0.7], "<f4")) == [None, 0.7]
