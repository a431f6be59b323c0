"""Inputs that index tables: their detection, and refusal of indices outside the tables."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx_models import model, node

import pelton
from pelton.backends.arrays import random_inputs
from pelton.backends.cpu.prepared import CpuReady
from pelton.compiler.index_ranges import index_ranges
from pelton.diagnose.explain import errors
from pelton.engine import file
from pelton.engine.plan import IndexRange, Port
from pelton.errors import EngineError, InputError
from pelton.importers.onnx.load import load

TABLE = np.arange(40, dtype=np.float32).reshape(10, 4)


def embedding(ids: str) -> onnx.ModelProto:
    return model([node("Gather", "table ids", "y", name="words")], {"ids": ids}, ["y"], {"table": TABLE})


@pytest.mark.parametrize("dtype", ["i64", "i32"])
@pytest.mark.parametrize("shape", ["2, 3", "b, n"])
def test_a_run_refuses_an_index_that_its_table_does_not_have(tmp_path, dtype, shape):
    built = pelton.build(embedding(f"{dtype}[{shape}]"), level=0, cache_dir=tmp_path)
    built.save(tmp_path / "e.pelton")
    ids = np.array([[0, 9, 3], [-10, -1, 5]], built.inputs[0].numpy_dtype)
    for engine in (built, pelton.load(tmp_path / "e.pelton")):
        context, out = engine.context(), np.empty((2, 3, 4), np.float32)
        for out_or_none in (None, {"y": out}):
            np.testing.assert_array_equal(context.run({"ids": ids}, out_or_none)["y"], TABLE[ids])
        assert isinstance(context._latest, CpuReady) and context._latest.call({"ids": ids}) is not None  # type: ignore
        for wrong in (10, -11, np.iinfo(ids.dtype).max, np.iinfo(ids.dtype).min):
            given = ids.copy()
            given[1, 2] = wrong
            for strided in (given, np.asfortranarray(given)):
                for out_or_none in (None, {"y": out}):
                    said = rf"'ids' has {wrong} at \[1, 2\], but indices of layer 'words' must be from -10 to 9"
                    with pytest.raises(InputError, match=said):
                        context.run({"ids": strided}, out_or_none)
            assert context._latest.call({"ids": given}) is None  # type: ignore[misc]


def ranges(nodes, inputs: dict[str, str], **tables: np.ndarray) -> dict[str, IndexRange]:
    return index_ranges(load(model(nodes, inputs, ["y"], {"t": TABLE, **tables})).graph)


@pytest.mark.parametrize(
    "nodes, inputs",
    [
        ([node("Cast", "i", "c", to=TensorProto.INT32), node("Gather", "t c", "y")], {"i": "i64[3]"}),
        ([node("Transpose", "i", "c"), node("Gather", "t c", "y")], {"i": "i64[3, n]"}),
        ([node("Reshape", "i flat", "c"), node("Gather", "t c", "y")], {"i": "i64[3, 2]"}),
        ([node("Concat", "i j", "c", axis=0), node("Gather", "t c", "y")], {"i": "i64[3]", "j": "i64[n]"}),
        ([node("GatherElements", "t i", "y", axis=0)], {"i": "i64[3, 4]"}),
        ([node("GatherND", "t i", "y")], {"i": "i64[3, 1]"}),
        ([node("ScatterElements", "t i new", "y", axis=0)], {"i": "i64[3, 4]"}),
        ([node("ScatterND", "t i new", "y")], {"i": "i64[3, 1]"}),
        ([node("Gather", "t i", "a"), node("Gather", "long i", "b"), node("Add", "a b", "y")], {"i": "i64[3]"}),
    ],
    ids=lambda given: given[0].op_type if isinstance(given, list) else "",
)
def test_inputs_whose_elements_all_choose_from_a_table(nodes, inputs):
    found = ranges(
        nodes, inputs, flat=np.array([-1]), long=np.ones((11, 4), np.float32), new=np.ones((3, 4), np.float32)
    )
    assert {name: (r.low, r.high) for name, r in found.items()} == dict.fromkeys(inputs, (-10, 9))


@pytest.mark.parametrize(
    "nodes, inputs",
    [
        ([node("Slice", "i one three", "c"), node("Gather", "t c", "y")], {"i": "i64[3]"}),
        ([node("Mod", "i three", "c"), node("Gather", "t c", "y")], {"i": "i64[3]"}),
        ([node("Gather", "x i", "y")], {"x": "f32[n]", "i": "i64[3]"}),
        ([node("GatherND", "t i", "y")], {"i": "i64[3, 2]"}),
    ],
    ids=["some", "computed", "unknown length", "two axes"],
)
def test_other_inputs_have_no_bounds(nodes, inputs):
    assert not ranges(nodes, inputs, one=np.array([1]), three=np.array([3]))


def test_inputs_of_scripts_have_bounds_where_every_run_indexes_by_them(tmp_path):
    nodes = [
        node("Gather", "t ids", "w", name="words"),
        node("NonZero", "w", "z"),
        node("Gather", "t z", "y"),
    ]
    engine = pelton.build(model(nodes, {"ids": "i64[3]"}, ["y"], {"t": TABLE}), level=0, cache_dir=tmp_path)
    assert engine.parts and engine.inputs[0].indices == IndexRange(-10, 9, "words")
    assert not any(port.indices for part in engine.parts for port in part.inputs)
    engine.run({"ids": np.array([0, 9, -10])})
    with pytest.raises(InputError, match=r"'ids' has 10 at \[1\], but indices of layer 'words'"):
        engine.run({"ids": np.array([0, 10, -10])})


def test_made_up_indices_are_in_the_table():
    assert not random_inputs([Port("i", "i64", (99,), indices=IndexRange(-1, 0, "one"))])["i"].any()
    assert random_inputs([Port("i", "i64", (99,), indices=IndexRange(-9, 8, "more"))])["i"].any()


@pytest.mark.parametrize("damaged", [IndexRange(-10, 10, "words"), IndexRange(0, -1, "words"), IndexRange("a", 9, "")])
def test_damaged_bounds_are_refused(tmp_path, damaged):
    plain = pelton.build(embedding("i64[3]"), level=0, cache_dir=tmp_path).plain
    (port,) = plain.inputs
    with pytest.raises(EngineError, match="ind"):
        file.to_bytes(dataclasses.replace(plain, inputs=(dataclasses.replace(port, indices=damaged),)))


def later_rows() -> onnx.ModelProto:
    """Picks rows of which the model says nothing before it runs: 8 behind those that an input names."""
    nodes = [node("Add", "ids eight", "later"), node("Gather", "x later", "y", name="pick")]
    return model(nodes, {"x": "f32[n, 3]", "ids": "i64[2]"}, ["y"], {"eight": np.int64(8)})


def test_a_check_leaves_out_layers_that_made_up_inputs_do_not_fit(tmp_path, caplog):
    engine = pelton.build(later_rows(), shapes={"x": "1..4..16x3"}, level=0, check=True, cache_dir=tmp_path)
    assert "the kernel of pick is left unchecked" in caplog.text
    assert "pick" not in dict(engine.meta["checked"])
    x = np.arange(30, dtype=np.float32).reshape(10, 3)
    assert np.array_equal(engine.run({"x": x, "ids": np.array([1, 0])})["y"], x[[9, 8]])


def test_the_reference_refuses_indices_that_a_table_lacks(tmp_path):
    inputs = {"x": np.ones((9, 3), np.float32), "ids": np.array([0, 1])}
    with pytest.raises(InputError, match=r"'pick' \(gather\) has an index that its table lacks: index 9 is out of"):
        errors(later_rows(), inputs, level=0, cache_dir=tmp_path)
