"""The onnx package's evaluator as a second opinion on every op that represents an operator."""

from __future__ import annotations


import numpy as np
import onnx
import pytest
from compare import assert_close
from draw import examples, node_of, operands
from onnx.reference import ReferenceEvaluator

from pelton.importers.onnx import load  # noqa: F401  (declares the readers)
from pelton.importers.onnx.node import READERS
from pelton.importers.onnx.ops.declared import AsDeclared
from pelton.ir.evaluate import evaluate_node
from pelton.ir.graph import Node
from pelton.ir.types import TensorType
from pelton.ops import REGISTRY


ALL = list(examples())
IDS = [name for name, *_ in ALL]


def _pool(a, **more):
    return dict(
        kernel_shape=a["kernel"],
        strides=a["strides"],
        pads=a["pads"],
        ceil_mode=int(a["ceil_mode"]),
        dilations=a["dilations"],
        **more,
    )


def _conv(a):
    return dict(strides=a["strides"], pads=a["pads"], dilations=a["dilations"], group=a["group"])


def _axes(a):
    return dict(keepdims=int(a["keepdims"]))


def _cell(a, *flags):
    kept = dict(hidden_size=a["hidden"], direction=a["direction"])
    if a["activations"]:
        kept["activations"] = list(a["activations"])
    kept.update((k, a[k]) for k in ("activation_alpha", "activation_beta") if a[k])
    if a["clip"]:
        kept["clip"] = a["clip"]
    return {**kept, **{f: int(a[f]) for f in flags}}


# op → (ONNX name, attributes there, constant inputs by position there, our operands in ONNX's order (None: absent))
ONNX = {
    "matmul": ("MatMul", lambda a: {}),
    "convolution": ("Conv", _conv),
    "conv_transpose": ("ConvTranspose", lambda a: dict(_conv(a), output_padding=a["output_padding"])),
    "max_pool": ("MaxPool", _pool),
    "average_pool": ("AveragePool", lambda a: _pool(a, count_include_pad=int(a["count_include_pad"]))),
    "lrn": ("LRN", lambda a: dict(a)),
    "softmax": ("Softmax", lambda a: dict(a)),
    "log_softmax": ("LogSoftmax", lambda a: dict(a)),
    "batch_norm": ("BatchNormalization", lambda a: dict(a)),
    "layer_norm": ("LayerNormalization", lambda a: dict(a)),
    "rms_norm": ("RMSNormalization", lambda a: dict(a)),
    "instance_norm": ("InstanceNormalization", lambda a: dict(a)),
    "group_norm": ("GroupNormalization", lambda a: dict(num_groups=a["groups"], epsilon=a["epsilon"])),
    "arg_max": ("ArgMax", lambda a: {k: int(v) for k, v in a.items()}),
    "arg_min": ("ArgMin", lambda a: {k: int(v) for k, v in a.items()}),
    "top_k": ("TopK", lambda a: dict(axis=a["axis"], largest=int(a["largest"])), lambda a: {1: np.array([a["k"]])}),
    "cumsum": (
        "CumSum",
        lambda a: dict(exclusive=int(a["exclusive"]), reverse=int(a["reverse"])),
        lambda a: {1: np.array(a["axis"])},
    ),
    "transpose": ("Transpose", lambda a: dict(a)),
    "concat": ("Concat", lambda a: dict(a)),
    "expand": ("Expand", lambda a: {}, lambda a: {1: np.array(a["shape"], np.int64)}),
    "tile": ("Tile", lambda a: {}, lambda a: {1: np.array(a["repeats"])}),
    "gather": ("Gather", lambda a: dict(a)),
    "gather_elements": ("GatherElements", lambda a: dict(a)),
    "gather_nd": ("GatherND", lambda a: dict(a)),
    "scatter_elements": ("ScatterElements", lambda a: dict(a)),
    "scatter_nd": ("ScatterND", lambda a: dict(a)),
    "trilu": ("Trilu", lambda a: dict(upper=int(a["upper"])), lambda a: {1: np.array(a["k"])}),
    "one_hot": ("OneHot", lambda a: dict(axis=a["axis"]), lambda a: {1: np.array(a["depth"])}),
    "depth_to_space": ("DepthToSpace", lambda a: dict(blocksize=a["block"], mode=a["mode"])),
    "space_to_depth": ("SpaceToDepth", lambda a: dict(blocksize=a["block"])),
    "resize": (
        "Resize",
        lambda a: dict(
            mode=a["mode"],
            coordinate_transformation_mode=a["coordinates"],
            nearest_mode=a["nearest"],
            cubic_coeff_a=a["cubic_a"],
            exclude_outside=int(a["exclude_outside"]),
            antialias=int(a["antialias"]),
            extrapolation_value=a["extrapolation"],
        ),
        lambda a: {
            1: np.array(a["roi"], np.float32) if a["roi"] else None,
            **(
                {2: np.array(a["scales"], np.float32)}
                if a["resized_by"] == "scales"
                else {2: None, 3: np.array(a["shape"])}
            ),
        },
    ),
    "grid_sample": (
        "GridSample",
        lambda a: dict(mode=a["mode"], padding_mode=a["padding"], align_corners=int(a["align_corners"])),
    ),
    "roi_align": (
        "RoiAlign",
        lambda a: dict(
            mode=a["mode"],
            output_height=a["height"],
            output_width=a["width"],
            sampling_ratio=a["samples"],
            spatial_scale=a["scale"],
            coordinate_transformation_mode="half_pixel" if a["half_pixel"] else "output_half_pixel",
        ),
    ),
    "deform_convolution": ("DeformConv", lambda a: dict(_conv(a), offset_group=a["offset_group"])),
    "lstm": ("LSTM", lambda a: _cell(a, "input_forget")),
    "gru": ("GRU", lambda a: _cell(a, "linear_before_reset")),
    "rnn": ("RNN", _cell),
    **{
        name: (name.title().replace("_", ""), _axes, lambda a: {1: np.array(a["axes"])})
        for name in (
            "reduce_sum",
            "reduce_mean",
            "reduce_max",
            "reduce_min",
            "reduce_prod",
            "reduce_l1",
            "reduce_l2",
            "reduce_sum_square",
            "reduce_log_sum",
            "reduce_log_sum_exp",
        )
    },
}
PLAIN = {name for name, op in REGISTRY.items() if op.kind == "pointwise" and len(op.onnx) == 1} - {
    "fmod",
    "gelu_tanh",
    "shift_left",
    "shift_right",
    "cast",
}
PLAIN |= {reader.op.name for reader in READERS.values() if isinstance(reader, AsDeclared)}
SECOND = [e for e in ALL if e[1].name in ONNX or e[1].name in PLAIN]


