"""Caffe files: versions, all forms of weights, rules, inputs and outputs."""

import logging
import time

import numpy as np
import pytest
from caffe_models import caffemodel, layer, legacy, random_blobs, run, text

import pelton
from pelton.errors import FormatError, InputError, ModelError
from pelton.importers import load
from pelton.importers.caffe.schema import message_class
from pelton.importers.onnx import recognizes as is_onnx
from pelton.importers.registry import ModelFiles, format_of
from pelton.ir.evaluate import evaluate

NET = text(
    (1, 3, 8, 8),
    layer("Convolution", "convolution_param { num_output: 4 kernel_size: 3 }", tops=("conv",)),
    layer("BatchNorm", "", ("conv",), ("norm",)),
    layer("Scale", "scale_param { bias_term: true }", ("norm",), ("scale",)),
    layer("InnerProduct", "inner_product_param { num_output: 5 }", ("scale",), ("fc",)),
    layer("Softmax", "", ("fc",), ("prob",)),
)
X = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def blobs():
    return random_blobs(NET)


def computed(net, weights=None, x=X):
    source = net if isinstance(net, bytes) or not isinstance(net, str) else net.encode()
    graph = load(ModelFiles(source, weights) if weights else source).graph
    return evaluate(graph, {graph.inputs[0].name: x})


def want(blobs):
    """The net in float64."""
    (w, b), (mean, var, factor), (scale, shift), (fw, fb) = (
        [a.astype(np.float64) for a in blobs[name][1]] for name in ("conv", "norm", "scale", "fc")
    )
    windows = np.lib.stride_tricks.sliding_window_view(X, (3, 3), (2, 3))
    y = np.einsum("nchwij,mcij->nmhw", windows, w) + b.reshape(-1, 1, 1)
    y = (y - (mean / factor).reshape(-1, 1, 1)) / np.sqrt((var / factor).reshape(-1, 1, 1) + 1e-5)
    y = (y * scale.reshape(-1, 1, 1) + shift.reshape(-1, 1, 1)).reshape(1, -1) @ fw.T + fb
    return np.exp(y - y.max()) / np.exp(y - y.max()).sum()


# --- weights


def unpacked(blobs) -> bytes:
    """A file of which every element has a tag of its own, which protobuf reads as well."""
    net = b""
    for name, (kind, arrays) in blobs.items():
        found = [b"\x0a" + bytes([len(name)]) + name.encode(), b"\x12" + bytes([len(kind)]) + kind.encode()]
        for a in arrays:
            data = b"".join(b"\x2d" + e.tobytes() for e in a.astype("<f4").ravel())
            shape = message_class("BlobShape")(dim=a.shape).SerializeToString()
            data += b"\x3a" + bytes([len(shape)]) + shape
            found.append(b"\x3a" + varint(len(data)) + data)
        whole = b"".join(found)
        net += b"\xa2\x06" + varint(len(whole)) + whole
    return net


def varint(n):
    return bytes([n & 127 | 128]) + varint(n >> 7) if n > 127 else bytes([n])


def double(blob, a):
    blob.shape.dim.extend(a.shape)
    blob.double_data.extend(a.ravel().tolist())


def half(blobs, kind=2, dtype="<f2") -> bytes:
    net = message_class("weights.NetParameter")()
    for name, (of, arrays) in blobs.items():
        made = net.layer.add(name=name.encode(), type=of.encode())
        for a in arrays:
            made.blobs.add(raw_data_type=kind, raw_data=a.astype(dtype).tobytes()).shape.dim.extend(a.shape)
    return net.SerializeToString()


def of_version_1(blobs) -> bytes:
    net = message_class("NetParameter")()
    for name, (_, arrays) in blobs.items():
        made = net.layers.add(name=name)
        for a in arrays:
            legacy(made.blobs.add(), a)
    return net.SerializeToString()


def of_version_0(blobs) -> bytes:
    net = message_class("NetParameter")()
    for name, (_, arrays) in blobs.items():
        made = net.layers.add()
        made.layer.name = name
        for a in arrays:
            legacy(made.layer.blobs.add(), a)
    return net.SerializeToString()


