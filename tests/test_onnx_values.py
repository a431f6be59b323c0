"""Operands of ONNX operators known only at run time: counts, sizes, axes, positions, limits, windows.

An engine fed with them equals the importer's result with them as constants, which other tests compare with definitions;
and ONNX Runtime, if installed. Meaningless values raise InputError.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from compare import assert_close
from onnx_cases import BY_HAND, CASES
from onnx_models import draw, one_node
from onnx_values import FED, Fed
from test_onnx_readers import title

import pelton
from pelton.errors import InputError
from pelton.importers.onnx.load import load
from pelton.importers.onnx.node import READERS
from pelton.ir.evaluate import evaluate
from pelton.ir.types import DType

FEW = 8  # elements of a float operand; larger ones are weights
Case = tuple


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    return lambda m: pelton.build(m, level=0, cache_dir=cache)


def text(array, first: str = "") -> str:
    """The type of an array; `first`: the name of its first size, where that is dynamic."""
    shape = [*map(str, array.shape)]
    if first and shape:
        shape[0] = first
    return f"{DType.of(array).value}[{', '.join(shape)}]"


def known(m: onnx.ModelProto, feeds: dict) -> dict:
    return evaluate(load(m, values=feeds).graph, {})


# --- each operand of each operator


def picks() -> list[tuple[Case, tuple[int, ...]]]:
    """Cases with the operands that become inputs: each constant one, and all of them."""
    found = []
    for op, *rest in (*CASES, *(case[:-1] for case in BY_HAND)):
        operands = rest[:-1]
        at = [i for i, a in enumerate(operands) if isinstance(a, np.generic | np.ndarray)]
        small = [i for i in at if np.asarray(operands[i]).dtype.kind != "f" or np.asarray(operands[i]).size <= FEW]
        found += [((op, *rest), pick) for pick in dict.fromkeys([*((i,) for i in small), tuple(at)]) if pick]
    return found


@pytest.mark.parametrize("dynamic", [False, True], ids=["sizes known", "sizes dynamic"])
@pytest.mark.parametrize("case, pick", picks(), ids=lambda x: title(x) if isinstance(x[0], str) else str(x))
def test_operands_may_be_inputs(case, pick, dynamic, build):
    op, *operands, attrs = case
    constant = one_node(op, *operands, **attrs)
    feeds = draw(constant)
    types = [text(np.asarray(a)) if i in pick else a for i, a in enumerate(operands)]
    if dynamic:
        if "block_size" in attrs:
            pytest.skip("blocks say how long their axis is")
        types = [
            text(feeds[f"x{i}"], f"n{i}") if f"x{i}" in feeds and feeds[f"x{i}"].size else t
            for i, t in enumerate(types)
        ]
    fed = {**{f"x{i}": np.asarray(operands[i]) for i in pick}, **feeds}
    want = evaluate(load(constant).graph, feeds)
    assert_close(build(one_node(op, *types, **attrs)).run(fed), want, about=op)


def test_the_cases_have_every_operand_that_may_be_an_input():
    """Integers and booleans that no other operand's elements are: by the schemas of the newest opset."""
    found = {(op, i) for (op, *_), pick in picks() for i in pick}
    found |= {(op, i) for op, *rest in CASES for i, a in enumerate(rest[:-1]) if isinstance(a, str)}
    found |= {(fed.op, i) for fed in FED for each in fed.good for i, a in enumerate(each) if a is not None}
    whole = {"tensor(int64)", "tensor(int32)", "tensor(bool)"}
    expected = {
        (s.name, i)
        for s in onnx.defs.get_all_schemas()
        if not s.domain and (s.domain, s.name) in READERS
        for i, slot in enumerate(s.inputs)
        if set(slot.types) <= whole and i
    }
    assert expected - found == ELSEWHERE


# operands that other tests feed: lengths (test_onnx_lengths.py), loops (test_script.py), positions in lists (below)
ELSEWHERE = {
    ("Attention", 6),
    ("GRU", 4),
    ("Loop", 1),
    ("RNN", 4),
    ("SequenceAt", 1),
    ("SequenceErase", 1),
    ("SequenceInsert", 2),
    ("SplitToSequence", 1),
}


# --- values in turn


def model(fed: Fed, operands: tuple) -> onnx.ModelProto:
    return one_node(fed.op, *(None if a is None else text(a) for a in operands), **fed.attrs)


def feeds_of(operands: tuple) -> dict[str, np.ndarray]:
    return {f"x{i}": a for i, a in enumerate(operands) if a is not None}


def names(fed: Fed) -> str:
    return "-".join([fed.op, *(f"{k}={v}" for k, v in fed.attrs.items())])


@pytest.mark.parametrize("fed", [f for f in FED if f.good], ids=names)
def test_an_engine_takes_one_value_after_the_other(fed, build):
    engine = build(model(fed, fed.good[0]))
    for operands in (*fed.good, *fed.good[::-1]):
        feeds = feeds_of(operands)
        assert_close(engine.run(feeds), known(model(fed, operands), feeds), about=f"{fed.op} of {operands[1:]}")


@pytest.mark.parametrize("fed", [f for f in FED if f.wrong], ids=names)
def test_values_that_mean_nothing_are_the_callers(fed, build):
    engine = build(model(fed, fed.wrong[0]))
    for operands in fed.wrong:
        with pytest.raises(InputError, match=rf"{fed.op}.* given |indices of layer") as caught:
            engine.run(feeds_of(operands))
        assert "Error" not in str(caught.value)
    for operands in fed.good:  # they leave nothing behind
        if all(np.shape(a) == np.shape(b) for a, b in zip(operands, fed.wrong[0])):
            engine.run(feeds_of(operands))


