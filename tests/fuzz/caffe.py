"""Damaged Caffe nets: words and numbers of a prototxt changed, exchanged or dropped, and bytes of its weights."""

from __future__ import annotations

import functools
import random
import re
import tempfile
from pathlib import Path

from caffe_models import caffemodel, layer, legacy, random_blobs, text

from pelton.importers.caffe import read
from pelton.importers.network import imported
from pelton.importers.registry import ModelFiles

from . import cases

ODD = ("0", "-1", "1", "3", "255", "65536", "2147483647", "4294967295", "9223372036854775807", "1e38", "nan", '"x"')
PLANNED = 4  # of so many damaged nets that can be read, one is planned
WORDS = re.compile(rb"[\w.]+|\"[^\"]*\"|[{}:]")


@functools.cache
def originals() -> tuple[tuple[bytes, bytes], ...]:
    """Small nets and their weights: of layers of all families, an old one, SSD, a recurrent one."""
    window = "convolution_param { num_output: 4 kernel_size: 3 pad: 1 group: 1 }"
    nets = (
        text(
            (1, 2, 8, 8),
            layer("Convolution", window, tops=("c",)),
            layer("BatchNorm", "", ("c",), ("b",)),
            layer("Scale", "scale_param { bias_term: true }", ("b",), ("s",)),
            layer("Pooling", "pooling_param { pool: AVE kernel_size: 3 stride: 2 pad: 1 }", ("s",), ("p",)),
            layer("LRN", "lrn_param { local_size: 3 }", ("p",), ("l",)),
            layer("Slice", "slice_param { axis: 1 slice_point: 1 }", ("l",), ("m", "n")),
            layer("Tile", "tile_param { axis: 1 tiles: 3 }", ("m",), ("t",)),
            layer("Eltwise", "eltwise_param { operation: SUM coeff: 1 coeff: 2 }", ("t", "n"), ("e",)),
            layer("Deconvolution", "convolution_param { num_output: 2 kernel_size: 2 stride: 2 }", ("e",), ("d",)),
            layer("Reshape", "reshape_param { shape { dim: 0 dim: -1 } }", ("d",), ("r",)),
            layer("InnerProduct", "inner_product_param { num_output: 3 }", ("r",), ("f",)),
            layer("ArgMax", "argmax_param { top_k: 2 }", ("f",), ("a",)),
        ),
        text(
            {"data": (1, 3, 9, 9)},
            layer("Convolution", window, ("data",), ("loc",)),
            layer("Flatten", "", ("loc",), ("f",)),
            layer("PriorBox", "prior_box_param { min_size: 3 }", ("loc", "data"), ("prior",)),
            layer("Permute", "permute_param { order: 0 order: 2 order: 3 order: 1 }", ("loc",), ("p",)),
            layer("Reshape", "reshape_param { shape { dim: 1 dim: 81 dim: 4 } }", ("p",), ("conf",)),
            layer(
                "DetectionOutput",
                "detection_output_param { num_classes: 4 keep_top_k: 9 nms_param { top_k: 20 } code_type: CORNER }",
                ("f", "conf", "prior"),
            ),
        ),
        text({"x": (3, 1, 2), "go": (3, 1)}, layer("LSTM", "recurrent_param { num_output: 2 }", ("x", "go"))),
        """input: "data" input_dim: 1 input_dim: 2 input_dim: 6 input_dim: 6
        layers { name: "c" type: CONVOLUTION bottom: "data" top: "c"
          convolution_param { num_output: 3 kernel_size: 3 } }
        layers { layer { name: "p" type: "pool" pool: MAX kernelsize: 2 stride: 2 } bottom: "c" top: "p" }
        layers { name: "s" type: SOFTMAX_LOSS bottom: "p" bottom: "label" top: "s" include { phase: TRAIN } }""",
    )
    forms = (None, legacy, None, None)
    return tuple((net.encode(), caffemodel(random_blobs(net), form)) for net, form in zip(nets, forms))


def damaged_text(data: bytes, rng: random.Random) -> bytes:
    for _ in range(rng.choice((1, 1, 2, 4))):
        words = list(WORDS.finditer(data))
        if not words:
            return data
        one, other = rng.choice(words), rng.choice(words)
        new = rng.choice((rng.choice(ODD).encode(), rng.choice(ODD).encode(), other[0], b"", one[0] + b" " + other[0]))
        if rng.random() < 0.6:  # numbers above all
            numbers = [w for w in words if w[0].isdigit()]
            one = rng.choice(numbers or words)
        data = data[: one.start()] + new + data[one.end() :]
    return data[: rng.randrange(len(data) + 1)] if rng.random() < 0.05 else data


def damaged_bytes(data: bytes, rng: random.Random) -> bytes:
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        at, size = rng.randrange(len(found)), rng.choice((1, 2, 4, 8))
        how = rng.randrange(4)
        if how == 0:
            found[at] = rng.randrange(256)
        elif how == 1:
            found[at : at + size] = bytes([255] * size)
        elif how == 2:
            other = rng.randrange(len(found))
            found[at : at + size] = found[other : other + size]
        elif rng.random() < 0.2 and at:
            del found[at:]
    return bytes(found)


def case(seed: int) -> str:
    """The case of damaged nets of Caffe: "read", "planned", or refused."""
    rng = random.Random(seed)
    net, weights = rng.choice(originals())
    how = rng.randrange(3)  # the text alone, the text, or the weights
    net = net if how == 2 else damaged_text(net, rng)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.caffemodel"
        path.write_bytes(damaged_bytes(weights, rng) if how == 2 else weights)
        found = imported(read(ModelFiles(net, path) if how else net, None))
    if seed % PLANNED:
        return "read"
    cases.planned(found)
    return "planned"
