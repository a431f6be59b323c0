"""Networks as StableHLO: the text of every op's examples, pointwise ops computed by numpy, literals, errors, files.

`make test-stablehlo` compiles and runs the same examples with XLA.
"""

import os

import numpy as np
import pytest
from compare import assert_close
from draw import examples, operands
from models import inverted_residuals
from onnx_models import model, node
from quantized_models import qdq_cnn
from stablehlo_numpy import Computed
from stablehlo_text import operations

import pelton
from pelton import importers
from pelton.cli import main
from pelton.exporters import to_stablehlo
from pelton.exporters.stablehlo.functions import erf
from pelton.exporters.stablehlo.literals import dense, quoted, tensor
from pelton.exporters.stablehlo.scalars import pointwise
from pelton.ir.graph import Graph, Node, Value
from pelton.ir.op import get
from pelton.ir.types import BF16, F32, I32, DType, TensorType

REFUSED = {"coupled", "delta_rule", "det", "detections", "inverse", "lookup", "multiclass_nms", "trees"}
ALL = list(examples())
POINTWISE = [e for e in ALL if e[1].kind == "pointwise"]
NARROW = ("f8", "f6", "f4")  # floats that numpy computes by ml_dtypes


def single(op, types, attrs, constants=()):
    """The program of one node; `constants` are operands that are known."""
    values = tuple(Value(t, f"x{i}") for i, t in enumerate(types))
    made = tuple(Value(t, f"y{i}") for i, t in enumerate(op.infer_types(types, attrs)))
    kept = {values[i]: a for i, a in enumerate(operands(op, types, attrs)) if i in constants}
    return Graph(tuple(v for v in values if v not in kept), kept, (Node(op, values, attrs, made, "layer"),), made)


def is_refused(op, attrs) -> bool:
    return op.name in REFUSED or op.name == "roi_align" and not attrs["samples"]


@pytest.mark.parametrize("name, op, types, attrs", ALL, ids=[e[0] for e in ALL])
def test_every_op_is_written_or_refused(name, op, types, attrs):
    for constants in ((), range(1, len(types))):
        graph = single(op, types, attrs, constants)
        if is_refused(op, attrs):
            with pytest.raises(pelton.ModelError, match=rf"{op.name} \(layer 'layer'\): "):
                to_stablehlo(graph)
            continue
        text = str(to_stablehlo(graph))
        assert operations(text)[-1] == "func.return"
        results = ", ".join(tensor(v.type) for v in graph.outputs)
        assert f"-> ({results}) {{\n" in text


@pytest.mark.parametrize("name, op, types, attrs", POINTWISE, ids=[e[0] for e in POINTWISE])
def test_pointwise_ops_compute_what_their_references_do(name, op, types, attrs):
    arrays = operands(op, types, attrs)
    graph = single(op, types, attrs)
    block = Computed()
    found = pointwise(block, graph.nodes[0], *(block.take(f"%x{i}", a) for i, a in enumerate(arrays)))
    wide = [a.astype(np.float64) if t.dtype in (F32, DType.F16) else a for a, t in zip(arrays, types)]
    (want,) = op.evaluate(tuple(wide), attrs)
    assert_close(block.array(found), np.asarray(want).astype(graph.outputs[0].type.dtype.numpy), about=name)


@pytest.mark.parametrize("dtype, far", [(np.float32, 3e-7), (np.float64, 1e-14)])
def test_the_error_function_is_right_everywhere(dtype, far):
    import math

    x = np.concatenate([np.linspace(-7, 7, 4001), [0.0, -0.0, 1.0, -1.0, 1e30, np.inf, -np.inf]]).astype(dtype)
    block = Computed()
    found = block.array(erf(block, block.take("%x", x)))
    assert np.abs(found - [math.erf(v) for v in x.astype(float)]).max() < far
    assert np.isnan(block.array(erf(block, block.take("%n", np.array([np.nan], dtype))))).all()


def test_functions_hold_far_from_the_examples():
    """Near zero without cancellation, and for large operands without overflow."""
    x = np.array([1e-30, -1e-6, 1e-3, 3.0, -25.0, 80.0, 1e9], np.float32)
    for name in ("asinh", "sinh", "cosh", "atan", "tanh"):
        op = get(name)
        graph = single(op, (TensorType(F32, x.shape),), {})
        block = Computed()
        found = block.array(pointwise(block, graph.nodes[0], block.take("%x", x)))
        with np.errstate(over="ignore"):
            want = op.evaluate((x.astype(np.float64),), {})[0].astype(np.float32)
        np.testing.assert_allclose(found, want, rtol=3e-5, err_msg=name)


