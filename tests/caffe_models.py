"""Caffemodels with random weights, for nets that come without."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pelton.importers.caffe import parse
from pelton.importers.caffe.blobs import Blobs
from pelton.importers.caffe.schema import message_class
from pelton.importers.caffe.translate import Translation


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
