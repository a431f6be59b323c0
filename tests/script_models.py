"""Models with data-dependent control flow or sizes, each with inputs of several sizes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto as T
from script_graphs import FLOATS, N, floats, graph, ints, model

Feeds = list[dict[str, np.ndarray]]
MODELS: dict[str, Callable[[], tuple[onnx.ModelProto, Feeds]]] = {}


def case(make: Callable[[], tuple[onnx.ModelProto, Feeds]]) -> Callable:
    MODELS[make.__name__] = make
    return make


@case
def nonzero_gather():
    nodes = [
        N("Relu", ["x"], ["r"]),
        N("NonZero", ["r"], ["at"]),
        N("Transpose", ["at"], ["rows"]),
        N("GatherND", ["r", "rows"], ["found"]),
        N("Mul", ["found", "two"], ["y"]),
    ]
    return (
        model(nodes, {"x": (T.FLOAT, ["n", 4])}, {"y": (T.FLOAT, ["k"])}, {"two": np.float32(2)}),
        [{"x": floats(3, 4)}, {"x": floats(9, 4)}, {"x": -np.abs(floats(5, 4))}],
    )


@case
def detector():
    """A convolution, boxes and scores from it, suppression, and the best of what is left, class and box side by
    side."""
    nodes = [
        N("Conv", ["x", "w", "b"], ["f"], pads=[1, 1, 1, 1]),
        N("Relu", ["f"], ["a"]),
        N("Conv", ["a", "head"], ["p"]),
        N("Reshape", ["p", "flat"], ["rows"]),  # [1, 7, cells]
        N("Split", ["rows", "parts"], ["place", "scores"], axis=1),
        N("Sigmoid", ["scores"], ["s"]),
        N("Transpose", ["place"], ["corners"], perm=[0, 2, 1]),
        N("Sigmoid", ["corners"], ["boxes"]),
        N("NonMaxSuppression", ["boxes", "s", "most", "iou", "least"], ["kept"]),
        N("Slice", ["kept", "one", "two", "axis"], ["c"]),
        N("Slice", ["kept", "two", "three", "axis"], ["i"]),
        N("Squeeze", ["i", "axis"], ["index"]),
        N("Gather", ["boxes", "index"], ["picked"], axis=1),
        N("Squeeze", ["picked", "zero"], ["box"]),
        N("GatherND", ["s", "kept"], ["score"]),
        N("Unsqueeze", ["score", "axis"], ["scored"]),
        N("Cast", ["c"], ["class"], to=T.FLOAT),
        N("Concat", ["box", "scored", "class"], ["all"], axis=1),
        N("Shape", ["score"], ["count"]),
        N("Min", ["count", "five"], ["k"]),
        N("TopK", ["score", "k"], ["best", "order"]),
        N("Gather", ["all", "order"], ["y"]),
    ]
    rng = np.random.default_rng(3)
    constants = {
        "w": rng.standard_normal((8, 3, 3, 3)).astype(np.float32) * 0.3,
        "b": np.zeros(8, np.float32),
        "head": rng.standard_normal((7, 8, 1, 1)).astype(np.float32),
        "flat": ints(1, 7, -1),
        "parts": ints(4, 3),
        "most": ints(10),
        "iou": np.array([0.5], np.float32),
        "least": np.array([0.6], np.float32),
        "one": ints(1),
        "two": ints(2),
        "three": ints(3),
        "axis": ints(1),
        "zero": ints(0),
        "five": ints(5),
    }
    return (
        model(
            nodes,
            {"x": (T.FLOAT, [1, 3, "h", "w"])},
            {"y": (T.FLOAT, ["k", 6]), "kept": (T.INT64, ["n", 3])},
            constants,
        ),
        [{"x": floats(1, 3, 8, 8)}, {"x": floats(1, 3, 5, 12)}, {"x": np.zeros((1, 3, 4, 4), np.float32)}],
    )


@case
def greedy_decoder():
    """Tokens, one more per iteration, until the last one is the end."""
    body = graph(
        [
            N("Gather", ["table", "seq"], ["e"]),
            N("ReduceMean", ["e", "first"], ["m"], keepdims=0),
            N("MatMul", ["m", "w"], ["logits"]),
            N("ArgMax", ["logits"], ["token"], axis=1, keepdims=1),
            N("Concat", ["seq", "token"], ["longer"], axis=1),
            N("Squeeze", ["token"], ["t"]),
            N("Squeeze", ["logits"], ["row"]),
            N("Equal", ["t", "end"], ["ended"]),
            N("Not", ["ended"], ["more"]),
        ],
        {"i": (T.INT64, []), "go": (T.BOOL, []), "seq": (T.INT64, [1, None])},
        {"more": (T.BOOL, []), "longer": (T.INT64, [1, None]), "row": (T.FLOAT, [11])},
    )
    nodes = [N("Loop", ["most", "yes", "start"], ["tokens", "all"], body=body), N("Shape", ["tokens"], ["length"])]
    rng = np.random.default_rng(5)
    constants = {
        "table": rng.standard_normal((11, 6)).astype(np.float32),
        "w": rng.standard_normal((6, 11)).astype(np.float32),
        "first": ints(1),
        "end": np.array(3),
        "yes": np.array(True),
    }
    return (
        model(
            nodes,
            {"start": (T.INT64, [1, "s"]), "most": (T.INT64, [])},
            {"tokens": (T.INT64, [1, "n"]), "all": (T.FLOAT, ["steps", 11]), "length": (T.INT64, [2])},
            constants,
        ),
        [{"start": ints(1, 2)[None], "most": np.array(6)}, {"start": ints(7)[None], "most": np.array(12)}],
    )


@case
def branches_of_two_shapes():
    then = graph([N("MatMul", ["x", "w"], ["a"]), N("Relu", ["a"], ["t"])], {}, {"t": (T.FLOAT, ["n", 2])})
    other = graph([N("Transpose", ["x"], ["e"])], {}, {"e": (T.FLOAT, [3, "n"])})
    nodes = [
        N("ReduceSum", ["x"], ["sum"], keepdims=0),
        N("Greater", ["sum", "zero"], ["c"]),
        N("If", ["c"], ["y"], then_branch=then, else_branch=other),
        N("Neg", ["y"], ["z"]),
    ]
    return (
        model(
            nodes,
            {"x": (T.FLOAT, ["n", 3])},
            {"z": (T.FLOAT, [None, None])},
            {"w": floats(3, 2), "zero": np.float32(0)},
        ),
        [{"x": np.abs(floats(4, 3))}, {"x": -np.abs(floats(2, 3))}],
    )


@case
def scanned_rnn():
    body = graph(
        [
            N("MatMul", ["x_t", "w"], ["a"]),
            N("MatMul", ["h_in", "u"], ["b"]),
            N("Add", ["a", "b"], ["s"]),
            N("Tanh", ["s"], ["h_out"]),
            N("Identity", ["h_out"], ["y_t"]),
        ],
        {"h_in": (T.FLOAT, ["b", 5]), "x_t": (T.FLOAT, ["b", 3])},
        {"h_out": (T.FLOAT, ["b", 5]), "y_t": (T.FLOAT, ["b", 5])},
    )
    nodes = [
        N(
            "Scan",
            ["h0", "x"],
            ["last", "all"],
            body=body,
            num_scan_inputs=1,
            scan_input_directions=[1],
            scan_output_axes=[1],
        ),
        N("Mul", ["all", "all"], ["y"]),
    ]
    return (
        model(
            nodes,
            {"h0": (T.FLOAT, ["b", 5]), "x": (T.FLOAT, ["t", "b", 3])},
            {"last": (T.FLOAT, ["b", 5]), "y": (T.FLOAT, ["b", "t", 5])},
            {"w": floats(3, 5), "u": floats(5, 5) * 0.3},
        ),
        [{"h0": floats(2, 5), "x": floats(7, 2, 3)}, {"h0": floats(1, 5), "x": floats(3, 1, 3)}],
    )


@case
def unique_rows():
    nodes = [
        N("Unique", ["x"], ["u", "at", "back", "count"], axis=0, sorted=0),
        N("Cast", ["count"], ["c"], to=T.FLOAT),
        N("Unsqueeze", ["c", "one"], ["col"]),
        N("Mul", ["u", "col"], ["y"]),
    ]
    return (
        model(
            nodes, {"x": (T.FLOAT, ["n", 2])}, {"y": (T.FLOAT, ["k", 2]), "back": (T.INT64, ["n"])}, {"one": ints(1)}
        ),
        [{"x": np.round(floats(9, 2))}, {"x": np.ones((4, 2), np.float32)}],
    )


@case
def loop_in_a_branch():
    body = graph(
        [N("Add", ["v", "x"], ["v_out"]), N("Identity", ["go"], ["go_out"])],
        {"i": (T.INT64, []), "go": (T.BOOL, []), "v": FLOATS},
        {"go_out": (T.BOOL, []), "v_out": FLOATS},
    )
    then = graph(
        [N("Cast", ["first"], ["trips"], to=T.INT64), N("Loop", ["trips", "yes", "x"], ["t"], body=body)],
        {},
        {"t": FLOATS},
    )
    other = graph([N("Sub", ["x", "first"], ["e"])], {}, {"e": FLOATS})
    nodes = [
        N("ReduceMax", ["x"], ["first"], keepdims=0),
        N("Greater", ["first", "two"], ["c"]),
        N("If", ["c"], ["r"], then_branch=then, else_branch=other),
        N("Neg", ["r"], ["y"]),
    ]
    return (
        model(nodes, {"x": FLOATS}, {"y": FLOATS}, {"two": np.float32(2), "yes": np.array(True)}),
        [{"x": np.array([1, 4.5, 0], np.float32)}, {"x": np.array([1, -2], np.float32)}],
    )


@case
def while_not_there():
    """Newton's root, without a trip count, until it is exact enough."""
    body = graph(
        [
            N("Div", ["x", "r"], ["q"]),
            N("Add", ["q", "r"], ["s"]),
            N("Mul", ["s", "half"], ["r_out"]),
            N("Mul", ["r_out", "r_out"], ["sq"]),
            N("Sub", ["sq", "x"], ["d"]),
            N("Abs", ["d"], ["a"]),
            N("ReduceMax", ["a"], ["off"], keepdims=0),
            N("Greater", ["off", "tiny"], ["more"]),
        ],
        {"i": (T.INT64, []), "go": (T.BOOL, []), "r": FLOATS},
        {"more": (T.BOOL, []), "r_out": FLOATS},
    )
    nodes = [N("Loop", ["", "yes", "x"], ["y"], body=body)]
    return (
        model(
            nodes,
            {"x": FLOATS},
            {"y": FLOATS},
            {"half": np.float32(0.5), "tiny": np.float32(1e-3), "yes": np.array(True)},
        ),
        [{"x": np.array([4, 2, 9], np.float32)}, {"x": np.array([100], np.float32)}],
    )