def test_casts_beyond_a_type_are_those_of_the_reference():
    op = get("cast")
    cases = (
        (np.array([0, 127, 128, 255, 256, -1, -129, 70000], np.int32), ("u8", "i8", "i16", "u32", "bool")),
        (np.array([0, 7, 8, 200, 255], np.uint8), ("i8", "i4", "u4", "i64")),
        (np.array([0.0, -1.5, 300.7, 2.0**-126, np.nan], np.float32), ("f8e8m0fnu", "bool", "f16")),
        (np.array([-1.5, 300.7, -129.2], np.float32), ("u8", "i8", "i32")),
    )
    for x, names in cases:
        for name in names:
            attrs = op.complete({"to": DType(name)})
            graph, block = single(op, (TensorType.of(x),), attrs), Computed()
            found = block.array(pointwise(block, graph.nodes[0], block.take("%x", x)))
            (want,) = op.evaluate((x,), attrs)
            assert np.array_equal(found.view(np.uint8), want.view(np.uint8)), f"{x.dtype} to {name}: {found}, {want}"


# --- text


def test_literals_are_exact():
    assert dense(np.float32([1.0, -2.0])) == 'dense<"0x0000803F000000C0">'
    assert dense(np.array([1, -2], ">i2")) == 'dense<"0x0100FEFF">'
    assert dense(np.zeros((2, 3), np.float32)) == "dense<0.0>"
    assert dense(np.float32([0.0, -0.0])) == 'dense<"0x0000000000000080">'
    assert dense(np.full(3, 1e-5)) == "dense<1.0e-05>"
    assert dense(np.full(2, -np.inf, np.float32)) == 'dense<"0x000080FF">'
    assert dense(np.full((2, 2), 3, BF16.numpy)) == "dense<3.0>"
    assert dense(np.array([[True, False]])) == "dense<[[true, false]]>"
    assert dense(np.int8([3, -4]).astype(DType.I4.numpy)) == "dense<[3, -4]>"
    assert dense(np.zeros((0, 2))) == "dense<>"
    assert tensor(TensorType(DType.U8, (2, 3))) == "tensor<2x3xui8>" and tensor(TensorType(I32)) == "tensor<i32>"
    assert quoted('a"b\\c\nä') == '"a\\22b\\5Cc\\0A\\C3\\A4"'


def test_the_text_of_a_convolution():
    net = pelton.Network("net")
    w = np.arange(24, dtype=np.float32).reshape(4, 2, 1, 3)
    x = net.input("x", "f32[1, 4, 5, 6]")
    net.output(net.convolution(x, w, stride=(2, 1), padding=[(0, 1), (2, 0)], groups=2, name="conv"), "y")
    text = str(to_stablehlo(net.graph()))
    assert operations(text) == ["constant", "convolution", "func.return"]
    for part in (
        'func.func public @main(%in_x: tensor<1x4x5x6xf32> loc("x")) -> (tensor<1x4x3x6xf32>)',
        "window_strides = array<i64: 2, 1>",
        "dense<[[0, 1], [2, 0]]> : tensor<2x2xi64>",
        "feature_group_count = 2 : i64",
        "#stablehlo.conv<[b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1]>",
        "#stablehlo<precision HIGHEST>",
        'loc("conv")',
        '// output "y": f32[1, 4, 3, 6]',
        w.tobytes().hex().upper(),
    ):
        assert part in text, part


def test_bytes_are_multiplied_as_bytes():
    op = get("matmul")
    types = tuple(map(TensorType.parse, ("u8[2, 3, 5]", "i8[2, 5, 4]")))
    text = str(to_stablehlo(single(op, types, op.complete(dict(accumulate=I32, a_zero=255, b_zero=-128)))))
    assert "(tensor<2x3x5xi8>, tensor<2x5x4xi8>) -> tensor<2x3x4xi32>" in text
    op = get("convolution")
    types = tuple(map(TensorType.parse, ("u8[1, 3, 5, 5]", "i8[4, 3, 3, 3]", "i32[4]")))
    attrs = dict(strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), accumulate=I32, pad_value=7)
    text = str(to_stablehlo(single(op, types, op.complete(attrs))))
    assert "(tensor<1x3x7x7xi8>, tensor<4x3x3x3xi8>) -> tensor<1x4x5x5xi32>" in text


