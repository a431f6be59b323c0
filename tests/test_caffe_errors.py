"""Damaged and oversized Caffe files: each raises an error that names the file, the layer and the line."""

import resource
import time

import numpy as np
import pytest
from caffe_models import caffemodel, layer, random_blobs, text

from pelton.errors import InputError, ModelAbsent, ModelError
from pelton.importers import examine, load
from pelton.importers.caffe.schema import message_class
from pelton.importers.registry import ModelFiles

NET = text(
    (1, 3, 8, 8),
    layer("Convolution", "convolution_param { num_output: 4 kernel_size: 3 }", tops=("conv",)),
    layer("PReLU", "", ("conv",), ("relu",)),
    layer("Pooling", "pooling_param { kernel_size: 3 stride: 2 }", ("relu",), ("pool",)),
    layer("InnerProduct", "inner_product_param { num_output: 5 }", ("pool",), ("fc",)),
    layer("Softmax", "", ("fc",), ("prob",)),
)


def refused(net, reason, weights=None):
    source = net.encode() if isinstance(net, str) else net
    with pytest.raises(ModelError, match=reason):
        load(ModelFiles(source, weights) if weights else source)


@pytest.mark.parametrize(
    "one, reason",
    [
        (
            layer("Convolutoin"),
            r"the prototxt:2: layer 'y' \(Convolutoin\) is of a type that is not read .*'Convolution'",
        ),
        (layer("Python"), "is of a type that is not read"),
        (layer("Filter"), "read it with a plugin"),
        (layer("ReLU", bottoms=("z",)), "reads 'z', which no earlier layer writes"),
        (layer("ReLU", bottoms=("y",)), "reads 'y', which no earlier layer writes"),
        (layer("ReLU", bottoms=("y",)) + layer("AbsVal", bottoms=("y",), tops=("y",)), "reads 'y'"),
        (
            layer("ReLU", bottoms=("a",)) + layer("ReLU", bottoms=("y",), tops=("a",)),
            "its producer, layer 'a', comes later",
        ),
        (
            layer("Data", "include { phase: TRAIN }", (), ("d",)) + layer("ReLU", bottoms=("d",)),
            "reads 'd', .*; its producer, layer 'd' in line 2, is not in the phase TEST: use the deploy",
        ),
        (layer("ReLU") + layer("AbsVal"), "writes 'y', which the layer in line 2 also writes"),
        (layer("ReLU", tops=("x",)) + layer("Input", tops=("x",), bottoms=()), "does not declare the shape|writes 'x'"),
        (layer("ReLU", tops=("a", "b")), "has 1 tops, got 2 names"),
        (layer("ReLU", bottoms=()), "needs 1 bottoms, got 0"),
        (layer("Convolution"), "needs kernel_size"),
        (layer("Convolution", "convolution_param { kernel_size: 3 }"), "needs 3 channels and num_output 0 divisible"),
        (layer("Convolution", "convolution_param { num_output: 4 kernel_size: 3 group: 2 }"), "divisible by group 2"),
        (layer("Convolution", "convolution_param { num_output: 3 kernel_size: 0 }"), "of 1 and more"),
        (layer("Convolution", "convolution_param { num_output: 3 kernel_size: 9 }"), "needs windows that fit"),
        (
            layer("Convolution", "convolution_param { num_output: 3 kernel_size: 3 kernel_h: 3 }"),
            "either kernel_size or",
        ),
        (
            layer("Convolution", "convolution_param { num_output: 3 kernel_size: 3 stride: 1 stride: 2 stride: 3 }"),
            "stride once",
        ),
        (layer("Convolution", "convolution_param { num_output: 3 kernel_size: 3 axis: 2 }"), "channels along axis 1"),
        (layer("Convolution", "convolution_param { num_output: 4000000000 kernel_size: 3 }"), "more than 268435456"),
        (
            layer("Convolution", "convolution_param { num_output: 3 kernel_size: 1 pad: 4000000000 }"),
            "at most 2147483647",
        ),
        (layer("InnerProduct"), "weights of sizes of 1 and more"),
        (layer("InnerProduct", "inner_product_param { num_output: 4000000000 }"), "need a file of weights"),
        (
            layer("InnerProduct", "inner_product_param { num_output: 3 axis: 7 }"),
            "needs an axis between -4 and 3, got 7",
        ),
        (layer("Embed", "embed_param { input_dim: 4000000000 num_output: 4000000000 }"), "need a file of weights"),
        (layer("Tile", "tile_param { tiles: 2000000000 }"), "at most 2147483647"),
        (layer("Tile"), "needs 1 tile and more"),
        (layer("SPP", "spp_param { pyramid_height: 4000000000 }"), "needs a pyramid_height"),
        (layer("Interp", "interp_param { height: 2000000000 width: 2000000000 }"), "at most 2147483647"),
        (layer("Interp", "interp_param { height: -3 width: 5 }"), "needs a height and a width"),
        (layer("Upsample", "upsample_param { scale: 4000000000 }"), "at most 2147483647"),
        (layer("PriorBox", "prior_box_param { min_size: 3 }"), "needs an image as its second operand"),
        (layer("Reshape", "reshape_param { shape { dim: 5 dim: -1 } }"), "another number of elements|divisible|5"),
        (layer("Reshape", "reshape_param { shape { dim: -1 dim: -1 } }"), "-1 at most once"),
        (layer("Reshape", "reshape_param { shape { dim: -9223372036854775808 } }"), "sizes of 0 and more"),
        (layer("Slice", "slice_param { slice_point: 3 slice_point: 1 }", tops=("a", "b", "c")), "needs rising points"),
        (layer("Slice", tops=("a", "b")), "needs a size divisible by its 2 tops"),
        (layer("Eltwise"), "needs two bottoms"),
        (layer("Eltwise", "eltwise_param { coeff: 1 }", ("x", "x")), "needs a coeff for each"),
        (layer("Flatten", tops=("f",)) + layer("Eltwise", "", ("x", "f")), "needs bottoms of one shape"),
        (layer("Flatten", tops=("f",)) + layer("Concat", "", ("x", "f")), "layer 'y' .Concat. cannot be read"),
        (layer("Permute", "permute_param { order: 1 order: 1 }"), "needs distinct axes"),
        (layer("Crop", "crop_param { offset: 1 }", ("x", "x")), "cannot crop"),
        (layer("ArgMax", "argmax_param { top_k: 4000000 }"), "needs a top_k from 1 to 192"),
        (layer("LRN", "lrn_param { local_size: 4 }"), "needs an odd local_size"),
        (layer("Log", "log_param { base: 1 }"), "needs a base above 0"),
        (layer("ShuffleChannel", "shuffle_channel_param { group: 2 }"), "divisible by group 2"),
        (layer("LSTM", "recurrent_param { num_output: 3 }"), "2 bottoms, got 1"),
        (layer("ReLU", "include { phase: TEST } exclude { phase: TRAIN }"), "rules to include and to exclude it"),
        (layer("ReLU", "include { phase: TRAIN }"), "has no layers; .* a solver names in its field net"),
        (layer("Silence", tops=()), "no layer has an output"),
        (
            'layers { name: "o" type: RELU bottom: "x" top: "y" } layer { name: "n" type: "ReLU" }',
            "two versions of Caffe",
        ),
    ],
)
def test_layers_that_cannot_be_read(one, reason):
    refused(text((1, 3, 8, 8), one), reason)


