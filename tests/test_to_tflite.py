"""Networks as TFLite models, and back: every op by its examples, images, sizes, integers, the Edge TPU's list."""

import json
import re

import numpy as np
import onnx
import pytest
from compare import assert_close
from models import inverted_residuals, small_cnn, wide_cnn
from quantized_models import qdq_cnn
from test_to_onnx import ALL, single

import pelton
from pelton import importers
from pelton.cli import main
from pelton.exporters import tflite, to_tflite
from pelton.exporters.tflite.edgetpu import rejections
from pelton.exporters.tflite.forms import reshaped_form
from pelton.ir.evaluate import evaluate
from pelton.ir.op import get

RNG = np.random.default_rng(0)
# examples without a form: all of an op, or those of these numbers
REFUSED = {
    **dict.fromkeys(
        (
            "fmod asin acos sinh cosh asinh acosh atanh bitwise_and bitwise_or bitwise_xor bitwise_not shift_left"
            " shift_right det inverse detections bit_cast cumprod scatter_elements scatter_nd"
            " max_roi_pool multiclass_nms lookup coupled delta_rule trees if loop scan grid_sample deform_convolution"
            " roi_align cache_write"
        ).split()
    ),
    **dict(div=[4], cast=[7, 8, 9, 10, 11, 12], matmul=[7, 8], slice=[3], pad=[0, 4], convolution=[11, 13]),
    **dict(conv_transpose=[2, 6], blend=[2, 3, 4], max_pool=[4, 5, 7], max_pool_places=[7], gather_nd=[1]),
    **dict(average_pool=[4, 5, 10, 11, 12], reduce_mean=[5], reduce_max=[6], reduce_min=[6], arg_max=[2], arg_min=[2]),
    **dict(top_k=[1], lrn=[1], dequantize=[7], quantize=[3], quantized_linear=[0, 2, 4, 5], lstm_steps=[3]),
    **dict(codebook_linear=[0, 1, 2], quantized_gather=[0, 2]),
    **dict(lstm=[2, 4, 5], gru=[2], rnn=[1, 2], iota=[1]),
}


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def back(file, feeds):
    """What a file means to the importer, by reference."""
    shapes = {k: np.shape(a) for k, a in feeds.items()}
    return evaluate(importers.load(file.data, shapes).graph, feeds)


def is_refused(name, op):
    numbers = REFUSED.get(op.name, [])
    return numbers is None or int(name.rpartition("-")[2]) in numbers


@pytest.mark.parametrize("name, op, types, attrs", ALL, ids=[e[0] for e in ALL])
def test_every_op_goes_there_and_back_or_says_why_not(name, op, types, attrs):
    graph, feeds = single(op, types, attrs)
    if is_refused(name, op):
        reason = rf"cannot be written to TFLite:(\n  {op.name} \(layer 'layer'\): \w| 'y0' has no elements)"
        with pytest.raises(pelton.ModelError, match=reason):
            to_tflite(graph)
        return
    file = to_tflite(graph, layout="nchw")
    assert_close(list(back(file, feeds).values()), list(evaluate(graph, feeds).values()), about=name)


# --- images


def net_of(write, *types):
    net = pelton.Network("net")
    inputs = [net.input(f"x{i}", t) for i, t in enumerate(types)]
    result = write(net, *inputs)
    for i, y in enumerate(result if isinstance(result, tuple) else (result,)):
        net.output(y, f"y{i}")
    return net.graph()


def applied(net, name, operands, **attrs):
    op = get(name)
    return net.apply(op, [net.tensor_of(x) for x in operands], op.complete(attrs), name)[0]


def last(a):
    return np.ascontiguousarray(np.moveaxis(a, 1, -1)) if a.ndim > 3 else a


def assert_same(graph, batch=None, tolerance=1e-5, images=True, seed=0):
    """The file's program equals the graph on random inputs; returns the file."""
    rng, file = np.random.default_rng(seed), to_tflite(graph)
    feeds = {
        v.name: rng.standard_normal([d if isinstance(d, int) else batch for d in v.type.shape]).astype(np.float32)
        for v in graph.inputs
    }
    want = evaluate(graph, feeds)
    found = back(file, {k: last(a) if images else a for k, a in feeds.items()})
    assert found.keys() == want.keys()
    for k, w in want.items():
        w = last(w) if images else w
        assert found[k].shape == w.shape
        assert np.abs(found[k] - w).max() <= tolerance * np.abs(w).max()
    return file


def transposes(file):
    return sum(op.operator == "TRANSPOSE" for op in file.operators)


@pytest.mark.parametrize("model", [small_cnn, wide_cnn, inverted_residuals], ids=lambda m: m.__name__)
def test_networks_of_images_need_no_transposes(model):
    graph = importers.load(model()).graph
    file = assert_same(graph)
    assert transposes(file) == 0
    assert list(file.inputs.values())[0].shape[-1] == graph.inputs[0].type.shape[1]