def test_quantization_is_rounded_clamped_and_converted():
    names = operations(str(to_stablehlo(importers.load(qdq_cnn()).graph)))
    first = names.index("round_nearest_even")
    assert names[first - 1 : first + 4] == ["divide", "round_nearest_even", "add", "clamp", "convert"]


def test_recurrent_layers_are_loops():
    op, types, attrs = next((op, types, attrs) for name, op, types, attrs in ALL if name == "lstm-1")
    names = operations(str(to_stablehlo(single(op, types, attrs))))
    assert names.count("while") == 2 and names.count("dynamic_update_slice") == 2


# --- errors and files


def test_every_layer_without_a_form_is_named():
    net = pelton.Network("net")
    x = net.input("x", "f32[3, 3]")
    net.output(net.det(x, name="first"), "a")
    net.output(net.relu(net.inverse(x, name="second")), "b")
    net.output(net.if_(net.reduce_sum(x, axes=(0, 1), keepdims=False) > 0, lambda n: n.inverse(x), lambda n: x), "c")
    with pytest.raises(pelton.ModelError) as e:
        to_stablehlo(net.graph())
    first, *lines = str(e.value).splitlines()
    assert first == "network 'net' cannot be written to StableHLO; 3 layers have no form there:"
    assert [line.split()[0] for line in lines] == ["det", "inverse", "inverse"]
    assert "(layer 'first')" in lines[0] and "(layer 'second')" in lines[1]


def test_texts_are_refused_at_the_interface():
    net = pelton.Network("net")
    net.output(net.input("words", "string[3]"), "same")
    with pytest.raises(pelton.ModelError, match=r"input 'words': string\[3\]: StableHLO has no such element type"):
        to_stablehlo(net.graph())


def test_dynamic_sizes_are_refused_with_an_example(tmp_path):
    net = pelton.Network("net")
    net.output(net.relu(net.input("x", "f32[n=1..4..9, 3]")), "y")
    with pytest.raises(pelton.InputError, match=r"x: f32\[n, 3\].*--shapes x=4x3"):
        to_stablehlo(net.graph(), tmp_path / "x.mlir")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["m.stablehlo", "m.mlir"])
def test_convert_writes_stablehlo(tmp_path, capsys, cnn, name):
    path = tmp_path / name
    assert main(["convert", cnn, "-o", str(path)]) == 0
    names = operations(path.read_text())
    count = sum(n not in ("return", "func.return") for n in names)
    assert capsys.readouterr().out.startswith(f"{path}: StableHLO, {count} operations, ")
    assert names.count("convolution") > 1
    assert main(["convert", cnn, "-o", str(path), "--opset", "21"]) == 2
    assert "--opset is for ONNX files" in capsys.readouterr().err
    assert os.listdir(tmp_path) == [name]


def test_convert_asks_for_shapes(tmp_path, capsys):
    net, path = pelton.Network("net"), tmp_path / "net.onnx"
    net.output(net.relu(net.input("x", "f32[n, 3]")), "y")
    pelton.export_onnx(net, path)
    target = str(tmp_path / "net.mlir")
    assert main(["convert", str(path), "-o", target]) == 2
    assert "--shapes x=1x3" in capsys.readouterr().err and not os.path.exists(target)
    assert main(["convert", str(path), "-o", target, "--shapes", "x=2x3"]) == 0
    assert "tensor<2x3xf32>" in open(target).read()


def test_files_are_written_whole(tmp_path, monkeypatch):
    graph = importers.load(inverted_residuals()).graph
    path = tmp_path / "m.mlir"
    path.write_text("before")
    monkeypatch.setattr("pelton.exporters.stablehlo.blocks.dense", lambda a: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        to_stablehlo(graph, path)
    assert path.read_text() == "before" and os.listdir(tmp_path) == ["m.mlir"]
    with pytest.raises(pelton.InputError, match="there is no folder"):
        to_stablehlo(graph, tmp_path / "no" / "m.mlir")


def test_the_reader_of_texts_notices_wrong_ones():
    graph = importers.load(model([node("Relu", "x", "y")], {"x": "f32[2, 3]"}, ["y"], {})).graph
    text = str(to_stablehlo(graph))
    assert operations(text) == ["constant", "maximum", "func.return"]
    for old, new in (
        ("(%in_x, ", "(%in_z, "),
        ("-> tensor<2x3xf32> ", "-> tensor<3x2xf32> "),
        ("(tensor<2x3", "(tensor<2x2"),
    ):
        assert old in text
        with pytest.raises(AssertionError):
            operations(text.replace(old, new))