@case
def shapes_as_inputs():
    nodes = [
        N("Reshape", ["x", "shape"], ["a"]),
        N("Slice", ["a", "zero", "end", "zero"], ["b"]),
        N("Expand", ["b", "wide"], ["c"]),
        N("Mul", ["c", "c"], ["y"]),
        N("ConstantOfShape", ["shape"], ["ones"], value=onnx.helper.make_tensor("v", T.FLOAT, [1], [1.0])),
        N("Add", ["a", "ones"], ["z"]),
        N("Squeeze", ["end"], ["e"]),
        N("Range", ["nil", "e", "step"], ["r"]),
    ]
    return (
        model(
            nodes,
            {"x": FLOATS, "shape": (T.INT64, [2]), "end": (T.INT64, [1]), "wide": (T.INT64, [3])},
            {"y": (T.FLOAT, [None, None, None]), "z": (T.FLOAT, [None, None]), "r": (T.INT64, ["e"])},
            {"zero": ints(0), "nil": np.int64(0), "step": np.array(1)},
        ),
        [
            {"x": floats(12), "shape": ints(3, 4), "end": ints(2), "wide": ints(5, 1, 1)},
            {"x": floats(10), "shape": ints(5, 2), "end": ints(4), "wide": ints(1, 4, 2)},
            {"x": floats(6), "shape": ints(2, 3), "end": ints(9), "wide": ints(2, 2, 3)},
        ],
    )


