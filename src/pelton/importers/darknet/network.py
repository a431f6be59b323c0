"""Networks of Darknet, layer by layer."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Any

from pelton.errors import InputError, ModelAbsent, ModelError, near
from pelton.importers.imported import Range, Shape, parse_shape
from pelton.importers.registry import ModelFiles
from pelton.ir.op import Op
from pelton.network import Network, NetworkTensor
from pelton.plugins import plugin_for
from pelton.ir.attributes import attributes_of_text
from pelton.plugins.plugin import weight_shapes

from . import detection, joins, layers, recurrent  # noqa: F401  (register their readers)
from .cfg import MAX_BYTES, MAX_NUMBER, Section, parse
from .reading import READERS, LayerReader, SectionReading, check_size
from .weights import RandomWeights, Weights, WeightsFile

INPUT = "data"
UNNAMED = "the configuration"  # name in messages of a configuration from bytes
RECURRENT = ("rnn", "crnn", "gru", "lstm")
HEADS = ("region", "yolo", "detection")


def read(source: Any, shapes: Mapping[str, Shape] | None = None) -> Network:
    """Reads a configuration (a path, or its bytes) as a network; weights are those of a `.weights` file.

    Its input is `data`, f32[batch, channels, height, width], or f32[batch, inputs] without pictures; in networks with
    recurrent layers f32[steps, batch, …]. Its outputs are those of region, yolo and detection layers, else of the last
    layer, by layer name: `yolo_16` is a yolo layer with 16 layers before it. Tensors of these names are layers'
    outputs, activation included.
    """
    model, weights = files_of(source)
    path, data = _contents(model)
    net = network_of(path, data, RandomWeights() if weights is None else WeightsFile(weights), shapes)
    if weights is None:
        net.warnings.append(f"{path} has no weights file: weights are random")
    return net


def files_of(source: Any) -> tuple[Any, Any]:
    """Returns the configuration, and the file of its weights, None without one."""
    model, weights = (source.model, source.weights) if isinstance(source, ModelFiles) else (source, None)
    return model, weights or _beside(model)


def network_of(path: str, data: bytes, weights: Weights, shapes: Mapping[str, Shape] | None = None) -> Network:
    """Does `read` for the text of a configuration, called `path` in messages, and any source of weights."""
    options, sections, warnings = parse(data, path)
    net = Network("darknet" if path == UNNAMED else os.path.splitext(os.path.basename(path))[0])
    net.warnings += warnings
    reading = _begin(net, options, sections, weights, shapes)
    for s in sections:
        reading.section = s
        with net.scope(s.label):
            try:
                reading.x = _reader(s)(reading)
            except InputError as e:
                raise s.refuse(str(e)) from None
        check_size(s, reading.x)
        reading.made.append(reading.x)
        net.alias(reading.x, s.label)
    weights.finish()
    outputs = [s for s in sections if s.name in HEADS] or sections[-1:]
    for s in outputs:
        net.output(_by_steps(reading, reading.made[s.index]), s.label)
    net.box_outputs = [s.label for s in outputs if s.name in HEADS and not reading.batch]
    return net


def _reader(s: Section) -> LayerReader:
    op = plugin_for("darknet", s.name)
    if op is not None:
        return partial(_apply, op)
    if s.name not in READERS:
        raise s.refuse(f"layers [{s.name}] are unknown{near(s.name, READERS)}; there are {', '.join(sorted(READERS))}")
    return READERS[s.name]


def _apply(op: Op, r: SectionReading) -> NetworkTensor:
    """Applies a plugin layer, whose attributes are the options of the section."""
    options = {name: text for name, (text, _) in r.section.options.items()}
    attrs = attributes_of_text(op, options, r.section.label)
    shapes = weight_shapes(op, (r.x.type,), attrs) or ()
    weights = [r.weights.take(r.section, "weights", *shape) for shape in shapes]
    output, *_ = r.net.apply(op, (r.x, *weights), attrs, op.name)
    return output


def _contents(model: Any) -> tuple[str, bytes]:
    """Returns a configuration's name in messages, and its text."""
    if isinstance(model, bytes):
        return UNNAMED, model
    path = os.fspath(model)
    try:
        with open(path, "rb") as file:
            return path, file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise ModelAbsent(f"there is no file {path}", path) from None
    except OSError as e:
        raise ModelError(f"{path} cannot be read: {e.strerror or e}") from None


def _beside(model: Any) -> str | None:
    """Returns the weights file with a configuration's stem beside it."""
    if isinstance(model, (bytes, bytearray, memoryview)):
        return None
    path = os.path.splitext(os.fspath(model))[0] + ".weights"
    return path if os.path.isfile(path) else None


def _begin(
    net: Network, options: Section, sections: list[Section], weights: Weights, shapes: Mapping[str, Shape] | None
) -> SectionReading:
    """Starts a reading with the input of the network as the first x."""
    height, width, channels = (options.integer(name, 0) for name in ("height", "width", "channels"))
    inputs = options.integer("inputs", 0)
    if not (height and width and channels or inputs):
        raise options.refuse("it must have height, width and channels, or inputs, above 0")
    sizes: tuple[int, ...] = (channels, height, width) if height and width and channels else (inputs,)
    stepwise = any(s.name in RECURRENT for s in sections)
    if shapes and INPUT in shapes:
        sizes = _asked(shapes[INPUT], sizes, 1 + stepwise)
    picture = (sizes[-2], sizes[-1]) if len(sizes) == 3 else (1, 1)
    if not stepwise:
        return SectionReading(net, options, weights, picture, net.input(INPUT, ("batch", *sizes)))
    x = net.input(INPUT, (f"steps=1..{options.integer('time_steps', 1, 1)}..", "batch=1..1..", *sizes))
    steps, batch, *_ = x.shape
    return SectionReading(net, options, weights, picture, net.reshape(x, (steps * batch, *sizes)), batch=(steps, batch))


def _asked(given: Shape, sizes: tuple[int, ...], before: int) -> tuple[int, ...]:
    """Returns sizes with the caller's height and width instead of the configuration's."""
    asked = parse_shape(INPUT, given)
    if len(sizes) != 3 or len(asked) != before + 3:
        return sizes  # the later comparison of shapes reports this to the caller
    height, width = asked[-2:]
    if isinstance(height, Range) or isinstance(width, Range) or not 1 <= min(height, width) <= MAX_NUMBER:
        raise InputError(
            f"height and width of {INPUT!r} must be fixed, for the grids of boxes, got {height} and {width}; build"
            " an engine for each size"
        )
    return sizes[0], height, width


def _by_steps(r: SectionReading, x: NetworkTensor) -> NetworkTensor:
    """Returns a layer's output, in networks with recurrent layers as [steps, batch, …]."""
    return r.net.reshape(x, (*r.batch, *x.shape[1:])) if r.batch else x