@pytest.mark.parametrize(
    "form",
    [caffemodel, of_version_1, of_version_0, unpacked]
    + [lambda b: caffemodel(b, legacy), lambda b: caffemodel(b, double), lambda b: half(b, 1, "<f4"), half],
    ids=["today", "version 1", "version 0", "unpacked", "four axes", "double", "raw float", "raw half"],
)
def test_weights_in_every_form(form, blobs, tmp_path):
    (tmp_path / "w.caffemodel").write_bytes(form(blobs))
    close = dict(rtol=2e-2, atol=1e-3) if form is half else dict(rtol=1e-5)
    np.testing.assert_allclose(computed(NET, tmp_path / "w.caffemodel")["prob"], want(blobs), **close)


def test_a_file_beside_it_is_taken_and_another_one_named(blobs, tmp_path):
    path, other = tmp_path / "net.prototxt", tmp_path / "other.caffemodel"
    path.write_text(NET)
    other.write_bytes(caffemodel(blobs))
    assert "random" in load(path).info.warnings[0]
    np.testing.assert_allclose(pelton.build(path, weights=other, level=0).run({"x": X})["prob"], want(blobs), rtol=1e-4)
    other.rename(tmp_path / "net.caffemodel")
    for name in ("net.prototxt", "net.caffemodel"):
        assert load(tmp_path / name).info.warnings == ()
        np.testing.assert_allclose(computed(tmp_path / name)["prob"], want(blobs), rtol=1e-5)


def test_the_command_line_takes_both(blobs, tmp_path, capsys):
    from pelton.cli import main

    (tmp_path / "net.prototxt").write_text(NET)
    (tmp_path / "w.caffemodel").write_bytes(caffemodel(blobs))
    net, weights, engine = (str(tmp_path / name) for name in ("net.prototxt", "w.caffemodel", "net.pelton"))
    given = [net, "--weights", weights]
    assert not main(["build", *given, "--level", "0", "-o", engine])
    np.testing.assert_allclose(pelton.load(engine).run({"x": X})["prob"], want(blobs), rtol=1e-4)
    assert not main(["check", *given]) and "random" not in capsys.readouterr().out
    assert main(["compare", *given, engine, "-q"]) == 0
    assert main(["compare", net, engine, "-q", "--seed", "1"]) == 1  # random weights are others, with most inputs


def test_random_weights_are_the_same_each_time_and_announced(caplog):
    with caplog.at_level(logging.WARNING):
        first = computed(NET)["prob"]
    assert "weights of 4 layers ('conv', 'norm', 'scale', 'fc') are random" in caplog.text
    assert np.array_equal(first, computed(NET)["prob"]) and first.std() > 0.01


def test_layers_that_the_file_does_not_have_are_random(blobs, tmp_path):
    (tmp_path / "w.caffemodel").write_bytes(caffemodel({k: v for k, v in blobs.items() if k != "fc"}))
    (warning,) = load(ModelFiles(NET.encode(), tmp_path / "w.caffemodel")).info.warnings
    assert "has no weights of 1 layers ('fc')" in warning


FILLERS = {
    "constant": ("value: 0.3", lambda w: w == np.float32(0.3)),
    "uniform": ("min: 2 max: 3", lambda w: (2 <= w.min()) & (w.max() <= 3) & (abs(w.mean() - 2.5) < 0.02)),
    "gaussian": ("mean: 1 std: 2", lambda w: (abs(w.mean() - 1) < 0.1) & (abs(w.std() - 2) < 0.1)),
    "positive_unitball": ("", lambda w: abs(w.reshape(64, -1).sum(1) - 1) < 1e-5),
    "xavier": ("", lambda w: (abs(w).max() <= (3 / 288) ** 0.5) & (abs(w.std() - (1 / 288) ** 0.5) < 1e-3)),
    "msra": ("variance_norm: FAN_OUT", lambda w: abs(w.std() - (2 / 576) ** 0.5) < 1e-3),
    "bilinear": (
        "",
        lambda w: (w == w[:1, :1]) & np.isclose(w[0, 0], np.outer((0.25, 0.75, 0.75), (0.25, 0.75, 0.75))),
    ),
}


@pytest.mark.parametrize("kind", FILLERS)
def test_fillers(kind):
    given, check = FILLERS[kind]
    params = f'num_output: 64 kernel_size: 3 weight_filler {{ type: "{kind}" {given} }}'
    graph = load(text((1, 32, 4, 4), layer("Convolution", f"convolution_param {{ {params} }}")).encode()).graph
    (weight,) = [a for a in graph.constants.values() if a.ndim == 4]
    assert weight.shape == (64, 32, 3, 3) and np.all(check(weight))