@case
def counted_best():
    """As many of the best as a mask has: a k that is computed."""
    nodes = [
        N("Greater", ["x", "zero"], ["m"]),
        N("Cast", ["m"], ["ones"], to=T.INT64),
        N("ReduceSum", ["ones"], ["count"], keepdims=0),
        N("Reshape", ["count", "one"], ["k"]),
        N("TopK", ["x", "k"], ["v", "i"]),
        N("Sqrt", ["v"], ["y"]),
        N("Concat", ["nothing", "k"], ["pads"], axis=0),
        N("Pad", ["v", "pads", "zero"], ["p"]),
    ]
    return (
        model(
            nodes,
            {"x": FLOATS},
            {"y": (T.FLOAT, ["k"]), "i": (T.INT64, ["k"]), "p": (T.FLOAT, ["k2"])},
            {"zero": np.float32(0), "one": ints(1), "nothing": ints(1)},
        ),
        [{"x": floats(9)}, {"x": floats(40)}],
    )


@case
def compressed():
    nodes = [
        N("Greater", ["score", "zero"], ["c"]),
        N("Compress", ["x", "c"], ["kept"], axis=0),
        N("MatMul", ["kept", "w"], ["y"]),
    ]
    return (
        model(
            nodes,
            {"x": (T.FLOAT, ["n", 4]), "score": FLOATS},
            {"y": (T.FLOAT, ["k", 2])},
            {"zero": np.float32(0), "w": floats(4, 2)},
        ),
        [
            {"x": floats(6, 4), "score": floats(6)},
            {"x": floats(20, 4), "score": floats(20)},
            {"x": floats(3, 4), "score": -np.ones(3, np.float32)},
        ],
    )


