"""Sizes that a run decides, from ONNX files: how they are given and named, shape arithmetic, and what becomes of sizes
that nobody gives."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from compare import assert_close
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnx_cases import BY_HAND, CASES
from onnx_models import draw, model, one_node

import pelton
from pelton.errors import InputError, ModelError
from pelton import importers
from pelton.partition import partition
from pelton.ir.imported import Imported, OnData
from pelton.importers.onnx.load import load
from pelton.ir.dims import UNBOUNDED, symbol
from pelton.ir.evaluate import evaluate
from pelton.ir.graph import sizes_of, symbols
from pelton.ir.text import parse, to_text
from pelton.ir.verify import verify
from pelton.passes import pipeline


def node(op: str, inputs: str, outputs: str, **attrs) -> onnx.NodeProto:
    """Names apart by spaces; `_` is an absent one."""
    names = [["" if n == "_" else n for n in text.split()] for text in (inputs, outputs)]
    return helper.make_node(op, *names, **attrs)


def sized(m: onnx.ModelProto, sizes: dict[str, int]) -> onnx.ModelProto:
    """The model with numbers for the names of its dimensions."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(m)
    for i in fixed.graph.input:
        for d in i.type.tensor_type.shape.dim:
            if d.dim_param:
                d.dim_value = eval(d.dim_param, {}, dict(sizes))
    return fixed


def check(m: onnx.ModelProto, *runs: dict[str, int], shapes: dict | None = None) -> Imported:
    """The model imported once, and before and after the passes what the onnx package makes of it for each of these
    sizes."""
    found = load(m, shapes)
    verify(found.graph)
    text = to_text(found.graph, data=True)
    assert to_text(parse(text, {v.name: a for v, a in found.graph.constants.items()}), data=True) == text
    after, _ = pipeline.run(found.graph)
    verify(after)
    for seed, sizes in enumerate(runs):
        feeds = draw(sized(m, sizes), seed)
        want = dict(zip([o.name for o in m.graph.output], map(np.asarray, ReferenceEvaluator(m).run(None, feeds))))
        for graph in (found.graph, after):
            assert_close(evaluate(graph, feeds), want, about=f"{m.graph.node[-1].op_type} for {sizes}")
    return found


def words(found: Imported) -> list[str]:
    return [n.op.name for n in found.graph.nodes]


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
        with pytest.raises(InputError, match=r"say both 1..8..32 and .* for the dimension 'batch'"):
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
    found = check(m, {"batch": 2, "past": 3, "new": 4}, {"batch": 1, "past": 5, "new": 1})
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
    # of what is said to be another size, it is read as one
    with pytest.raises(ModelError, match="shapes do not broadcast"):
        load(m, {"past": "2x3", "x": "2x4", "mask": "2x9"})
    assert load(model([node("Relu", "x", "y")], {"x": "f32[2*unknown, 3]"}, ["y"])).info.symbols == {
        "n_2_unknown": (1, 1, None)
    }


def test_a_fixed_size_of_the_model_may_be_given_a_range():
    found = load(one_node("Relu", "f32[1, 3]"), {"x0": "1..4..8x3"})
    assert found.info.symbols == {"x0_0": (1, 4, 8)} and "1..4..8 is taken" in found.info.warnings[0]


# --- shapes on their way

