"""Translates a net of layers and blobs to a network of tensors."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import partial

from pelton.errors import InputError, ModelError, near
from pelton.importers.imported import Shape, parse_shape
from pelton.ir.dims import Undecided, is_known
from pelton.ir.op import Op
from pelton.network import Network
from pelton.network.tensor import NetworkTensor
from pelton.plugins import plugin_for, types_of
from pelton.ir.attributes import attributes_of
from pelton.plugins.plugin import weight_shapes

from . import layers as library, ssd  # noqa: F401  (registers the readers)
from .blobs import Blobs
from .fillers import default
from .layer import LARGEST, READERS, WITHOUT_LABELS, NotAtInference, Blob, LayerReading, Reader, WrongShape
from .prototxt import Prototxt
from .schema import Message, message_class, parameters
from .upgrade import layers
from .weights import Caffemodel

MAX_SHOWN = 4  # names in a message
TEST = 1  # of the enumeration Phase


def translate(text: Prototxt, trained: Caffemodel | None, shapes: Mapping[str, Shape]) -> Network:
    """Translates a net in the phase TEST; raises ModelError if it cannot be read, InputError for other shapes."""
    return Translation(text, trained, shapes).network()


class Translation:
    """The translation of one net."""

    def __init__(self, text: Prototxt, trained: Caffemodel | None, shapes: Mapping[str, Shape]):
        self.text, self.shapes = text, {name: parse_shape(name, s) for name, s in shapes.items()}
        self.net = Network(text.net.name or "main")
        self.blobs = Blobs(trained)
        self.present: list[tuple[Message, int]] = []  # the layers present at inference, with their lines
        self.found: dict[str, Blob] = {}  # the current blob of each name, which in-place layers replace
        self.given: dict[str, Blob] = {}  # the first top of each layer
        self.makers: dict[str, int] = {}  # the line of the layer that made each blob
        self.unread: dict[str, None] = {}  # names of unread blobs
        self.dropped: list[str] = []  # layers absent at inference
        if text.unknown:
            self.net.warnings.append(text.unknown)

    def network(self) -> Network:
        self.present = [(layer, line) for layer, line in layers(self.text) if self._is_included(layer, line)]
        if not self.present:
            raise ModelError(
                f"{self.text.file}: has no layers; expected a prototxt that describes a net, such as the one that a"
                " solver names in its field net"
            )
        self._inputs()
        for layer, line in self.present:
            self._layer(layer, line)
        outputs = [name for name in self.unread if not isinstance(self.found[name], NotAtInference)]
        if not outputs:
            raise ModelError(f"{self.text.file}: no layer has an output at inference; {self._dropped()}")
        for name in outputs:
            self.net.output(self.found[name], name)
        for name, blob in (*self.given.items(), *self.found.items()):
            if isinstance(blob, NetworkTensor) and name not in self.net:
                self.net.alias(blob, name)
        names = [layer.name for layer, _ in self.present]
        if self.blobs.trained and not any(map(self.blobs.holds, names)) and self.blobs.filled:
            raise ModelError(
                f"{self.blobs.trained.file}: has weights of no layer of {self.text.file}; it is of another net"
            )
        self.net.warnings.extend(filter(None, (self.blobs.missing(), self._dropped())))
        return self.net

    def _dropped(self) -> str:
        some = ", ".join(map(repr, self.dropped[:MAX_SHOWN])) + (", …" if len(self.dropped) > MAX_SHOWN else "")
        return f"layers of losses and measures are left out: {some}" if self.dropped else ""

    # --- layers at inference

    def _is_included(self, layer: Message, line: int) -> bool:
        """True if a layer's rules include it at inference."""
        if layer.include and layer.exclude:
            raise ModelError(
                f"{self.text.file}:{line}: layer {layer.name!r} has rules to include and to exclude it; use one of them"
            )
        if layer.include:
            return any(map(self._is_met, layer.include))
        return not any(map(self._is_met, layer.exclude))

    def _is_met(self, rule: Message) -> bool:
        state = self.text.net.state
        return (
            (not rule.HasField("phase") or rule.phase == TEST)
            and (not rule.HasField("min_level") or state.level >= rule.min_level)
            and (not rule.HasField("max_level") or state.level <= rule.max_level)
            and set(rule.stage) <= set(state.stage)
            and not set(rule.not_stage) & set(state.stage)
        )

    # --- layers

    def _inputs(self) -> None:
        """Reads the inputs of old files, which are fields of the net, as a layer Input."""
        net = self.text.net
        if not net.input:
            return
        layer = message_class("LayerParameter")(name="input", type="Input", top=net.input)
        layer.input_param.shape.extend(net.input_shape)
        if not net.input_shape and net.input_dim:
            if len(net.input_dim) != 4 * len(net.input):
                raise ModelError(
                    f"{self.text.file}: needs four numbers input_dim for each of {len(net.input)} inputs, got"
                    f" {len(net.input_dim)}"
                )
            for i in range(0, len(net.input_dim), 4):
                layer.input_param.shape.add(dim=net.input_dim[i : i + 4])
        self._layer(layer, 1)

    def _layer(self, layer: Message, line: int) -> None:
        reading = LayerReading(
            self.net, self.text.file, line, layer, self._bottoms(layer, line), self.blobs, self.shapes
        )
        op = plugin_for("caffe", layer.python_param.layer if layer.type == "Python" else layer.type)
        if op is None and layer.type not in READERS:
            known = near(layer.type, (*READERS, *types_of("caffe")))
            raise reading.refuse(f"is of a type that is not read{known}; read it with a plugin (pelton.Plugin)")
        absent = next((b for b in reading.bottoms if isinstance(b, NotAtInference)), None)
        if absent is not None and layer.type not in WITHOUT_LABELS:
            made: tuple[Blob, ...] = (absent,) * max(1, len(layer.top))
        else:
            made = self._read(reading, READERS[layer.type] if op is None else partial(_apply, op))
        if made and all(isinstance(b, NotAtInference) for b in made):
            self.dropped.append(layer.name)
        else:
            for name in layer.bottom:
                self.unread.pop(name, None)
        self._tops(reading, made)
        if made:
            self.given.setdefault(layer.name, made[0])

    def _read(self, reading: LayerReading, reader: Reader) -> tuple[Blob, ...]:
        try:
            outputs = reader(reading)
        except WrongShape:
            raise
        except (InputError, Undecided) as e:
            raise reading.refuse(f"cannot be read: {e}") from None
        made = tuple(outputs) if isinstance(outputs, (tuple, list)) else (outputs,)
        held = self.blobs.count(reading.name)
        if 0 < reading.read < held:
            raise reading.refuse(
                f"needs {reading.read} blobs of weights, {self.blobs.trained.file} has {held} of it"  # type: ignore
            )
        return made

    def _bottoms(self, layer: Message, line: int) -> tuple[Blob, ...]:
        for name in layer.bottom:
            if name not in self.found:
                later = next((o.name for o, _ in self.present if o is not layer and name in o.top), None)
                reason = f"; its producer, layer {later!r}, comes later" if later else self._maker_left_out(name)
                raise ModelError(
                    f"{self.text.file}:{line}: layer {layer.name!r} ({layer.type}) reads {name!r}, which no"
                    f" earlier layer writes{reason}"
                )
        return tuple(self.found[name] for name in layer.bottom)

    def _maker_left_out(self, name: str) -> str:
        """Explains why no layer makes a blob at inference."""
        for layer, line in layers(self.text):
            if name in layer.top and not self._is_included(layer, line):
                return (
                    f"; its producer, layer {layer.name!r} in line {line}, is not in the phase TEST: use the"
                    f" deploy.prototxt, or declare {name!r} as an input"
                )
        return near(name, self.found)

    def _tops(self, reading: LayerReading, made: tuple[Blob, ...]) -> None:
        if len(made) < len(reading.tops):
            raise reading.refuse(f"has {len(made)} tops, got {len(reading.tops)} names: {list(reading.tops)}")
        for name, blob in zip(reading.tops, made):
            if name in self.found and name not in reading.layer.bottom:
                raise reading.refuse(f"writes {name!r}, which the layer in line {self.makers[name]} also writes")
            if not isinstance(blob, NotAtInference):
                elements = math.prod(d for d in blob.shape if is_known(d))
                if elements > LARGEST:
                    raise reading.refuse(f"has the output {blob!r}; blobs have at most {LARGEST} elements")
            self.found[name] = blob
            self.makers[name] = reading.line
            self.unread[name] = None


def _apply(op: Op, reading: LayerReading) -> tuple[NetworkTensor, ...]:
    """Applies a plugin layer. Its attributes are the layer's own parameters, and those of `python_param.param_str` in
    JSON; its operands are the bottoms, then the weight blobs."""
    own, fillers = parameters(reading.layer)
    text = reading.layer.python_param.param_str
    try:
        params = json.loads(text) if text else {}
    except ValueError as e:
        raise reading.refuse(f"has a param_str that is no JSON: {e}") from None
    if not isinstance(params, dict):
        raise reading.refuse(f"has a param_str that must be a JSON object, got {text!r:.99}")
    attrs, blobs = attributes_of(op, {**own, **params}, reading.name), reading.blobs
    shapes = weight_shapes(op, [t.type for t in reading.inputs], attrs)
    if shapes is None:
        shapes = [blobs.shape(reading.name, i) for i in range(blobs.count(reading.name))]
    fillers += [default("constant", 1) if len(shape) < 2 else None for shape in shapes[len(fillers) :]]
    weights = [reading.blob(shape, filler) for shape, filler in zip(shapes, fillers)]
    return reading.net.apply(op, (*reading.inputs, *weights), attrs, reading.name)