@pytest.mark.parametrize(
    "damaged, reason",
    [
        (NET.replace("type:", "type", 1), "the prototxt:2: this is no prototxt"),
        (NET + "\nlayer {", "the prototxt:7: this is no prototxt that Caffe reads"),
        (NET + "\n}", "the prototxt:7"),
        (NET.replace("kernel_size: 3", "kernel_size: -3", 1), "the prototxt:2: .*-3"),
        (NET.replace("kernel_size: 3", 'kernel_size: "x"', 1), "the prototxt:2"),
        (NET.replace("num_output: 4", "num_output: 99999999999", 1), "the prototxt:2"),
        (NET + '\nstate { phase: "NIGHT" }', "the prototxt:7"),
        ('layers { type: NONSENSE bottom: "x" }', "the prototxt:1: .*NONSENSE"),
        ("layer " + "{ a " * 100000, "nested deeper than 50 levels"),
        ("layer { x <" + " y <" * 49 + "> " * 49 + "> }", "nested deeper than 50 levels"),
        ('input: "x" layer { }', "needs|no layer|does not declare"),
        ('input: "x" input_dim: 3 layer { }', "needs four numbers input_dim"),
        ('input: "x" input_shape { dim: 0 dim: 3 } layer { }', "needs sizes of 1 and more for 'x'"),
        ('input: "x" input_shape { dim: -1 } layer { }', "needs sizes of 1 and more for 'x'"),
        ('input: "x" input_shape { dim: 1000000 dim: 1000000 } layer { }', "at most 2147483647"),
        ('input: "x" input: "x" input_shape { dim: 1 } layer { }', "already has a tensor 'x'"),
        ("input: \xff layer { }", "the prototxt:1"),
    ],
)
def test_texts_that_are_none(damaged, reason):
    refused(damaged.encode("utf-8", "surrogateescape"), reason)


