"""Strings through engines: only host steps touch them, they live in Python, and the file stores constant ones."""

import dataclasses
import re

import numpy as np
import pytest
from handmade import compiled, engine
from onnx import helper
from onnx_models import model, one_node

import pelton
from pelton.engine.validate import validate
from pelton.engine.plan import Buffer, Port, Slice, Step, Tensor
from pelton.errors import EngineError, InputError, ModelError

NAMES = np.array(["zero", "one", "zwei", "π", 'a "b"\n'], object)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


def table():
    """Names by number and numbers by name, in one model with arithmetic between: constants, views, a join and an input
    handed through."""
    nodes = [
        helper.make_node("Gather", ["names", "i"], ["word"], axis=0),
        helper.make_node("Unsqueeze", ["word", "first"], ["row"]),
        helper.make_node("Concat", ["row", "given"], ["both"], axis=0),
        helper.make_node("StringConcat", ["both", "mark"], ["marked"]),
        helper.make_node("Equal", ["both", "given"], ["same"]),
        helper.make_node("Cast", ["same"], ["hits"], to=1),
        helper.make_node("Mul", ["hits", "two"], ["twice"]),
        helper.make_node("Identity", ["given"], ["again"]),
    ]
    long = np.array([f"name {i}" for i in range(100)] + list(NAMES), object)
    return model(
        nodes,
        {"i": "i64[3]", "given": "string[1, 3]"},
        ["word", "marked", "twice", "again"],
        {"names": long, "first": np.array([0]), "mark": np.array("!", object), "two": np.array(2, np.float32)},
        opset=20,
    )


FEEDS = {"i": np.array([104, 1, 103]), "given": np.array([["x", "name 1", "π"]])}
WANT = {
    "word": ['a "b"\n', "name 1", "π"],
    "marked": [['a "b"\n!', "name 1!", "π!"], ["x!", "name 1!", "π!"]],
    "twice": [[0, 2, 2], [2, 2, 2]],
    "again": [["x", "name 1", "π"]],
}


def test_strings_there_and_back(cache, tmp_path):
    made = pelton.build(table(), level=0, cache_dir=cache, check=True)
    path = tmp_path / "table.pelton"
    made.save(path)
    for e in (made, pelton.load(path, verify=True)):
        for _ in range(2):
            got = e.run(FEEDS)
            assert {k: v.tolist() for k, v in got.items()} == WANT
            assert {k: v.dtype for k, v in got.items()} == {
                "word": object,
                "marked": object,
                "twice": np.float32,
                "again": object,
            }
        out = {"marked": np.empty((2, 3), object)}
        assert e.run(FEEDS, out=out)["marked"] is out["marked"] and out["marked"].tolist() == WANT["marked"]
        e.context().warmup()
    assert made.tobytes() == pelton.load(path).tobytes()
    assert "text" in {b.kind for b in made.plain.buffers} and {"strings", "arena"} <= {
        b.kind for b in made.plain.buffers
    }


@pytest.mark.parametrize(
    "given",
    [np.array(["a", "b"]), np.array(["a", "b"], object), np.array(["a", "x", "b", "x"], object)[::2]],
    ids=["U", "O", "strided"],
)
def test_arrays_of_strings_that_fit(given, cache):
    e = pelton.build(
        one_node("StringConcat", "string[2]", np.array(["1", "2"], object), opset=20), level=0, cache_dir=cache
    )
    assert e(given).tolist() == ["a1", "b2"]
    assert given.tolist() == ["a", "b"]


@pytest.mark.parametrize(
    "given, expected",
    [
        (np.zeros(2, np.float32), "got float32; make strings of it with .astype(str)"),
        (np.array([b"a", b"b"]), "got bytes; decode them"),
        (np.array(["a", 3], object), "holds int, 3; every element must be a str"),
        (np.array(["a", None], object), "holds NoneType, None"),
        (np.array(["a"]), "axis 0 has 1 instead of 2"),
        (["a", "b"], "as a numpy array, got list"),
    ],
    ids=range(6),
)
def test_arrays_that_are_no_strings(given, expected, cache):
    e = pelton.build(
        one_node("StringConcat", "string[2]", np.array(["1", "2"], object), opset=20), level=0, cache_dir=cache
    )
    with pytest.raises(InputError, match=r"input 'x0' needs string\[2\].*" + re.escape(expected)):
        e(given)