@case
def parts_of_a_sequence():
    nodes = [
        N("SplitToSequence", ["x", "sizes"], ["parts"], axis=0),
        N("SequenceAt", ["parts", "which"], ["part"]),
        N("Relu", ["part"], ["y"]),
        N("SequenceLength", ["parts"], ["count"]),
    ]
    return (
        model(
            nodes,
            {"x": (T.FLOAT, ["n", 2]), "sizes": (T.INT64, ["k"]), "which": (T.INT64, [])},
            {"y": (T.FLOAT, [None, 2]), "count": (T.INT64, [])},
        ),
        [
            {"x": floats(6, 2), "sizes": ints(1, 3, 2), "which": np.array(1)},
            {"x": floats(5, 2), "sizes": ints(4, 1), "which": np.array(-1)},
        ],
    )


@case
def nothing_found():
    """What exporters write for detectors: another branch where there is nothing."""
    then = graph([N("Identity", ["none"], ["t"])], {}, {"t": (T.FLOAT, [1])})
    other = graph([N("GatherND", ["x", "rows"], ["e"])], {}, {"e": (T.FLOAT, ["k"])})
    nodes = [
        N("NonZero", ["x"], ["at"]),
        N("Transpose", ["at"], ["rows"]),
        N("Shape", ["rows"], ["s"]),
        N("Gather", ["s", "first"], ["n"]),
        N("Equal", ["n", "first"], ["c"]),
        N("If", ["c"], ["y"], then_branch=then, else_branch=other),
    ]
    return (
        model(nodes, {"x": (T.FLOAT, ["n", 2])}, {"y": (T.FLOAT, [None])}, {"none": floats(1), "first": np.int64(0)}),
        [{"x": floats(3, 2)}, {"x": np.zeros((3, 2), np.float32)}],
    )


@case
def two_names_of_one_value():
    """Identity is all that a branch and what a loop carries are made of, of values from around them and their own."""
    body = graph(
        [
            N("Identity", ["go"], ["on"]),
            N("Identity", ["a"], ["b_next"]),
            N("Mul", ["b", "r"], ["a_next"]),
            N("Identity", ["r"], ["row"]),
        ],
        {"i": (T.INT64, []), "go": (T.BOOL, []), "a": FLOATS, "b": FLOATS},
        {"on": (T.BOOL, []), "a_next": FLOATS, "b_next": FLOATS, "row": FLOATS},
    )
    then = graph([N("Identity", ["p"], ["q"])], {}, {"q": FLOATS})
    other = graph([N("Identity", ["r"], ["s"]), N("Identity", ["s"], ["t"])], {}, {"t": FLOATS})
    every = [(True, 3, 4), (False, 3, 5), (True, 1, 4), (True, 2, 1)]
    nodes = [
        N("Relu", ["x"], ["r"]),
        N("Loop", ["trips", "always", "x", "r"], ["p", "o", "rows"], body=body),
        N("If", ["c"], ["chosen"], then_branch=then, else_branch=other),
        N("Identity", ["chosen"], ["same"]),
        N("Add", ["chosen", "x"], ["y"]),
        N("Identity", ["x"], ["z"]),
    ]
    inputs = {"c": (T.BOOL, []), "always": (T.BOOL, []), "trips": (T.INT64, []), "x": FLOATS}
    outputs = {**dict.fromkeys(("o", "chosen", "same", "y", "z"), FLOATS), "rows": (T.FLOAT, [None, "n"])}
    fed = [{"c": np.array(c), "always": np.array(True), "trips": np.array(k), "x": floats(n)} for c, k, n in every]
    return model(nodes, inputs, outputs), fed