def test_unknown_fields_of_forks_do_not_refuse_a_layer():
    net = NET.replace("num_output: 4", "num_output: 4 engine_of_mine: { a: [1, 2] b <c: 'x'> } other: 3")
    found = load(net.encode())
    assert "the prototxt:2: no layer that is read has a field 'engine_of_mine'" in found.info.warnings[0]
    assert "plugins read python_param.param_str" in found.info.warnings[0]
    refused(net + "\n}", "the prototxt:7")


def test_engines_and_normalizations_of_forks_say_nothing_of_what_is_computed():
    net = NET.replace("num_output: 4", "num_output: 4 engine: MKL2017")
    loss = layer("SoftmaxWithLoss", "loss_param { normalization: PRE_FIXED }", ("prob",), ("loss",))
    warnings = load("\n".join((net, loss)).encode()).info.warnings
    assert not any("field" in w for w in warnings), warnings
    refused(net.replace("MKL2017", "OF_MINE"), "has no value named OF_MINE")


@pytest.mark.parametrize("kind", ["DenseImageData", "ImageSegData", "VideoData"])
def test_data_layers_of_forks_are_inputs(kind):
    net = "\n".join((layer(kind, "own_param { batch_size: 2 }", (), ("x", "label")), layer("ReLU")))
    with pytest.raises(ModelError, match=r"set it with shapes=\{'x': ...\}"):
        load(net.encode())
    assert [str(v.type) for v in load(net.encode(), shapes={"x": (1, 3, 4, 4)}).graph.inputs] == ["f32[1, 3, 4, 4]"]


def test_comments_in_any_encoding_and_a_mark_of_order():
    assert load(b"\xef\xbb\xbf# \xb5\xc4\xd2\xe2\xcb\xbc { layer {\n" + NET.encode()).graph.outputs


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(ModelAbsent, match="there is no file"):
        load(tmp_path / "a.prototxt")
    (tmp_path / "a.prototxt").write_text(NET)
    with pytest.raises(ModelAbsent, match="there is no file"):
        load(ModelFiles(tmp_path / "a.prototxt", tmp_path / "a.caffemodel"))
    (tmp_path / "b.caffemodel").write_bytes(b"\xff")
    with pytest.raises(ModelError, match="pass the prototxt of its net"):
        load(tmp_path / "b.caffemodel")
    (tmp_path / "c.caffemodel").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(ModelError, match="it is a Git LFS pointer, not the file"):
        load(ModelFiles(tmp_path / "a.prototxt", tmp_path / "c.caffemodel"))
    with pytest.raises(InputError, match="weights= is a prototxt"):
        load(ModelFiles(tmp_path / "b.caffemodel", tmp_path / "a.prototxt"))
    (tmp_path / "d.prototxt").mkdir()
    with pytest.raises(ModelError, match="cannot be read"):
        load(tmp_path / "d.prototxt")
    examined = examine(NET.replace("Softmax", "Sofmax").encode())
    assert "Sofmax" in examined.problems[0]