@pytest.mark.parametrize("seed", range(24))
def test_convolutions_of_awkward_sizes(seed):
    rng = np.random.default_rng(seed)
    group = int(rng.choice([1, 1, 2, 5]))
    c, m, k = group * int(rng.integers(1, 4)), group * int(rng.integers(1, 5)), rng.integers(1, 5, 2)
    attrs = dict(
        strides=tuple(map(int, rng.integers(1, 4, 2))),
        dilations=tuple(map(int, rng.integers(1, 3, 2))),
        pads=tuple(map(int, rng.integers(0, 4, 4))),
        group=group,
    )
    w, b = normal(m, c // group, *k), normal(m)
    size = [int(s) for s in rng.integers(7, 20, 2)]
    graph = net_of(
        lambda net, x: net.relu(applied(net, "convolution", [x, w, b], **attrs)), f"f32[2, {c}, {size[0]}, {size[1]}]"
    )
    file = assert_same(graph, seed=seed)
    assert transposes(file) == 0 and not any(op.operator == "RELU" for op in file.operators)


@pytest.mark.parametrize("seed", range(12))
def test_pools_of_awkward_sizes(seed):
    rng = np.random.default_rng(seed)
    kernel = tuple(map(int, rng.integers(2, 5, 2)))
    attrs = dict(kernel=kernel, strides=tuple(map(int, rng.integers(1, 4, 2))), dilations=(1, 1))
    attrs["pads"] = tuple(int(rng.integers(0, kernel[i % 2])) for i in range(4))
    op = ["max_pool", "average_pool"][seed % 2]
    if op == "average_pool" and seed % 4 == 1:
        attrs["count_include_pad"] = True
    elif seed % 3 == 0:
        attrs["ceil_mode"] = True
    assert_same(net_of(lambda net, x: applied(net, op, [x], **attrs), "f32[2, 3, 11, 13]"), seed=seed)


@pytest.mark.parametrize("pads, extra", [((0, 0, 0, 0), (0, 0)), ((1, 1, 1, 1), (1, 1)), ((0, 1, 2, 0), (0, 1))])
@pytest.mark.parametrize("group", [1, 2])
def test_transposed_convolutions(pads, extra, group):
    w, b = normal(4, 3, 3, 4), normal(3 * group)
    attrs = dict(strides=(2, 3), pads=pads, dilations=(1, 1), group=group, output_padding=extra)
    assert_same(net_of(lambda net, x: applied(net, "conv_transpose", [x, w, b], **attrs), "f32[2, 4, 5, 6]"))


def test_a_dynamic_batch_stays_one():
    w = normal(5, 3, 3, 3)

    def write(net, x):
        y = net.max_pool(net.relu(net.convolution(x, w, normal(5), padding=1)), 2)
        return net.softmax(net.linear(net.reshape(y, (-1, 5 * 3 * 4)), normal(7, 60), normal(7)))

    graph = net_of(write, "f32[batch, 3, 6, 8]")
    for batch in (1, 3):
        file = assert_same(graph, batch)
    (x,) = file.inputs.values()
    assert x.table(0)["shape_signature"] == [-1, 6, 8, 3] and x.table(0)["shape"] == [1, 6, 8, 3]


def test_sizes_that_depend_on_two_inputs_are_computed():
    graph = net_of(lambda net, x: net.reshape(net.transpose(x, (1, 0, 2)), (-1, 6)), "f32[a, b, 6]")
    feeds = {"x0": normal(2, 5, 6)}
    assert_close(list(back(to_tflite(graph), feeds).values()), list(evaluate(graph, feeds).values()))


def test_attention_and_norms_of_tokens():
    q, k, v, o, g = (normal(12, 12) / 3 for _ in range(5))

    def write(net, x):
        h = net.layer_norm(x, normal(12), normal(12), axis=2)
        split = lambda t: net.transpose(net.reshape(t, (2, 7, 3, 4)), (0, 2, 1, 3))  # noqa: E731
        a = net.softmax(net.matmul(split(net.matmul(h, q)), net.transpose(split(net.matmul(h, k)), (0, 1, 3, 2))))
        y = net.reshape(net.transpose(net.matmul(a, split(net.matmul(h, v))), (0, 2, 1, 3)), (2, 7, 12))
        return net.add(x, net.matmul(net.gelu(net.matmul(y, o)), g))

    file = assert_same(net_of(write, "f32[2, 7, 12]"))
    assert any(op.operator == "GELU" for op in file.operators)


def test_recurrent_layers_are_unrolled():
    w, r, b = normal(1, 20, 3), normal(1, 20, 5), normal(1, 40)

    def write(net, x):
        state, peepholes = np.zeros((1, 2, 5), np.float32), np.zeros((1, 15), np.float32)
        return net.lstm(x, w, r, b, state, state, peepholes)[0]

    assert_same(net_of(write, "f32[6, 2, 3]"), images=False)


def test_indices_are_of_32_bits_and_count_from_the_end():
    table = normal(11, 4)
    graph = net_of(lambda net, i: net.gather(table, i, axis=0), "i64[2, 3]")
    file = to_tflite(graph)
    feeds = {"x0": np.array([[0, -1, 5], [-11, 10, 3]])}
    assert_close(list(back(file, feeds).values()), list(evaluate(graph, feeds).values()))
    (gather,) = (op for op in file.operators if op.operator == "GATHER")
    assert gather.inputs[1].dtype.value == "i32"


def test_the_layout_of_the_model_can_stay():
    graph = importers.load(small_cnn()).graph
    file = to_tflite(graph, layout="nchw")
    feeds = {graph.inputs[0].name: normal(*graph.inputs[0].type.shape)}
    assert_close(list(back(file, feeds).values()), list(evaluate(graph, feeds).values()))
    with pytest.raises(pelton.InputError, match="layouts are nhwc and nchw"):
        to_tflite(graph, layout="nwhc")


@pytest.mark.parametrize(
    "before, after, form, result",
    [
        ((2, 3, 4, 5), (2, 3, 20), (0, 2, 3, 1), (0, 2, 1)),  # pixels become one axis
        ((2, 3, 4, 5), (2, 60), (0, 2, 3, 1), None),  # channels would have to come first
        ((2, 60), (2, 3, 4, 5), (0, 1), (0, 1, 2, 3)),
        ((2, 3, 1, 1), (2, 3), (0, 2, 3, 1), (0, 1)),
        ((2, 6, 5), (2, 2, 3, 5), (0, 2, 1), (0, 3, 1, 2)),
    ],
)
def test_reshapes_keep_forms(before, after, form, result):
    assert reshaped_form(before, after, form) == result
    if result is not None:
        x = np.arange(np.prod(before)).reshape(before)
        assert (x.transpose(form).reshape([after[a] for a in result]) == x.reshape(after).transpose(result)).all()


# --- integers


def quantized(model, ports=False, seed=0):
    """A model with every value quantized by the ranges of random inputs, and such inputs."""
    graph = tflite.prepared(importers.load(model).graph, integers=True)
    rng, values = np.random.default_rng(seed), {v.name: v for n in graph.nodes for v in n.outputs}
    (x,) = graph.inputs
    feeds = {x.name: rng.standard_normal(x.type.shape).astype(np.float32)}
    names = tflite.calibrated_values(graph)
    watched = graph.replace(outputs=tuple(values[n] for n in names if n in values))
    arrays = evaluate(watched, feeds) | feeds
    ranges = {n: (float(arrays[n].min()), float(arrays[n].max())) for n in names}
    return tflite.quantized(graph, ranges, ports=ports), feeds


@pytest.mark.parametrize("model", [small_cnn, wide_cnn, inverted_residuals], ids=lambda m: m.__name__)
def test_programs_of_integers_stay_integers(model):
    graph, feeds = quantized(model())
    file = to_tflite(graph)
    names = [op.operator for op in file.operators]
    assert names[0] == "QUANTIZE" and names[-1] == "DEQUANTIZE" and names.count("DEQUANTIZE") == 1
    for op in file.operators:
        if op.operator in ("CONV_2D", "DEPTHWISE_CONV_2D"):
            x, w, b = op.inputs
            assert (x.dtype.value, w.dtype.value, b.dtype.value) == ("i8", "i8", "i32")
            assert len(w.scaling.scale) == w.shape[0 if op.operator == "CONV_2D" else 3] and w.scaling.zero == 0
            assert np.allclose(b.scaling.scale, np.array(w.scaling.scale) * x.scaling.scale[0])
    (want,), (found,) = evaluate(graph, feeds).values(), back(file, {k: last(a) for k, a in feeds.items()}).values()
    step = file.operators[-1].inputs[0].scaling.scale[0]
    assert (np.abs(found - last(want)) > 1.01 * step).mean() <= 0.001


def test_a_model_of_a_quantizer_becomes_one_of_signed_bytes():
    graph = importers.load(qdq_cnn()).graph
    file = to_tflite(graph)
    assert [op.operator for op in file.operators].count("DEQUANTIZE") == 1
    assert not any(t.dtype.value == "u8" for op in file.operators for t in op.outputs)
    feeds = {graph.inputs[0].name: normal(*graph.inputs[0].type.shape)}
    (want,), (found,) = evaluate(graph, feeds).values(), back(file, {k: last(a) for k, a in feeds.items()}).values()
    assert np.abs(found - want).max() <= 1.01 * file.operators[-1].inputs[0].scaling.scale[0]


def test_the_edge_tpu_takes_a_model_of_integers_alone():
    file = to_tflite(quantized(small_cnn(), ports=True)[0])
    assert {t.dtype.value for t in (*file.inputs.values(), *file.outputs.values())} == {"i8"}
    assert {r.operator for r in rejections(file.operators)} <= {"FULLY_CONNECTED", "RESHAPE", "SOFTMAX", "DEQUANTIZE"}
    floats = to_tflite(importers.load(small_cnn()).graph)
    assert len(rejections(floats.operators)) == len(floats.operators)
    assert "not a quantized byte" in rejections(floats.operators)[0].reason


# --- errors, and the command


def test_every_layer_without_a_form_is_named():
    def write(net, x):
        y = net.relu(net.asinh(x, name="first"))
        return net.add(net.acosh(y, name="second"), 1.0)

    with pytest.raises(pelton.ModelError) as e:
        to_tflite(net_of(write, "f32[3, 4]"))
    assert re.findall(r"(asinh|acosh) \(layer", str(e.value)) == ["asinh", "acosh"]


def test_layers_behind_one_without_a_form_are_judged_with_their_constants():
    def write(net, x):
        y = net.pad(net.asin(x), ((0, 0), (0, 1), (0, 0), (0, 0)))
        return net.acosh(net.convolution(y, normal(4, 3, 3, 3)), name="second")

    with pytest.raises(pelton.ModelError) as e:
        to_tflite(net_of(write, "f32[1, 2, 8, 8]"))
    assert re.findall(r"(\w+) \(layer", str(e.value)) == ["asin", "acosh"]


def test_files_are_not_written_into_missing_folders(tmp_path):
    with pytest.raises(pelton.InputError, match="cannot be written"):
        to_tflite(importers.load(small_cnn()).graph, tmp_path / "no" / "x.tflite")


def test_the_command_converts_to_tflite(tmp_path, cnn, capsys):
    path = tmp_path / "x.tflite"
    assert main(["convert", cnn, "-o", str(path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["operators"] == facts["edgetpu"]["listed"] + len(facts["edgetpu"]["others"]) > 0
    assert list(facts["inputs"].values()) == ["f32[1, 12, 12, 3]"] and facts["bytes"] == path.stat().st_size
    assert main(["convert", cnn, "-o", str(path), "--layout", "nchw"]) == 0
    text = capsys.readouterr().out
    assert "f32[1, 3, 12, 12]" in text and re.search(r"Edge TPU: 0 of \d+ operators .*\(--calibration\)\n$", text)


def test_models_whose_data_decides_are_refused_with_a_way_out(refused, tmp_path):
    value = onnx.helper.make_tensor_value_info

    def branch(*names):
        y = value("y", onnx.TensorProto.FLOAT, [None])
        return onnx.helper.make_graph([onnx.helper.make_node("Concat", names, ["y"], axis=0)], "branch", [], [y])

    node = onnx.helper.make_node("If", ["c"], ["y"], then_branch=branch("x"), else_branch=branch("x", "x"))
    inputs = [value("c", onnx.TensorProto.BOOL, []), value("x", onnx.TensorProto.FLOAT, [4])]
    graph = onnx.helper.make_graph([node], "g", inputs, [value("y", onnx.TensorProto.FLOAT, [None])])
    path = tmp_path / "m.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    assert "TFLite files of models without such parts" in refused(
        "convert", str(path), "-o", str(tmp_path / "m.tflite")
    )


def test_the_command_calibrates(tmp_path, cnn, capsys):
    graph, path = importers.load(cnn).graph, tmp_path / "x.tflite"
    np.savez(tmp_path / "data.npz", **{graph.inputs[0].name: normal(8, 3, 12, 12)})
    args = ["convert", cnn, "-o", str(path), "--calibration", str(tmp_path / "data.npz"), "--calibrator", "minmax"]
    assert main([*args, "--int8-ports", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["inputs"].values()) == ["i8[1, 12, 12, 3]"]


@pytest.mark.parametrize(
    "name, args, reason",
    [
        ("x.tflite", ["--opset", "20"], "--opset is for ONNX files"),
        ("x.onnx", ["--layout", "nchw"], "--layout is for TFLite files"),
        ("x.tflite", ["--int8-ports"], "--int8-ports needs --calibration"),
        ("x.tflite", ["--calibration", "no.npz"], "no.npz"),
    ],
)
def test_options_that_do_not_fit_are_errors(refused, cnn, tmp_path, name, args, reason):
    assert reason in refused("convert", cnn, "-o", str(tmp_path / name), *args)