I64, F32 = TensorProto.INT64, TensorProto.FLOAT
CHAINS = [
    # reshapes as exporters write them
    (
        "x: f32[b, n, 12]",
        [
            node("Shape", "x", "s"),
            node("Gather", "s zero", "b"),
            node("Gather", "s one", "n"),
            node("Unsqueeze", "b zeros", "b1"),
            node("Unsqueeze", "n zeros", "n1"),
            node("Concat", "b1 n1 four minus", "to", axis=0),
            node("Reshape", "x to", "y"),
        ],
        ["reshape"],
    ),
    (
        "x: f32[b, n, 12]",
        [
            node("Shape", "x", "s", start=0, end=2),
            node("Concat", "s minus", "to", axis=0),
            node("Reshape", "x to", "y"),
        ],
        ["copy"],
    ),
    ("x: f32[b, n, 12]", [node("Reshape", "x keep", "y")], ["reshape"]),
    ("x: f32[b, n, 12]", [node("Flatten", "x", "f"), node("Shape", "f", "y")], ["sizes"]),
    (
        "x: f32[b, n, m]",
        [node("Shape", "x", "s"), node("ReduceProd", "s", "p", keepdims=1), node("Reshape", "x p", "y")],
        ["reshape"],
    ),
    (
        "x: f32[b, n, m]",
        [node("Size", "x", "p"), node("Unsqueeze", "p zeros", "p1"), node("Reshape", "x p1", "y")],
        ["reshape"],
    ),
    (
        "x: f32[b, n, 12]",
        [
            node("Shape", "x", "s"),
            node("Split", "s", "b n c"),
            node("Mul", "b n", "r"),
            node("Concat", "r c", "to", axis=0),
            node("Reshape", "x to", "f"),
            node("MatMul", "f w", "g"),
            node("Concat", "b n minus", "back", axis=0),
            node("Reshape", "g back", "y"),
        ],
        ["reshape", "matmul", "reshape"],
    ),
    # halves of an axis, integers and floats
    (
        "x: f32[b, 2*n]",
        [
            node("Shape", "x", "s"),
            node("Gather", "s one", "n"),
            node("Div", "n two", "d"),
            node("Unsqueeze", "d zeros", "h"),
            node("Slice", "x zeros h ones", "y"),
        ],
        ["slice"],
    ),
    (
        "x: f32[b, n]",
        [
            node("Shape", "x", "s"),
            node("Gather", "s one", "n"),
            node("Cast", "n", "f", to=F32),
            node("Mul", "f half", "h"),
            node("Floor", "h", "g"),
            node("Cast", "g", "i", to=I64),
            node("Unsqueeze", "i zeros", "e"),
            node("Slice", "x zeros e ones", "y"),
        ],
        ["slice"],
    ),
    (
        "x: f32[b, n]",
        [
            node("Shape", "x", "s"),
            node("Gather", "s one", "n"),
            node("Cast", "n", "f", to=F32),
            node("Div", "f f2", "h"),
            node("Ceil", "h", "g"),
            node("Cast", "g", "i", to=I64),
            node("Unsqueeze", "i zeros", "e"),
            node("Slice", "x zeros e ones", "y"),
        ],
        ["slice"],
    ),
    # expansions, with -1 left as it is
    (
        "x: f32[b, 1, n]",
        [
            node("Shape", "x", "s"),
            node("ConstantOfShape", "three", "o", value=helper.make_tensor("", I64, [1], [1])),
            node("Mul", "o minus", "m"),
            node("Equal", "s m", "e"),
            node("Where", "e o s", "t"),
            node("Expand", "x t", "v"),
            node("Expand", "v wide", "y"),
        ],
        ["expand"],
    ),
    (
        "x: f32[b, n]",
        [
            node("Shape", "x", "s"),
            node("ConstantOfShape", "s", "o", value=helper.make_tensor("", F32, [1], [2.5])),
            node("Mul", "x o", "y"),
        ],
        ["expand", "mul"],
    ),
    (
        "x: f32[b, n]",
        [node("Shape", "x", "s"), node("Expand", "half s", "o"), node("Add", "x o", "y")],
        ["expand", "add"],
    ),
    (
        "x: f32[b, n]; z: f32[b, n]",
        [
            node("Shape", "z", "s"),
            node("Slice", "s ones two1", "n"),
            node("Concat", "ones n", "r", axis=0),
            node("Tile", "x r", "y"),
        ],
        ["tile"],
    ),
    (
        "x: f32[b, n]",
        [node("Shape", "x", "s"), node("Pad", "s before one", "r"), node("Reshape", "x r", "y")],
        ["reshape"],
    ),
    # positions
    (
        "x: f32[b, n]",
        [
            node("Shape", "x", "s"),
            node("Gather", "s one", "n"),
            node("Range", "zero n one", "r"),
            node("Cast", "r", "f", to=F32),
            node("Add", "x f", "y"),
        ],
        ["iota", "cast", "add"],
    ),
    (
        "x: f32[b, n]",
        [
            node("Shape", "x", "s"),
            node("Gather", "s one", "n"),
            node("Add", "n two", "m"),
            node("Range", "two m one", "y"),
        ],
        ["iota", "add"],
    ),
    (
        "x: f32[b, n]",
        [node("Shape", "x", "s"), node("Gather", "s one", "n"), node("Range", "n zero down", "y")],
        ["sizes", "iota", "mul", "add"],
    ),
    (
        "x: f32[b, n]",
        [
            node("Shape", "x", "s"),
            node("Gather", "s one", "n"),
            node("Add", "n two", "m"),
            node("Range", "n m one", "y"),
        ],
        ["sizes"],
    ),
    ("x: f32[b, n]", [node("EyeLike", "x", "y", k=1)], ["iota", "reshape", "add", "iota", "equal", "cast"]),
    (
        "i: i64[b, n]",
        [node("Shape", "i", "s"), node("Gather", "s one", "n"), node("OneHot", "i n onoff", "y")],
        ["one_hot"],
    ),
    ("x: f32[b, n]", [node("Hardmax", "x", "y")], ["arg_max", "iota", "equal", "cast"]),
    # slices
    *(
        (f"x: f32[b, n + {more}, 3]", [node("Slice", f"x {start} {end} ones", "y")], ["slice"])
        for more, start, end in (
            (0, "ones", "end"),
            (1, "zeros", "minus"),
            (2, "minus2", "end"),
            (3, "ones", "minus"),
            (2, "zeros", "two1"),
            (2, "ones", "two1"),
        )
    ),
    ("x: f32[b, n, 3]", [node("Slice", "x minus least ones minus", "y")], ["slice"]),
    ("x: f32[b, n + 1, 3]", [node("Slice", "x zeros end ones two1", "y")], ["slice"]),
    ("x: f32[b, n, 3]", [node("Slice", "x zeros end ones", "y")], ["copy"]),
    ("x: f32[b, n, 3]", [node("Gather", "x down", "y", axis=1)], ["slice", "reshape"]),
    ("x: f32[b, n + 1, 3]", [node("Gather", "x pair", "y", axis=1)], ["gather"]),
    ("x: f32[b, 3*n]", [node("Split", "x", "a y c", axis=1)], ["slice"]),
    ("x: f32[b, n + 2]", [node("Split", "x", "a y", axis=1, num_outputs=2)], ["slice"]),
    (
        "x: f32[b, n]; z: f32[b, m]",
        [
            node("Concat", "x z", "c", axis=1),
            node("Shape", "x", "s"),
            node("Slice", "s ones two1", "n"),
            node("Slice", "c n end ones", "y"),
        ],
        ["concat", "slice"],
    ),
    # pads, sizes, windows
    (
        "x: f32[b, n, 3]",
        [
            node("Shape", "x", "s"),
            node("Slice", "s ones two1", "n"),
            node("Concat", "zeros n zeros zeros zeros zeros", "p", axis=0),
            node("Pad", "x p", "y"),
        ],
        ["pad"],
    ),
    (
        "x: f32[b, 2, h, w]; z: f32[b, 2, g, v]",
        [node("Shape", "z", "s"), node("Resize", "x _ _ s", "y", mode="linear")],
        ["resize"],
    ),
    (
        "x: f32[b, 2, h, w]",
        [
            node(
                "Resize",
                "x _ scales",
                "y",
                mode="nearest",
                coordinate_transformation_mode="asymmetric",
                nearest_mode="floor",
            )
        ],
        ["resize"],
    ),
    (
        "x: f32[b, 2, h, w]",
        [
            node("Conv", "x k", "c", strides=[2, 2], pads=[2, 2, 2, 2]),
            node("MaxPool", "c", "p", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
            node("ReduceMax", "p", "y"),
        ],
        ["convolution", "max_pool", "reduce_max"],
    ),
    ("x: f32[b, 2, h, w]", [node("Conv", "x k", "y", strides=[2, 2], auto_pad="SAME_UPPER")], ["convolution"]),
    ("x: f32[b, 2, h, w]", [node("ConvTranspose", "x k", "y", strides=[2, 2])], ["conv_transpose"]),
    # sizes as data: once, whoever reads them
    (
        "x: f32[b, n]",
        [
            node("Shape", "x", "s"),
            node("Cast", "s", "f", to=F32),
            node("Gather", "f one", "n"),
            node("Div", "x n", "d"),
            node("Sub", "d n", "y"),
        ],
        ["sizes", "cast", "gather", "div", "sub"],
    ),
    (
        "x: f32[b, n]",
        [node("Shape", "x", "s"), node("Cast", "s", "i", to=TensorProto.INT32), node("Less", "i i2", "y")],
        ["sizes", "cast", "less"],
    ),
    ("x: f32[b, n]", [node("Shape", "x", "y")], ["sizes"]),
    # attention with a cache and a causal mask out of a table
    (
        "q: f32[b, 2, n, 8]; c: f32[b, 2, p + n, 8]",
        [
            node("Shape", "q", "qs"),
            node("Shape", "c", "ks"),
            node("Slice", "qs two1 three", "n"),
            node("Slice", "ks two1 three", "t"),
            node("Sub", "t n", "p"),
            node("Slice", "table p t zeros", "rows"),
            node("Slice", "rows zeros t ones", "may"),
            node("Transpose", "c", "kt", perm=[0, 1, 3, 2]),
            node("MatMul", "q kt", "a"),
            node("Where", "may a low", "m"),
            node("Softmax", "m", "v"),
            node("MatMul", "v c", "y"),
        ],
        ["slice", "slice", "transpose", "matmul", "where", "softmax", "matmul"],
    ),
    ("x: f32[b, n, 8]", [node("LSTM", "x wl rl", "y h", hidden_size=5)], ["expand", "expand", "lstm"]),
]
CONSTANTS = {
    "zero": np.int64(0),
    "one": np.int64(1),
    "two": np.int64(2),
    "down": np.int64(-1),
    "zeros": [0],
    "ones": [1],
    "minus": [-1],
    "minus2": [-2],
    "two1": [2],
    "three": [3],
    "four": [4],
    "pair": [0, -1],
    "keep": [0, -1, 6, 2],
    "wide": [1, 3, 1],
    "end": [np.iinfo(np.int64).max],
    "least": [np.iinfo(np.int64).min],
    "half": np.float32(0.5),
    "f2": np.float32(2),
    "low": np.float32(-1e4),
    "onoff": np.float32([0.5, 2]),
    "i2": np.int32(2),
    "scales": np.float32([1, 1, 2, 1.5]),
    "w": np.linspace(0, 1, 60, dtype=np.float32).reshape(12, 5),
    "table": np.tri(16, dtype=bool),
    "k": np.linspace(-1, 1, 36, dtype=np.float32).reshape(2, 2, 3, 3),
    "wl": np.linspace(-1, 1, 160, dtype=np.float32).reshape(1, 20, 8),
    "rl": np.linspace(1, -1, 100, dtype=np.float32).reshape(1, 20, 5),
    "before": [1, 0],
}


def chain(declared: str, nodes: list[onnx.NodeProto]) -> onnx.ModelProto:
    inputs = dict(text.strip().split(": ") for text in declared.split(";"))
    read = {name for n in nodes for name in n.input}
    return model(nodes, inputs, ["y"], {k: np.asarray(a) for k, a in CONSTANTS.items() if k in read}, opset=18)


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
    found = check(m, {name: 1 + i for i, name in enumerate(names)}, {name: 6 - i for i, name in enumerate(names)})
    assert words(found) == expected
    assert set(found.info.symbols) == set(names) and not any("cannot be read" in w for w in found.info.warnings)


# --- every reader


def with_symbols(m: onnx.ModelProto) -> onnx.ModelProto:
    """The model with a name in the place of every size of its inputs other than 1; equal sizes have one name."""
    named = onnx.ModelProto()
    named.CopyFrom(m)
    for i in named.graph.input:
        for d in i.type.tensor_type.shape.dim:
            if d.dim_value > 1:
                d.dim_param = f"d{d.dim_value}"
    return named


@pytest.mark.parametrize("case", [*CASES, *(c[:-1] for c in BY_HAND)], ids=lambda c: c[0])
def test_readers_for_sizes_that_nobody_gave(case):
    """A model that can be read for numbers can be read without, as long as they are not what no other size can do; for
    the sizes that it then takes it means the same."""
    op, *operands, attrs = case
    m = one_node(op, *operands, **attrs)
    try:
        found = load(with_symbols(m))
    except ModelError:
        pytest.skip("it cannot be read for sizes of one, either")
    verify(found.graph)
    try:
        after, _ = pipeline.run(found.graph)
    except ModelError:
        assert found.info.assumed
        pytest.skip("it looks up what its tables do not have, for the sizes that were assumed")
    verify(after)
    for more in (0, 3):
        fixed = onnx.ModelProto()
        fixed.CopyFrom(m)
        for i in fixed.graph.input:
            for d in i.type.tensor_type.shape.dim:
                d.dim_value += more * (d.dim_value > 1)
        feeds = draw(fixed, low=1.1, high=3.0) if op == "Acosh" else draw(fixed)
        try:
            sizes = sizes_of(found.graph, {k: a.shape for k, a in feeds.items()})
            want = evaluate(load(fixed).graph, feeds)
        except (ValueError, ModelError):
            continue
        if all(s.minimum <= sizes[s.name] <= s.maximum for s in symbols(found.graph)):
            for graph in (found.graph, after):
                assert_close(evaluate(graph, feeds), want, about=f"{op} for {sizes}")


# --- what becomes of sizes that nobody gives


def conv(**attrs) -> onnx.ModelProto:
    return one_node("Conv", "f32[n, c, h, w]", np.ones((4, 3, 3, 5), np.float32), **attrs)


def test_what_a_model_needs_of_open_sizes_narrows_them():
    found = load(conv())
    assert found.info.symbols == {"n": (1, 1, None), "h": (3, 128, None), "w": (5, 128, None)}
    assert any("x0[1] (c): it has to be 3 (node 'node'" in w for w in found.info.warnings)
    assert any("x0[2] (h) is taken from 3 to any (node 'node'" in w for w in found.info.warnings)
    assert found.info.defaulted == ("x0[0] (n)", "x0[1] (c)", "x0[2] (h)", "x0[3] (w)")


@pytest.mark.parametrize(
    "op, attrs",
    [
        ("LinearRegressor", dict(coefficients=[1.0, 2, 3, 4, 5, 6], targets=2)),
        ("LinearClassifier", dict(coefficients=[1.0, 2, 3, 4, 5, 6], intercepts=[0.5, 0.25], classlabels_ints=[0, 1])),
        ("Imputer", dict(imputed_value_floats=[1.0, 2, 3], replaced_value_float=0.0)),
        ("SVMRegressor", dict(coefficients=[1.0, 2, 3], rho=[0.5])),
        ("SVMRegressor", dict(coefficients=[1.0, 2], rho=[0.5], n_supports=2, support_vectors=[1.0, 2, 3, 4, 5, 6])),
        ("SVMClassifier", dict(coefficients=[1.0, 2, 3, 4, 5, 6], rho=[0.5], classlabels_ints=[0, 1])),
    ],
)
def test_a_model_says_how_many_features_there_are(op, attrs):
    outputs = ["y", "z"] if "Classifier" in op else ["y"]
    m = model(
        [helper.make_node(op, ["x"], outputs, domain="ai.onnx.ml", **attrs)],
        {"x": "f32[n, f]"},
        outputs,
        domains={"ai.onnx.ml": 3},
    )
    found = load(m)
    assert set(found.info.symbols) == {"n"} and any("(f): it has to be 3" in w for w in found.info.warnings)


def test_tables_say_how_long_an_open_size_may_be():
    m = model(
        [
            node("Shape", "x", "s"),
            node("Gather", "s one", "n"),
            node("Unsqueeze", "n zero", "e"),
            node("Slice", "table zero e", "t"),
            node("Add", "x t", "y"),
        ],
        {"x": "f32[b, n]"},
        ["y"],
        {"one": np.int64(1), "zero": np.array([0]), "table": np.arange(64, dtype=np.float32)},
    )
    assert load(m).info.symbols == {"b": (1, 1, None), "n": (1, 64, 64)}
    assert load(m, {"x": "1x1..16..64"}).info.symbols == {"n": (1, 16, 64)}
    with pytest.raises(ModelError, match=r"whether n = min\(64, n\) depends on dynamic dimensions.*Add → y"):
        load(m, {"x": "1x1..16..65"})


def test_open_sizes_that_meet_are_one():
    m = model([node("MatMul", "x y", "z")], {"x": "f32[a, b]", "y": "f32[c, d]"}, ["z"])
    found = load(m)
    assert list(found.info.symbols) == ["a", "b", "d"] and any(
        "y[0] (c): it has to be b" in w for w in found.info.warnings
    )
    assert [s for s in found.graph.inputs[1].type.shape] == [symbol("b", 1, 128), symbol("d", 1, 128)]


@pytest.mark.parametrize("to", [[9, -1, 32], [9, 4, 32], [0, 4, 32]])
def test_sizes_that_an_exporter_left_in_a_shape_are_those_of_the_inputs(to):
    m = model(
        [node("Mul", "x z", "p"), node("Reshape", "p to", "y")],
        {"x": "f32[frames, batch, 2, 16]", "z": "f32[batch, 1, 1]"},
        ["y"],
        {"to": np.array(to)},
    )
    found = load(m)
    fixed = {name: size for name, size in (("frames", to[0]), ("batch", to[1])) if size > 0}
    assert set(found.info.symbols) == {"frames", "batch"} - set(fixed)
    assert all(
        any(f"({name}): it has to be {size} (node 'Reshape" in w for w in found.info.warnings)
        for name, size in fixed.items()
    )


def test_what_cannot_be_read_for_any_size_is_left_to_scripts():
    """A number of sizes that no arithmetic of sizes gives is data: one engine cannot have it as a size, a script
    can."""
    m = model(
        [
            node("Shape", "x", "s"),
            node("Cast", "s", "f", to=F32),
            node("Sqrt", "f", "r"),
            node("Cast", "r", "i", to=I64),
            node("ReduceSum", "i", "j", keepdims=1),
            node("Tile", "z j", "y"),
        ],
        {"x": "f32[a]", "z": "f32[c]"},
        ["y"],
    )
    with pytest.raises(OnData, match="Tile needs a constant as its repeats.*node 'Tile → y'"):
        load(m)
    found = partition.scripted(importers.unread(m, {"x": ("1..4..8",)}))
    assert found.info.symbols == {"a": (1, 4, 8), "c": (1, 1, None)} and len(found.programs) == 2 and not found.host


def test_ranges_that_were_asked_for_are_not_given_up():
    with pytest.raises(ModelError, match=r"needs windows that fit|whether h - 2 >= 1 depends.*node 'node'"):
        load(conv(), {"x0": "1x3x1..8..32x8"})
    assert load(conv(), {"x0": "1x3x3..8..32x8"}).info.symbols == {"h": (3, 8, 32)}


def test_foreign_steps_keep_sizes_by_name():
    found = load(one_node("RandomNormalLike", "f32[n, 3, h, w]"))
    assert found.info.foreign and list(map(str, found.graph.outputs[0].type.shape)) == ["n", "3", "h", "w"]
    assert evaluate(found.graph, {"x0": np.zeros((2, 3, 4, 5), np.float32)})["y0"].shape == (2, 3, 4, 5)


def test_nothing_at_all_may_be_the_least():
    m = model(
        [node("Reshape", "x to", "r"), node("MatMul", "r w", "p"), node("Reshape", "p back", "y")],
        {"x": "f32[b, n, 12]"},
        ["y"],
        {"to": np.array([-1, 12]), "back": np.array([-1, 5]), "w": np.ones((12, 5), np.float32)},
    )
    assert check(m, {"b": 2, "n": 3}, {"b": 0, "n": 4}, shapes={"x": "0..2..8x1..3..8x12"}).info.symbols["b"] == (
        0,
        2,
        8,
    )


def test_no_upper_bound_is_not_a_number():
    assert symbol("n").terms[0][0][0].maximum == UNBOUNDED
    assert load(two()).info.symbols["batch"] == (1, 1, None)


@pytest.mark.parametrize(
    "inputs, node",
    [
        ("float[n,8] x, float[8,16] w", "y = MatMul(v, w)"),
        ("float[n,8] x", "y = Softmax(v)"),
        ("float[n,8] x", "y = ReduceSum<keepdims=0>(v, axis)"),
    ],
)
def test_layers_over_what_is_usually_nothing(tmp_path, inputs, node):
    given = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]>\n'
        f"g ({inputs}) => (float[] y) <int64[1] begin = {{1}}, int64[1] end = {{100}}, int64[1] axis = {{0}}> "
        f"{{ v = Slice(x, begin, end, axis)  {node} }}"
    )
    engine = pelton.build(given, level=0, cache_dir=tmp_path)  # tuned for n of 1, where v is empty
    rng = np.random.default_rng(0)
    for n in (1, 2, 5):
        x = {
            p.name: rng.standard_normal([n if d == "n" else d for d in p.shape]).astype(np.float32)
            for p in engine.inputs
        }
        want = ReferenceEvaluator(given).run(None, x)[0]
        got = engine.run(x)["y"]
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, atol=1e-5)