def test_sparse_and_unknown_fillers():
    net = text(
        (1, 90), layer("InnerProduct", 'inner_product_param { num_output: 50 weight_filler { type: "FILLER" } }')
    )
    sparse = net.replace('"FILLER"', '"gaussian" sparse: 5')
    (weight,) = [a for a in load(sparse.encode()).graph.constants.values() if a.ndim == 2]
    assert 0.05 < (weight != 0).mean() < 0.2
    with pytest.raises(ModelError, match="has the unknown filler 'FILLER'"):
        load(net.encode())


def test_layers_share_filled_weights_by_name():
    of = 'inner_product_param { num_output: 4 } param { name: "w" } param { name: "b" }'
    net = text((2, 4), layer("InnerProduct", of, tops=("a",)), layer("InnerProduct", of, tops=("b",)))
    found = computed(net, x=np.ones((2, 4), np.float32))
    assert np.array_equal(found["a"], found["b"]) and found["a"].any()


# --- versions of the text

V1 = """
name: "old"
input: "data"
input_dim: 1 input_dim: 3 input_dim: 8 input_dim: 8
layers { name: "conv" type: CONVOLUTION bottom: "data" top: "conv" blobs_lr: 1 weight_decay: 0
  convolution_param { num_output: 4 kernel_size: 3 } param: "shared" }
layers { name: "relu" type: RELU bottom: "conv" top: "conv" relu_param { negative_slope: 0.1 } }
layers { name: "lrn" type: LRN bottom: "conv" top: "lrn" lrn_param { local_size: 3 alpha: 0.5 } }
layers { name: "pool" type: POOLING bottom: "lrn" top: "pool" pooling_param { pool: AVE kernel_size: 3 stride: 2 } }
layers { name: "fc" type: INNER_PRODUCT bottom: "pool" top: "fc" inner_product_param { num_output: 5 } }
layers { name: "drop" type: DROPOUT bottom: "fc" top: "fc" include { phase: TRAIN } }
layers { name: "loss" type: SOFTMAX_LOSS bottom: "fc" top: "prob" }
"""
V0 = """
input: "data"
input_dim: 1 input_dim: 3 input_dim: 8 input_dim: 8
layers { layer { name: "pad" type: "padding" pad: 1 } bottom: "data" top: "padded" }
layers { layer { name: "conv" type: "conv" num_output: 4 kernelsize: 3 stride: 1 group: 1 biasterm: true }
  bottom: "padded" top: "conv" }
layers { layer { name: "relu" type: "relu" } bottom: "conv" top: "conv" }
layers { layer { name: "lrn" type: "lrn" local_size: 3 alpha: 0.5 beta: 0.75 } bottom: "conv" top: "lrn" }
layers { layer { name: "pool" type: "pool" pool: AVE kernelsize: 3 stride: 2 } bottom: "lrn" top: "pool" }
layers { layer { name: "cat" type: "concat" concat_dim: 1 } bottom: "pool" bottom: "pool" top: "cat" }
layers { layer { name: "fc" type: "innerproduct" num_output: 5 } bottom: "cat" top: "fc" }
layers { layer { name: "prob" type: "softmax" } bottom: "fc" top: "prob" }
"""
SAME = {
    V1: text(
        {"data": (1, 3, 8, 8)},
        layer("Convolution", "convolution_param { num_output: 4 kernel_size: 3 }", ("data",), ("conv",)),
        layer("ReLU", "relu_param { negative_slope: 0.1 }", ("conv",), ("r",)),
        layer("LRN", "lrn_param { local_size: 3 alpha: 0.5 }", ("r",), ("l",)),
        layer("Pooling", "pooling_param { pool: AVE kernel_size: 3 stride: 2 }", ("l",), ("p",)),
        layer("InnerProduct", "inner_product_param { num_output: 5 }", ("p",), ("fc",)),
        layer("Softmax", "", ("fc",), ("prob",)),
    ),
    V0: text(
        {"data": (1, 3, 8, 8)},
        layer("Convolution", "convolution_param { num_output: 4 kernel_size: 3 pad: 1 }", ("data",), ("conv",)),
        layer("ReLU", "", ("conv",), ("r",)),
        layer("LRN", "lrn_param { local_size: 3 alpha: 0.5 }", ("r",), ("l",)),
        layer("Pooling", "pooling_param { pool: AVE kernel_size: 3 stride: 2 }", ("l",), ("p",)),
        layer("Concat", "", ("p", "p"), ("c",)),
        layer("InnerProduct", "inner_product_param { num_output: 5 }", ("c",), ("fc",)),
        layer("Softmax", "", ("fc",), ("prob",)),
    ),
}