@pytest.mark.parametrize("fed", FED, ids=names)
def test_values_are_what_they_are_to_onnx_runtime(fed, build):
    onnxruntime = pytest.importorskip("onnxruntime")
    for operands in fed.good:
        m, feeds = model(fed, operands), feeds_of(operands)
        for o, inferred in zip(m.graph.output, onnx.shape_inference.infer_shapes(m).graph.output):
            o.type.tensor_type.elem_type = inferred.type.tensor_type.elem_type
        theirs = onnxruntime.InferenceSession(m.SerializeToString()).run(None, feeds)
        ours = build(m).run(feeds)
        assert_close(ours, dict(zip(ours, theirs)), about=f"{fed.op} of {operands[1:]}")


# --- sequences

ITEMS = {"equal": np.array(2), "different": np.array([1, 2, 3])}


@pytest.mark.parametrize("sizes", ITEMS)
@pytest.mark.parametrize("op", ["SequenceAt", "SequenceErase", "SequenceInsert"])
def test_positions_in_sequences(op, sizes, build):
    x = np.random.default_rng(3).standard_normal((2, 6)).astype(np.float32)
    changed = onnx.helper.make_node(op, ["s", "x", "i"] if op == "SequenceInsert" else ["s", "i"], ["t"], "change")
    m = one_node("SplitToSequence", "f32[m, 6]", ITEMS[sizes], axis=1)
    for node in m.graph.node:
        node.input[0], node.output[0] = "x", "s"
    m.graph.input[0].name = "x"
    m.graph.input.append(onnx.helper.make_tensor_value_info("i", onnx.TensorProto.INT64, []))
    m.graph.node.append(changed)
    m.graph.node.append(
        onnx.helper.make_node("Neg", ["t"], ["y0"])
        if op == "SequenceAt"
        else onnx.helper.make_node("ConcatFromSequence", ["t"], ["y0"], axis=1)
    )
    engine, last = build(m), 3 if op == "SequenceInsert" else 2
    parts = np.split(x, [2, 4] if sizes == "equal" else [1, 3], 1)
    for at in (0, -1, 2, 1, -3, last):
        want = [*parts]
        if op == "SequenceAt":
            want = [-parts[at]]
        elif op == "SequenceErase":
            want.pop(at)
        else:
            want.insert(at, x)
        assert_close(engine.run({"x": x, "i": np.array(at)}), {"y0": np.concatenate(want, 1)}, about=f"{op} {at}")
    for at in (last + 1, -4):
        with pytest.raises(InputError, match=rf"{op} needs a position between -3 and {last}, got {at} \(node 'change'"):
            engine.run({"x": x, "i": np.array(at)})


def test_a_sequence_that_is_an_input(build):
    """Also of a script: which element is read depends on the data."""
    sequence = onnx.helper.make_tensor_sequence_value_info("s", onnx.TensorProto.FLOAT, None)
    position = onnx.helper.make_tensor_value_info("i", onnx.TensorProto.INT64, [])
    nodes = [onnx.helper.make_node("SequenceAt", ["s", "i"], ["a"]), onnx.helper.make_node("Neg", ["a"], ["y"])]
    out = [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)]
    m = onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [sequence, position], out))
    engine = pelton.build(m, level=0, shapes={"s[0]": (2,), "s[1]": (2, 3)})
    items = [np.float32([1, 2]), np.ones((2, 3), np.float32)]
    for at in (0, 1, -2):
        assert_close(engine.run({"s": items, "i": np.array(at)}), {"y": -items[at]}, about="SequenceAt")
    with pytest.raises(InputError, match="SequenceAt needs a position between -2 and 1, got 2"):
        engine.run({"s": items, "i": np.array(2)})


# --- random numbers


def test_probabilities_beyond_one_are_certain(build):
    m = one_node("Bernoulli", "f32[6]", opset=15)
    x = np.array([1, 0, np.nextafter(np.float32(1), np.float32(2)), 1.5, -1, np.nan], np.float32)
    engine = build(m)
    for _ in range(20):
        assert engine.run({"x0": x})["y0"].tolist() == [1, 0, 1, 1, 0, 0]


def test_classes_are_drawn_by_their_probabilities(build):
    m = one_node("Multinomial", "f32[3, 3]", sample_size=4000, dtype=7)
    x = np.log(np.array([[1, 2, 1], [1, 1, 3], [5, 1, 4]], np.float32))
    x[1, 1] = np.nan  # never drawn
    drawn = build(m).run({"x0": x})["y0"]
    assert drawn.shape == (3, 4000) and drawn.dtype == np.int64
    shares = np.stack([(drawn == k).mean(1) for k in range(3)], 1)
    assert np.abs(shares - [[0.25, 0.5, 0.25], [0.25, 0, 0.75], [0.5, 0.1, 0.4]]).max() < 0.05
    with pytest.raises(InputError, match="Multinomial.*row 2 needs a class of a finite logarithmic probability"):
        build(m).run({"x0": np.concatenate([x[:2], np.full((1, 3), -np.inf, np.float32)])})


def test_refused_sizes_are_named_as_the_model_names_them(build, caplog):
    """Engines get them as inputs of their own."""
    m = one_node("Tile", "f32[2, 3]", "i64[2]")
    x, engine = np.ones((2, 3), np.float32), build(m)
    assert engine.run({"x0": x, "x1": np.array([2, 0])})["y0"].shape == (4, 0)
    assert "element 1 of 'x1' (x1_1) may have 1 and more, got 0" in caplog.text and ".size" not in caplog.text
