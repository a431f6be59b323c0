"""Dynamic dimensions of ONNX models: arguments, names, and shape arithmetic."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx_chains import CHAINS, chain
from onnx_checks import check_dynamic, op_names
from onnx_models import model, node, one_node

from pelton.errors import InputError, ModelError
from pelton.importers.onnx.load import load
from pelton.ir.dims import UNBOUNDED, symbol
from pelton.ir.graph import symbols

# --- how sizes are given


def two(**inputs: str) -> onnx.ModelProto:
    inputs = inputs or {"x": "f32[batch, 3]", "y": "f32[batch, length]"}
    return model([node("Concat", " ".join(inputs), "z", axis=1)], inputs, ["z"])


@pytest.mark.parametrize(
    "given, expected",
    [
        ("1..8..32x3", {"batch": (1, 8, 32), "length": (1, 128, None)}),
        ("0..8..x3", {"batch": (0, 8, None), "length": (1, 128, None)}),
        (("1..8..32", 3), {"batch": (1, 8, 32), "length": (1, 128, None)}),
        (((2, 4, 6), 3), {"batch": (2, 4, 6), "length": (1, 128, None)}),
        ((np.int64(4), 3), {"length": (1, 128, None)}),
        ("4..4..4x3", {"length": (1, 128, None)}),
    ],
)
def test_ranges(given, expected):
    found = load(two(), {"x": given})
    assert found.info.symbols == expected and found.info.defaulted == ("y[1] (length)",)
    assert [s.name for s in symbols(found.graph)] == list(expected)


@pytest.mark.parametrize(
    "given", ["8..1..32x3", "1..8x3", "..8..32x3", "a..b..cx3", ((1, 2), 3), ((3, 2, 1), 3), (None, 3), "1....5x3"]
)
def test_ranges_that_are_none(given):
    with pytest.raises(InputError, match=r"like '1x3x224x224' or '1..8..32x3x224x224' \(min..optimum..max\)"):
        load(two(), {"x": given})


def test_one_name_is_one_size_in_all_inputs():
    z = load(two(), {"x": "1..8..32x3", "y": "1..8..32x5"}).graph.outputs[0].type
    assert z.shape == (symbol("batch", 1, 8, 32), 8)
    for shapes in ({"x": "1..8..32x3", "y": "1..8..16x5"}, {"x": "1..8..32x3", "y": "8x5"}):
        with pytest.raises(InputError, match=r"sets both 1..8..32 and .* for the dimension 'batch'"):
            load(two(), shapes)


def test_names_become_identifiers_of_their_own():
    m = two(**{"in": "f32[größe 1, if]", "x.y": "f32[größe 1, 2]"})
    m.graph.input[0].type.tensor_type.shape.dim.add(dim_param="max")
    m.graph.input[1].type.tensor_type.shape.dim.add()
    assert list(load(m, outputs=["z"], shapes={"in": "1..2..3x1..2..3x1..2..3"}).info.symbols) == [
        "gr_e_1",
        "if_",
        "max_",
    ]
    unnamed = model([node("Relu", "x", "a"), node("Neg", "x_0", "b")], {"x": "f32[?, ?]", "x_0": "f32[?]"}, ["a", "b"])
    for i in unnamed.graph.input:
        for d in i.type.tensor_type.shape.dim:
            d.ClearField("dim_param")
    assert load(unnamed).info.symbols == {"x_0": (1, 1, None), "x_1": (1, 128, None), "x_0_0": (1, 1, None)}


def test_names_may_be_expressions_of_other_names():
    m = model(
        [node("Add", "x y", "s"), node("Concat", "past x", "all", axis=1), node("Mul", "all mask", "z")],
        {"mask": "f32[batch, past + new]", "past": "f32[batch, past]", "x": "f32[batch, new]", "y": "f32[1, new]"},
        ["s", "z"],
    )
    found = check_dynamic(m, {"batch": 2, "past": 3, "new": 4}, {"batch": 1, "past": 5, "new": 1})
    assert set(found.info.symbols) == {"batch", "past", "new"} and found.info.defaulted == (
        "mask[0] (batch)",
        "past[0] (batch)",
        "past[1] (past)",
        "x[0] (batch)",
        "x[1] (new)",
        "y[1] (new)",
    )
    assert found.graph.inputs[0].type.shape[1] == symbol("past", 1, 128) + symbol("new", 1, 128)
    assert load(m, {"past": "2x3", "x": "2x4"}).graph.inputs[0].type.shape == (2, 7)
    # a size that is given for the expression itself counts
    with pytest.raises(ModelError, match="shapes do not broadcast"):
        load(m, {"past": "2x3", "x": "2x4", "mask": "2x9"})
    assert load(model([node("Relu", "x", "y")], {"x": "f32[2*unknown, 3]"}, ["y"])).info.symbols == {
        "n_2_unknown": (1, 1, None)
    }


def test_a_fixed_size_of_the_model_may_be_given_a_range():
    found = load(one_node("Relu", "f32[1, 3]"), {"x0": "1..4..8x3"})
    assert found.info.symbols == {"x0_0": (1, 4, 8)} and "overrides it with 1..4..8" in found.info.warnings[0]


def test_no_upper_bound_is_none():
    assert symbol("n").terms[0][0][0].maximum == UNBOUNDED
    assert load(two()).info.symbols["batch"] == (1, 1, None)


# --- shape arithmetic


@pytest.mark.parametrize(
    "declared, nodes, expected",
    CHAINS,
    ids=[f"{'-'.join(n.op_type for n in nodes[-3:])}-{i}" for i, (_, nodes, _) in enumerate(CHAINS)],
)
def test_shape_arithmetic(declared, nodes, expected):
    m = chain(declared, nodes)
    names = sorted(
        {d.dim_param for i in m.graph.input for d in i.type.tensor_type.shape.dim if d.dim_param.isidentifier()}
        | ({"n"} if "n" in declared.split("[", 1)[1] else set())
        | ({"p"} if "p + n" in declared else set())
    )
    # an input of its own, so that expressions of the names are known
    extra = [f"{name}0: f32[{name}]" for name in names]
    m.graph.input.extend(model([], dict(e.split(": ") for e in extra), []).graph.input)
    small, large = ({name: at(i) for i, name in enumerate(names)} for at in (lambda i: 1 + i, lambda i: 6 - i))
    found = check_dynamic(m, small, large)
    assert op_names(found.graph) == expected
    assert set(found.info.symbols) == set(names) and not any("cannot be read" in w for w in found.info.warnings)


def test_the_minimum_may_be_zero():
    m = model(
        [node("Reshape", "x to", "r"), node("MatMul", "r w", "p"), node("Reshape", "p back", "y")],
        {"x": "f32[b, n, 12]"},
        ["y"],
        {"to": np.array([-1, 12]), "back": np.array([-1, 5]), "w": np.ones((12, 5), np.float32)},
    )
    found = check_dynamic(m, {"b": 2, "n": 3}, {"b": 0, "n": 4}, shapes={"x": "0..2..8x1..3..8x12"})
    assert found.info.symbols["b"] == (0, 2, 8)
