"""Inputs, data layers as inputs, and loss layers in their inference form."""

from __future__ import annotations

from collections.abc import Sequence

from pelton.importers.caffe.layer import NotAtInference, LayerReading, Tops, reads
from pelton.network.tensor import NetworkTensor


@reads("Input")
def inputs(n: LayerReading) -> Sequence[NetworkTensor]:
    return _declared(n, [tuple(shape.dim) for shape in n.param("input_param").shape])


@reads("DummyData")
def dummy_data(n: LayerReading) -> Sequence[NetworkTensor]:
    p = n.param("dummy_data_param")
    return _declared(n, [tuple(s.dim) for s in p.shape] or list(zip(p.num, p.channels, p.height, p.width)))


def _declared(n: LayerReading, shapes: list[tuple[int, ...]]) -> Sequence[NetworkTensor]:
    if len(shapes) not in (0, 1, len(n.tops)):
        raise n.refuse(f"needs one shape, or one for each of {len(n.tops)} inputs, got {len(shapes)}")
    each: list[tuple[int, ...] | None] = [*shapes] or [None]
    return [n.declare(top, each[i % len(each)]) for i, top in enumerate(n.tops)]


@reads("MemoryData")
def memory_data(n: LayerReading) -> Tops:
    p = n.param("memory_data_param")
    return _first(n, (p.batch_size, p.channels, p.height, p.width))


@reads("Data", "ImageData", "WindowData", "HDF5Data", "AnnotatedData", "DenseImageData", "ImageSegData", "VideoData")
def data(n: LayerReading) -> Tops:
    """Declares the images of a data set, of size crop_size if given. Their preprocessing is not in the network."""
    param = {"ImageData": "image_data_param", "WindowData": "window_data_param"}.get(n.type, "data_param")
    p, t = n.param(param), n.param("transform_param")
    size = t.crop_size or p.crop_size
    channels = 1 if t.force_gray or len(t.mean_value) == 1 else 3
    if t.ByteSize():
        n.net.warnings.append(
            f"{n.file}:{n.line}: transform_param of layer {n.name!r} (scale, mean) is not part of the engine:"
            " preprocess images accordingly"
        )
    return _first(n, (max(1, p.batch_size), channels, size, size) if size and n.type != "HDF5Data" else None)


def _first(n: LayerReading, shape: Sequence[int] | None) -> Tops:
    """Declares the first top as an input; the others are labels."""
    labels = NotAtInference(f"a label of layer {n.name!r}, which does not exist at inference")
    return [n.declare(n.tops[0], shape), *[labels] * (len(n.tops) - 1)] if n.tops else ()


@reads("SoftmaxWithLoss", without_labels=True)
def softmax_with_loss(n: LayerReading) -> Sequence[NetworkTensor]:
    x = n.input()
    y = n.net.softmax(x, n.axis(n.param("softmax_param").axis, x.rank), name=n.name)
    return [y] * len(n.tops)


@reads("SigmoidCrossEntropyLoss", without_labels=True)
def sigmoid_with_loss(n: LayerReading) -> Sequence[NetworkTensor]:
    return [n.net.sigmoid(n.input(), name=n.name)] * len(n.tops)


@reads(
    "Accuracy",
    "ContrastiveLoss",
    "DetectionEvaluate",
    "EuclideanLoss",
    "HDF5Output",
    "HingeLoss",
    "InfogainLoss",
    "MultiBoxLoss",
    "MultinomialLogisticLoss",
    without_labels=True,
)
def left_out(n: LayerReading) -> Tops:
    return [NotAtInference(f"which layer {n.name!r} ({n.type}) outputs in training only")] * max(1, len(n.tops))