def onnx_model(node: Node, arrays):
    """A model of the one node as ONNX writes it, and what to feed it."""
    op, attrs = node.op, dict(node.attrs)
    if op.name == "resize":
        exact = all(scale in (0, y / x) for x, y, scale in zip(arrays[0].shape, attrs["shape"], attrs["scales"]))
        attrs["resized_by"] = "sizes" if exact else "scales"
    if op.name in ONNX:
        kind, translate, *more = ONNX[op.name]
        settings, fixed = translate(attrs), more[0](attrs) if more else {}
    else:
        kind, settings, fixed = op.onnx[0], {op.onnx_names.get(k, k): v for k, v in attrs.items()}, {}
    ours = list(arrays)
    if kind in ("LSTM", "GRU", "RNN"):
        fixed = {4: None}  # sequence_lens
    inputs = [fixed[i] if i in fixed else ours.pop(0) for i in range(len(ours) + len(fixed))]
    feeds = {f"x{i}": a for i, a in enumerate(inputs) if a is not None}

    def info(name, type):
        return onnx.helper.make_tensor_value_info(
            name, onnx.helper.np_dtype_to_tensor_dtype(type.dtype.numpy), type.shape
        )

    made = onnx.helper.make_node(
        kind,
        [f"x{i}" if a is not None else "" for i, a in enumerate(inputs)],
        [v.name for v in node.outputs],
        **settings,
    )
    graph = onnx.helper.make_graph(
        [made],
        "one",
        [info(k, TensorType.of(a)) for k, a in feeds.items()],
        [info(v.name, v.type) for v in node.outputs],
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 23)], ir_version=10), feeds


# Examples that the onnx package's reference evaluator gets wrong or cannot run (ONNX Runtime agrees with ours on them).
NOT_THERE = {
    "matmul-8": "products less zero points are MatMulInteger there, of bytes alone",
    "conv_transpose-2": "it cannot do groups with output padding",
    "conv_transpose-6": "it cannot do groups with output padding",
    "gather_elements-1": "it wants equal sizes off the axis",
    "grid_sample-8": "it keeps coordinates in f32",
    "lrn-0": "it takes the batch for channels",
    "lrn-1": "it takes the batch for channels",
    "lstm-2": "it ignores direction, activations and clip",
    "lstm-3": "it ignores input_forget",
    "lstm-4": "it rounds no states",
    "lstm-5": "it rounds no states",
    "gru-2": "it ignores direction, activations and clip",
    "rnn-1": "it knows two activations",
    "rnn-2": "it knows two activations",
}


@pytest.mark.parametrize("name, op, types, attrs", SECOND, ids=[e[0] for e in SECOND])
def test_the_onnx_package_agrees(name, op, types, attrs):
    if name in NOT_THERE:
        pytest.skip(NOT_THERE[name])
    node, arrays = node_of(op, types, attrs), operands(op, types, attrs)
    model, feeds = onnx_model(node, arrays)
    with np.errstate(all="ignore"):
        want = ReferenceEvaluator(model).run(None, feeds)
    got = evaluate_node(node, arrays)
    assert_close(list(got), [np.asarray(w).astype(g.dtype) for g, w in zip(got, want)], about=name)
