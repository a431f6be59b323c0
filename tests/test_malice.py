"""Malicious models: sizes beyond all memory, endless loops, bottomless nesting. Each is refused, or bounded, in a
supervised child process."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from fuzz import cases, pool
from onnx import TensorProto, helper
from onnx_operands import f32, i64
from onnx_models import model, one_node

from pelton.builder.build import build
from pelton.options import Options

HUGE = 1 << 40


def node(op: str, inputs: str, outputs: str, **attrs) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), **attrs)


def body(nodes, inputs: str, outputs: str) -> onnx.GraphProto:
    return helper.make_graph(
        nodes,
        "body",
        [onnx.ValueInfoProto(name=i) for i in inputs.split()],
        [onnx.ValueInfoProto(name=o) for o in outputs.split()],
    )


def endless(condition: str) -> onnx.ModelProto:
    """A loop whose condition stays true: always, or for the data that it is fed."""
    turn = body(
        [
            node("Add", "acc one", "next"),
            node("IsNaN", "next", "isnan"),
            node("Identity", "go", "on") if condition == "always" else node("Not", "isnan", "on"),
        ],
        "i go acc",
        "on next",
    )
    return model(
        [helper.make_node("Loop", ["", "yes", "x"], ["y"], body=turn)],
        {"x": "f32[]"},
        ["y"],
        {"yes": np.bool_(True), "one": np.float32(1)},
    )


def loops_in_loops(depth: int, count: int = 250) -> onnx.ModelProto:
    """250 iterations of 250 iterations of …"""
    inner = body(
        [node("Neg", f"a{depth}", f"r{depth}"), node("Identity", f"g{depth}", f"h{depth}")],
        f"i{depth} g{depth} a{depth}",
        f"h{depth} r{depth}",
    )
    for k in reversed(range(depth)):
        inner = body(
            [node("Loop", f"n yes a{k}", f"r{k}", body=inner), node("Identity", f"g{k}", f"h{k}")],
            f"i{k} g{k} a{k}",
            f"h{k} r{k}",
        )
    return model(
        [node("Loop", "n yes x", "y", body=inner)],
        {"x": "f32[2]"},
        ["y"],
        {"yes": np.bool_(True), "n": np.int64(count)},
    )


def laughs(depth: int) -> onnx.ModelProto:
    """A function that calls two of a function that calls two of …"""
    made = []
    for k in range(depth):
        nodes = (
            [helper.make_node(f"F{k + 1}", [a], [b], domain="mine") for a, b in (("a", "b"), ("b", "c"))]
            if k + 1 < depth
            else [node("Neg", "a", "c")]
        )
        made.append(
            helper.make_function(
                "mine", f"F{k}", ["a"], ["c"], nodes, [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
            )
        )
    return model(
        [helper.make_node("F0", ["x"], ["y"], domain="mine")],
        {"x": "f32[2]"},
        ["y"],
        functions=made,
        domains={"mine": 1},
    )


def nested(depth: int) -> onnx.ModelProto:
    """A branch in a branch in a branch …"""
    inner = body([node("Neg", "x", f"r{depth}")], "", f"r{depth}")
    for k in reversed(range(depth)):
        inner = body(
            [node("If", "c", f"r{k}", then_branch=inner, else_branch=body([node("Abs", "x", f"e{k}")], "", f"e{k}"))],
            "",
            f"r{k}",
        )
    return model(
        [node("If", "c", "y", then_branch=inner, else_branch=body([node("Abs", "x", "z")], "", "z"))],
        {"x": "f32[2]"},
        ["y"],
        {"c": np.bool_(True)},
    )


def powers(count: int, op: str = "Mul") -> onnx.ModelProto:
    """A size multiplied with itself again and again, on its way to a shape."""
    nodes = [
        node("Shape", "x", "shape"),
        node("Gather", "shape zero", "n"),
        node("Gather", "shape one", "m"),
        node("Add", "n m", "s0"),
    ]
    nodes += [node(op, f"s{k} s{k}", f"s{k + 1}") for k in range(count)]
    return model(
        [*nodes, node("Expand", f"f s{count}", "y")],
        {"x": "f32[a, b]"},
        ["y"],
        {"zero": i64(0), "one": i64(1), "f": f32(1)},
    )


def chained(count: int, op: str) -> onnx.ModelProto:
    """One operator after the other: no harm at all, but depth."""
    nodes = [node(op, f"x{k} w" if op == "Mul" else f"x{k}", f"x{k + 1}") for k in range(count)]
    return model(nodes, {"x0": "f32[7]"}, [f"x{count}"], {"w": f32(*range(7)) / 7 + 0.6})


def between(shape: str) -> onnx.ModelProto:
    """What only the data decides, and beside it an axis of all elements."""
    return model(
        [
            node("Reshape", "x all", "flat"),
            node("NonZero", "flat", "i"),
            node("Size", "i", "n"),
            node("Cast", "n", "m", to=TensorProto.FLOAT),
            node("Mul", "flat m", "y"),
        ],
        {"x": shape},
        ["y"],
        {"all": i64(-1)},
    )


def widest(op: str, *operands, shape: str = "f32[1, 1, 4, 4]", **attrs) -> onnx.ModelProto:
    return one_node(op, shape, *operands, **attrs)


# what is wrong → (the model, a part of what is said of it)
REFUSED: dict[str, tuple[Callable[[], onnx.ModelProto | bytes], str]] = {
    "reshape": (lambda: one_node("Reshape", "f32[4]", i64(HUGE)), "another number of elements"),
    "expand": (lambda: one_node("Expand", "f32[1]", i64(HUGE)), "TB|GB"),
    "expand a constant": (lambda: one_node("Expand", f32(1), i64(HUGE)), "GB"),
    "tile": (lambda: one_node("Tile", "f32[5]", i64(10**9)), "GB"),
    "tile twice": (lambda: one_node("Tile", "f32[5, 5]", i64(1 << 62, 1 << 62)), "GB"),
    "constant of shape": (lambda: one_node("ConstantOfShape", i64(10**12)), "GB"),
    "pad": (lambda: one_node("Pad", "f32[5]", i64(10**10, 10**10)), "GB"),
    "range": (lambda: one_node("Range", np.int64(0), np.int64(1 << 62), np.int64(1)), "elements"),
    "range of floats": (lambda: one_node("Range", np.float32(0), np.float32(np.inf), np.float32(1)), ""),
    "range that stands": (lambda: one_node("Range", np.float32(0), np.float32(1), np.float32(1e-40)), "elements"),
    "resize": (lambda: widest("Resize", None, f32(1, 1, 1e6, 1e6)), "GB"),
    "resize along one axis": (lambda: widest("Resize", None, f32(1, 1, 1, 1e9), mode="linear"), "GB"),
    "resize for ever": (lambda: widest("Resize", None, f32(1, 1, np.inf, 1)), ""),
    "upsample": (lambda: widest("Upsample", f32(1, 1, 1e8, 1e8), opset=9), "GB"),
    "random": (lambda: model([node("RandomNormal", "", "y", shape=[1 << 20, 1 << 20])], {}, ["y"]), "GB"),
    "random like": (
        lambda: model(
            [node("Expand", "x s", "e"), node("RandomNormalLike", "e", "y")], {"x": "f32[1]"}, ["y"], {"s": i64(HUGE)}
        ),
        "GB",
    ),
    "one hot": (lambda: one_node("OneHot", "i64[3]", np.int64(HUGE), f32(0, 1)), "GB"),
    "an identity": (lambda: one_node("EyeLike", f"f32[{1 << 20}, {1 << 20}]"), "at most|GB"),
    "a window": (lambda: one_node("HannWindow", np.int64(HUGE)), ""),
    "a transform": (lambda: one_node("DFT", f32(*range(8)).reshape(1, 8, 1), np.int64(HUGE)), ""),
    "a grid": (lambda: one_node("AffineGrid", "f32[1, 2, 3]", i64(1, 1, HUGE, 2), opset=20), "sizes"),
    "a grid's size": (lambda: one_node("AffineGrid", "f32[2, 3, 4]", "i64[1000000]", opset=20), "4 or 5 numbers"),
    "a sequence": (
        lambda: model(
            [node("SplitToSequence", "x", "s"), node("SequenceLength", "s", "y")], {"x": f"f32[{HUGE}]"}, ["y"]
        ),
        "parts",
    ),
    "a resize to nothing of too much": (lambda: widest("Resize", None, f32(1, 1, 9e18, 0.1)), "may have at most"),
    "an axis": (lambda: one_node("Relu", "f32[9000000000000000000, 0]"), "at most"),
    "ends of a slice": (
        lambda: one_node("Slice", "f32[2, 3]", "i64[1]", f"i64[{HUGE}]", "i64[1]", "i64[1]"),
        "at most 2 starts",
    ),
    "a shape of endless axes": (lambda: one_node("Expand", "f32[1, 3, 1]", f"i64[{HUGE}]", opset=9), "known"),
    "squares of words": (lambda: one_node("ReduceSumSquare", "string[3, 2, 2]"), "needs numbers"),
    "no picture": (lambda: one_node("ImageDecoder", np.arange(200, dtype=np.uint8), opset=20), "ImageDecoder"),
    "space to depth": (
        lambda: one_node("SpaceToDepth", "f32[1, 2, 4, 6]", blocksize=(1 << 62) + 1, mode="CRD", opset=28),
        "does not fit",
    ),
    "letters of numbers": (lambda: one_node("StringNormalizer", "i4[2]", opset=10), "returned"),
    "an axis that nobody asked for": (
        lambda: one_node("StringNormalizer", np.array(["a", "b"], object), opset=10, axis=["a"], stopwords=["a"]),
        "no attribute 'axis'",
    ),
    "directions of a recurrent layer": (
        lambda: one_node("LSTM", "f32[1, 3, 2]", "f32[1, 12, 2]", f"f32[{HUGE}, 12, 3]", outputs=2, hidden_size=3),
        "needs recurrent weights for 1",
    ),
    "an axis between segments": (lambda: between(f"f32[{HUGE}, 2, h]"), "at most"),
    "a usual axis between segments": (lambda: between(f"f32[{1 << 31}, h, w]"), "GB|memory"),
    "depth to space": (lambda: one_node("DepthToSpace", "f32[1, 4, 2, 2]", blocksize=1 << 30), ""),
    "an input": (lambda: one_node("Relu", f"f32[{HUGE}]"), "GB"),
    "an outer product": (lambda: one_node("MatMul", f"f32[{1 << 20}, 1]", f"f32[1, {1 << 20}]"), "GB"),
    "broadcasting": (lambda: one_node("Add", f"f32[{1 << 20}, 1]", f"f32[{1 << 20}]"), "GB"),
    "a convolution's pads": (lambda: widest("Conv", np.ones((1, 1, 3, 3), np.float32), pads=[1 << 20] * 4), "GB"),
    "a pool's pads": (lambda: widest("MaxPool", kernel_shape=[3, 3], pads=[1 << 40] * 4), ""),
    "many axes": (lambda: one_node("Reshape", "f32[1]", np.ones(100, np.int64)), "axes"),
    "many new axes": (lambda: one_node("Unsqueeze", "f32[1]", np.arange(1000)), "axes"),
    "a sparse tensor": (
        lambda: model(
            [
                helper.make_node(
                    "Constant",
                    [],
                    ["y"],
                    sparse_value=onnx.helper.make_sparse_tensor(
                        helper.make_tensor("v", TensorProto.FLOAT, [1], [1]),
                        helper.make_tensor("i", TensorProto.INT64, [1], [0]),
                        [1 << 36],
                    ),
                )
            ],
            {},
            ["y"],
        ),
        "bytes",
    ),
    "scanned more often than there is": (
        lambda: one_node(
            "Scan", "f32[2, 3]", "f32[2, 3]", num_scan_inputs=HUGE, body=body([node("Add", "a b", "c")], "a b", "c")
        ),
        "num_scan_inputs",
    ),
    "blocks of words": (
        lambda: one_node("Col2Im", "string[2, 12, 12]", i64(5, 5), i64(2, 3), opset=18),
        "needs numbers",
    ),
    "a loop that carries nothing on": (
        lambda: model(
            [
                helper.make_node(
                    "Loop",
                    ["", "c", ""],
                    ["y"],
                    body=body([node("IsNaN", "x", "on"), node("Identity", "a", "b")], "i go a", "on b"),
                )
            ],
            {"x": "f32[]", "c": "bool[]"},
            ["y"],
        ),
        "",
    ),
    "a norm along an axis far away": (
        lambda: one_node(
            "LayerNormalization", "f32[2, 3, 4, 5]", "f32[3, 4, 5]", "u32[3, 4, 5]", outputs=3, axis=1 << 31
        ),
        "axis",
    ),
    "a loop without end": (lambda: endless("always"), "iterations"),
    "a loop that the data does not end": (lambda: endless("data"), "iterations"),
    "loops in loops": (lambda: loops_in_loops(4), ""),
    "a billion laughs": (lambda: laughs(60), "expand to more than"),
    "powers of a size": (lambda: powers(60), ""),
    "doubled for ever": (lambda: powers(3000, "Add"), ""),
    "a name": (
        lambda: model(
            [helper.make_node("Relu", ["x"], ["y"], "n" * (1 << 24))], {"x": "f32[2]"}, ["y"]
        ).SerializeToString(),
        "characters",
    ),
    "a name of an operator": (
        lambda: model([helper.make_node("R" * (1 << 22), ["x"], ["y"])], {"x": "f32[2]"}, ["y"]).SerializeToString(),
        "characters",
    ),
    "a size": (lambda: one_node("Relu", f"f32[{'+'.join(['n'] * 5000)}]").SerializeToString(), ""),
}
# what may be refused or run, as long as it ends
BOUNDED: dict[str, Callable[[], onnx.ModelProto]] = {
    name: REFUSED.pop(name)[0] for name in ("powers of a size", "doubled for ever", "a size")
}
FINE: dict[str, Callable[[], onnx.ModelProto]] = {
    "branches": lambda: nested(20),
    "functions": lambda: laughs(8),
    "loops": lambda: loops_in_loops(1, 60),
    "doubled": lambda: powers(3, "Add"),
    "a chain of functions": lambda: chained(3000, "Neg"),
    "a chain of sigmoids": lambda: chained(600, "Sigmoid"),
    "a chain of products": lambda: chained(600, "Mul"),
    "the largest complex numbers": lambda: one_node("TopK", "c64[2, 3]", i64(2), outputs=2),
    "places in a wide window": lambda: one_node(
        "MaxPool", "f32[1, 1, 22000]", outputs=2, kernel_shape=[200], dilations=[10], pads=[100, 100], strides=[10]
    ),
    "nothing": lambda: one_node("Sigmoid", "f32[0]"),
    "no columns": lambda: one_node("Add", "f32[3, 0]", "f32[3, 1]"),
    "no rows": lambda: one_node("Mul", "f32[0, 4]", "f32[4]"),
    "a far pad": lambda: one_node("Pad", "f32[5]", i64(100000, 3)),
    "a wide resize": lambda: widest("Resize", None, f32(1, 1, 100, 200), mode="cubic"),
    "a long resize": lambda: widest("Resize", None, f32(1, 1, 1, 1e5), mode="linear"),
    "a long resize of the nearest": lambda: widest("Resize", None, f32(1, 1, 1, 1e5)),
    "a long resize to nothing": lambda: widest("Resize", None, None, i64(1, 1, HUGE, 0), mode="linear"),
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("malice")


@pytest.fixture(autouse=True)
def loud():
    """What cases say nothing of, other tests want to hear."""
    yield
    logging.disable(logging.NOTSET)


def ending(made: Callable, cache, memory: int | None) -> pool.Ending:
    """What becomes of building and running, in a child."""
    cases.quiet()
    data = made()

    def case(seed: int) -> str:
        engine = build(data, options=Options(level=0, threads=2, memory=memory, cache_dir=cache, max_iterations=20_000))
        feeds = {p: np.ones(s, engine.inputs[i].numpy_dtype) for i, (p, s) in enumerate(engine.shapes().items())}
        engine.run(feeds)
        return "right"

    (found,) = pool.run({"malice": case}, [("malice", 0)], 1)
    return found


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_beyond_all_bounds_is_refused(what, cache):
    made, said = REFUSED[what]
    found = ending(made, cache, memory=1 << 30)
    assert found.how == "refused", f"{found.how}: {found.detail[-1500:]}"
    assert any(part in found.detail for part in said.split("|")) and len(found.detail) < 5000, found.detail


@pytest.mark.parametrize("what", ["expand", "tile twice", "constant of shape", "random", "an input", "resize"])
def test_without_an_option_the_memory_of_the_machine_is_the_bound(what, cache):
    assert ending(REFUSED[what][0], cache, memory=None).how == "refused"


@pytest.mark.parametrize("what", BOUNDED)
def test_arithmetic_of_sizes_does_not_grow_without_bounds(what, cache):
    found = ending(BOUNDED[what], cache, memory=1 << 30)
    assert found.how in ("refused", "right"), f"{found.how}: {found.detail[-1500:]}"


@pytest.mark.parametrize("what", FINE)
def test_what_is_only_deep_or_wide_runs(what, cache):
    found = ending(FINE[what], cache, memory=1 << 30)
    assert found.how == "right", f"{found.how}: {found.detail[-1500:]}"