@pytest.mark.parametrize("old", SAME, ids=["V1", "V0"])
def test_old_texts_mean_what_new_ones_do(old):
    found = computed(old)
    assert list(found) == ["prob"]
    np.testing.assert_allclose(found["prob"], computed(SAME[old])["prob"], rtol=1e-6)


def test_every_type_of_version_1_is_read_or_has_a_reason():
    from pelton.importers.caffe.layer import READERS
    from pelton.plugins import types_of
    from pelton.importers.caffe.upgrade import type_name

    names = message_class("V1LayerParameter").DESCRIPTOR.enum_types_by_name["LayerType"].values_by_name
    assert {type_name(n) for n in names} - {*READERS, *types_of("caffe")} == {"None"}


# --- rules, data, losses

TRAINED = """
state { stage: "a" level: 2 }
layer { name: "data" type: "Data" top: "data" top: "label" include { phase: TRAIN }
  data_param { batch_size: 64 } transform_param { crop_size: 5 } }
layer { name: "data" type: "Data" top: "data" top: "label" include { phase: TEST }
  data_param { batch_size: 2 } transform_param { crop_size: 6 mean_value: 104 mean_value: 117 mean_value: 123 } }
layer { name: "fc" type: "InnerProduct" bottom: "data" top: "fc" inner_product_param { num_output: 4 } }
layer { name: "in" type: "Power" bottom: "fc" top: "fc" power_param { shift: 5 } RULE }
layer { name: "one_hot" type: "Flatten" bottom: "label" top: "flat" }
layer { name: "accuracy" type: "Accuracy" bottom: "fc" bottom: "label" top: "accuracy" include { phase: TEST } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc" bottom: "label" top: "loss" }
layer { name: "other" type: "EuclideanLoss" bottom: "fc" bottom: "flat" top: "other" }
"""


def test_a_net_for_training_is_read_as_it_is_at_inference():
    found = load(TRAINED.replace("RULE", "").encode())
    assert [str(v.type) for v in found.graph.inputs] == ["f32[2, 3, 6, 6]"]
    assert [v.name for v in found.graph.outputs] == ["loss"]
    assert "preprocess images accordingly" in found.info.warnings[0]
    assert "left out: 'one_hot', 'accuracy', 'other'" in found.info.warnings[-1]
    x = np.random.default_rng(0).standard_normal((2, 3, 6, 6)).astype(np.float32)
    np.testing.assert_allclose(evaluate(found.graph, {"data": x})["loss"].sum(1), 1, rtol=1e-5)


@pytest.mark.parametrize(
    "rule, there",
    [
        ("include { phase: TEST }", True),
        ("include { phase: TRAIN } include { min_level: 2 }", True),
        ("include { min_level: 3 }", False),
        ("include { max_level: 1 }", False),
        ('include { stage: "a" }', True),
        ('include { stage: "a" stage: "b" }', False),
        ('include { not_stage: "a" }', False),
        ("exclude { phase: TEST }", False),
        ('exclude { phase: TRAIN } exclude { stage: "b" }', True),
    ],
)
def test_rules_of_layers(rule, there):
    graph = load(TRAINED.replace("RULE", rule).encode()).graph
    assert any(n.op.name == "add" and n.name == "in" for n in graph.nodes) == there


