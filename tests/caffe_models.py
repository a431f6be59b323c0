"""Caffe nets in few words, and caffemodels with random weights for nets without weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from pelton import importers
from pelton.importers.caffe.prototxt import parse
from pelton.importers.caffe.blobs import Blobs
from pelton.importers.caffe.schema import message_class
from pelton.importers.caffe.translate import Translation
from pelton.importers.registry import ModelFiles
from pelton.ir.evaluate import evaluate


def random_blobs(text: str | bytes, seed: int = 0, shapes=None) -> dict[str, tuple[str, list[np.ndarray]]]:
    """The type and random blobs of each layer with weights: as they are filled, with noise on top, so that no bias is
    zero, and variances of statistics around 1."""
    rng, found = np.random.default_rng(seed), {}

    class Recording(Blobs):
        def blob(self, layer, i, shape, filler):
            array = super().blob(layer, i, shape, filler)
            noise = rng.standard_normal(array.shape).astype(np.float32)
            array = np.asarray(array + noise * (0.1 * array.std() if array.std() > 0 else 0.1), np.float32)
            if layer.type == "BatchNorm":  # sums over as many batches as the factor says
                array = [array, np.abs(array), np.full(1, 3, np.float32)][i] * (1 if i == 2 else 3)
            found.setdefault(layer.name, (layer.type, []))[1].append(array)
            return array

    translation = Translation(parse(text.encode() if isinstance(text, str) else text, "net"), None, shapes or {})
    translation.blobs = Recording(None)
    translation.network()
    return found


def caffemodel(blobs: dict[str, tuple[str, list[np.ndarray]]], write: Callable | None = None) -> bytes:
    """The bytes of a file of weights; write(blob, array) fills a BlobProto otherwise than today's Caffe does."""
    net = message_class("NetParameter")(name="net")
    for name, (kind, arrays) in blobs.items():
        layer = net.layer.add(name=name, type=kind)
        for array in arrays:
            (write or modern)(layer.blobs.add(), array)
    return net.SerializeToString()


def modern(blob, array: np.ndarray) -> None:
    blob.shape.dim.extend(array.shape)
    blob.data.extend(array.ravel().tolist())


def legacy(blob, array: np.ndarray) -> None:
    """Of four axes, the first ones of size 1."""
    sizes = (1,) * (4 - array.ndim) + array.shape
    blob.num, blob.channels, blob.height, blob.width = sizes
    blob.data.extend(array.ravel().tolist())


def text(shape: tuple[int, ...], *layers: str) -> str:
    """A net of an input "x", or of inputs by name, and layers."""
    inputs = shape if isinstance(shape, dict) else {"x": shape}
    dims = {name: " ".join(f"dim: {d}" for d in sizes) for name, sizes in inputs.items()}
    return "\n".join((*(f'input: "{n}" input_shape {{ {d} }}' for n, d in dims.items()), *layers))


def layer(kind: str, params: str = "", bottoms: tuple[str, ...] = ("x",), tops: tuple[str, ...] = ("y",)) -> str:
    """A layer by the name of its first top."""
    blobs = " ".join([*(f'bottom: "{b}"' for b in bottoms), *(f'top: "{t}"' for t in tops)])
    return f'layer {{ name: "{tops[0] if tops else kind}" type: "{kind}" {blobs} {params} }}'


def run(net: str | bytes, feeds: dict[str, np.ndarray] | None = None, path: Path | None = None, seed: int = 1):
    """Inputs, blobs and outputs of a net by reference, with random weights in a file if it has any."""
    net = net.encode() if isinstance(net, str) else net
    blobs = random_blobs(net)
    if blobs:
        path.write_bytes(caffemodel(blobs))
    graph = importers.load(ModelFiles(net, path) if blobs else net).graph
    rng = np.random.default_rng(seed)
    given = {v.name: rng.standard_normal(v.type.shape).astype(np.float32) for v in graph.inputs} | (feeds or {})
    return given, {name: arrays for name, (_, arrays) in blobs.items()}, evaluate(graph, given)