@pytest.mark.parametrize("given", [np.array(["1", "2"]), np.array(["1", "2"], object)], ids=["U", "O"])
def test_numbers_are_not_made_of_strings(given, cache):
    e = pelton.build(one_node("Cast", "f32[2]", opset=13, to=8), level=0, cache_dir=cache)
    assert e(np.array([1, 2.5], np.float32)).tolist() == ["1.0", "2.5"]
    with pytest.raises(
        InputError, match=r"input 'x0' needs f32\[2\] \(numpy float32\), got (str32|an array of Python objects)"
    ):
        e(given)


def strings(buffer, offset=0, size=2):
    return Tensor(Slice(buffer, offset), "string", (size,), (1,))


def plan(**changes):
    """A host step from strings to strings, and a constant text of two."""
    operand = {"i": strings(0), "o": strings(1), "c": strings(2), **{k: v for k, v in changes.items() if len(k) == 1}}
    buffers = [
        Buffer("input", 0, 16),
        Buffer("output", 0, 16),
        Buffer("text", 0, 10),
        Buffer("strings", 0, 16),
        Buffer("arena", 0, 64),
    ]
    made = engine(
        [Port("x", "string", (2,))],
        [Port("y", "string", (2,))],
        buffers,
        [Step("copy", "", host="…", inputs=(operand["i"], operand["c"]), outputs=(operand["o"],))],
        arena=64,
        constants=b'["a", "b"]',
    )
    return dataclasses.replace(made, **{k: v for k, v in changes.items() if len(k) > 1})


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({"i": Tensor(Slice(0, 0), "i64", (2,), (1,))}, "operand of i64 in buffer 0, but that is one of strings"),
        ({"i": strings(4)}, "operand of string in buffer 4, but that is not one of strings"),
        ({"i": strings(0, 4, 1)}, "where no string starts"),
        ({"i": strings(3, 8)}, "reaches byte 24 of buffer 3"),
        ({"c": strings(2, 0, 3)}, "reaches byte 24 of buffer 2"),
        ({"o": strings(2)}, "writes to a constant"),
        ({"constants": b'["a", "b", '}, "must be a list of strings"),
        ({"constants": b'["a", 1   ]'}, "must be a list of strings"),
        ({"constants": b'\xff"a", "b"]'}, "must be a list of strings"),
        (
            {"steps": (Step("k", "scale", (Slice(0, 0), Slice(1, 0)), (2,), 2, 1),), "code": compiled()},
            "is a kernel and would touch strings",
        ),
        (
            {"steps": (Step("k", "scale", (Slice(4, 0), Slice(3, 0)), (2,), 2, 1),), "code": compiled()},
            "is a kernel and would touch strings",
        ),
    ],
    ids=range(11),
)
def test_plans_that_would_touch_strings_wrongly(changes, expected):
    validate(plan())
    with pytest.raises(EngineError, match=re.escape(expected)):
        validate(plan(**changes))


def test_strings_are_filled_with_empty_ones(cache):
    """Pad and Trilu of strings without a value: ONNX's default is the empty string."""
    words = np.array([["a", "b"], ["c", "d"]], object)
    padded = model(
        [helper.make_node("Pad", ["x", "pads"], ["y"])],
        {"x": "string[2, 2]"},
        ["y"],
        {"pads": np.array([0, 1, 1, 0])},
        opset=18,
    )
    got = pelton.build(padded, level=0, cache_dir=cache).run({"x": words})["y"]
    assert got.tolist() == [["", "a", "b"], ["", "c", "d"], ["", "", ""]]


def test_a_number_among_strings_is_refused():
    padded = model(
        [helper.make_node("Pad", ["x"], ["y"], pads=[0, 1, 1, 0], value=2.0)], {"x": "string[2, 2]"}, ["y"], opset=6
    )
    with pytest.raises(ModelError, match="Pad of strings has the number 2 among them"):
        pelton.build(padded, level=0)