def test_inputs_of_other_layers_and_shapes():
    memory = "memory_data_param { batch_size: 2 channels: 1 height: 3 width: 4 }"
    for kind, params, shape in (
        ("MemoryData", memory, (2, 1, 3, 4)),
        ("DummyData", "dummy_data_param { num: 2 channels: 1 height: 3 width: 4 }", (2, 1, 3, 4)),
        ("DummyData", "dummy_data_param { shape { dim: 5 } }", (5,)),
        ("Input", "input_param { shape { dim: 2 dim: 7 } }", (2, 7)),
        (
            "ImageData",
            "image_data_param { batch_size: 3 } transform_param { crop_size: 9 force_gray: true }",
            (3, 1, 9, 9),
        ),
    ):
        net = layer(kind, params, (), ("x",)) + layer("ReLU")
        assert load(net.encode()).graph.inputs[0].type.shape == shape
    net = (layer("Data", "", (), ("x", "label")) + layer("ReLU")).encode()
    with pytest.raises(ModelError, match="does not declare the shape of 'x'; set it with shapes="):
        load(net)
    assert load(net, {"x": (1, 3, 4, 4)}).graph.outputs[0].type.shape == (1, 3, 4, 4)


def test_shapes_and_batches_may_be_others():
    net = text({"x": (10, 3, 8, 8), "z": (10, 3, 8, 8)}, layer("Eltwise", "", ("x", "z")))
    found = load(net.encode(), {"x": "1..4..16x3x5x6", "z": "1..4..16x3x5x6"})
    assert str(found.graph.outputs[0].type) == "f32[batch, 3, 5, 6]"
    wide = load(NET.encode(), {"x": (7, 3, 9, 9)}).graph
    assert wide.outputs[0].type.shape == (7, 5)
    tall = text((1, 3, 8, 8), layer("Pooling", "pooling_param { kernel_size: 2 stride: 2 }"))
    assert str(load(tall.encode(), {"x": "1x3x8..16..32x8"}).graph.outputs[0].type).count("x_2")
    for shapes, reason in (
        ({"x": (1, 3, 8)}, "has 4 axes"),
        ({"y": (1, 3, 8, 8)}, "there is no input 'y'"),
        ({"x": (0, 3, 8, 8)}, "sizes of 1 and more"),
        ({"x": "1x3x8xa"}, "must be like"),
    ):
        with pytest.raises(InputError, match=reason):
            load(tall.encode(), shapes)


def test_outputs_are_what_no_layer_reads():
    net = text(
        (2, 4), layer("ReLU", tops=("a",)), layer("AbsVal", tops=("b",)), layer("Silence", bottoms=("b",), tops=())
    )
    given, _, found = run(net)
    assert list(found) == ["a"]
    (name,) = load(net.encode(), outputs=["b"]).graph.outputs
    assert name.name == "b"


def test_lists_of_layers_and_other_brackets_are_text_of_protobuf_too():
    net = """input: "x" input_shape: < dim: [2, 3] > # layer {
    layer: [{ name: "a" type: "ReLU" bottom: "x" top: "a" }, < name: 'b' type: 'Exp' bottom: "a" top: "b" >]
    layer # a comment
    { name: "c" type: "Power" bottom: "b" top: "y" power_param { shift: 1 } }"""
    x = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    np.testing.assert_allclose(computed(net, x=x)["y"], np.exp(np.maximum(x, 0)) + 1, rtol=1e-6)


def test_formats_are_told_apart(tmp_path):
    for name, data, expected in (
        ("a.prototxt", b"\n", "Caffe"),
        ("a.caffemodel", b"\xff", "Caffe"),
        ("a.txt", b"# a net\n\nname: 'x'\nlayer { }", "Caffe"),
        ("a.pbtxt", b"node { name: 'x' }", None),
        ("a.cfg", b"[net]\nbatch=1", "Darknet"),
        ("a.onnx", b"name: 'x'\nlayer { }", "Caffe"),
        ("a.bin", bytes(range(256)), None),
    ):
        (tmp_path / name).write_bytes(data)
        try:
            found = format_of(tmp_path / name).name
        except FormatError:
            found = None
        assert found == expected, name
    assert format_of(NET.encode()).name == "Caffe" and not is_onnx(NET.encode())


def test_a_large_net_is_imported_in_seconds(tmp_path):
    from pathlib import Path

    path = Path(__file__).parents[2] / "shared" / "data" / "caffe" / "resnet_50.prototxt"
    if not path.exists():
        pytest.skip("there is no shared/data/caffe beside the repository")
    weights = tmp_path / "w.caffemodel"
    weights.write_bytes(caffemodel(random_blobs(path.read_bytes())))
    start = time.perf_counter()
    graph = load(ModelFiles(path, weights)).graph
    assert time.perf_counter() - start < 3 * 3  # seconds; three times the gate, for machines that others use
    assert len(graph.constants) > 200