def test_weights_that_do_not_fit(tmp_path):
    path, blobs = tmp_path / "w.caffemodel", random_blobs(NET)
    weight, bias = blobs["conv"][1]
    for change, reason in (
        (
            dict(conv=[weight[:3], bias]),
            r"layer 'conv' .*needs weights of shape \[4, 3, 3, 3\] as blob 0, .* \[3, 3, 3, 3\]",
        ),
        (dict(conv=[weight]), "needs 2 blobs of weights, .* has 1"),
        (dict(conv=[weight, bias, bias]), "needs 2 blobs of weights, .* has 3"),
        (dict(fc=[np.zeros((5, 7), np.float32)]), r"layer 'fc' .*needs weights of shape \[5, 36\]"),
    ):
        path.write_bytes(caffemodel(blobs | {k: (blobs[k][0], v) for k, v in change.items()}))
        refused(NET, reason, path)
    path.write_bytes(caffemodel({f"other_{k}": v for k, v in blobs.items()}))
    refused(NET, "has weights of no layer of", path)
    for data, reason in (
        (b"", "holds no weights"),
        (b"\x89HDF\r\n\x1a\n", "as HDF5"),
        (NET.encode(), "is no caffemodel, or is damaged|holds no weights"),
        (caffemodel(blobs)[:-5], "damaged or truncated"),
    ):
        path.write_bytes(data)
        refused(NET, reason, path)


def test_blobs_whose_sizes_lie(tmp_path):
    path = tmp_path / "w.caffemodel"
    for fields, reason in (
        (dict(shape=[1 << 40, 1 << 40], data=b"1234"), "1 elements; the file is damaged"),
        (dict(shape=[-4], data=b"1234"), "the file is damaged"),
        (dict(shape=[1], data=b"12345"), "ends within an element"),
        (dict(num=4, data=b""), r"has \[4, 0, 0, 0\]"),
        (dict(shape=[4, 3, 3, 3], raw_data=b"1" * 108, raw_data_type=3), "holds integers"),
    ):
        net = message_class("weights.NetParameter")()
        blob = net.layer.add(name=b"conv").blobs.add()
        blob.shape.dim.extend(fields.pop("shape", []))
        blob.data.extend([fields.pop("data")] if "data" in fields else [])
        for name, given in fields.items():
            setattr(blob, name, given)
        if not blob.shape.dim:
            blob.ClearField("shape")
        path.write_bytes(net.SerializeToString())
        refused(NET, reason, path)


def test_nothing_boundless_is_allocated():
    """All of these within 3 GiB, in a second each."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (3 << 30), hard))
    try:
        for one in (
            layer("Tile", "tile_param { axis: 2 tiles: 11000000 }") + layer("ReLU", bottoms=("y",), tops=("z",)),
            layer("Deconvolution", "convolution_param { num_output: 1 kernel_size: 2 stride: 4000 }"),
            layer("PriorBox", "prior_box_param { min_size: 3 %s }" % ("aspect_ratio: 2 " * 9999), ("x", "x")),
            layer("Embed", "embed_param { input_dim: 1 num_output: 11000000 bias_term: false }"),
            layer("Im2col", "convolution_param { kernel_size: 8 }"),
        ):
            start = time.perf_counter()
            try:
                load(text((1, 3, 8, 8), one).encode())
            except ModelError:
                pass
            assert time.perf_counter() - start < 10, one
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
