"""Reads models of Keras, layer by layer, as networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pelton.errors import InputError, ModelError
from pelton.importers.imported import Shape, check_inputs, parse_shape
from pelton.importers.input_sizes import InputSizes, UndecidedLayer, read_until_settled
from pelton.ir.dims import Undecided
from pelton.ir.op import Op
from pelton.ir.size_constraints import Range
from pelton.ir.types import BOOL, DType, TensorType
from pelton.network import Network
from pelton.plugins import plugin_for
from pelton.ir.attributes import attributes_of
from pelton.plugins.plugin import weight_shapes

from . import layers, ops  # noqa: F401  (register their readers)
from .config import DTYPES, MAX_NUMBER, OF_TRAINING, LayerConfig, UnknownPart
from .files import Saved
from .held import HeldTensor
from .model import DEEPEST, ModelConfig, Ref, is_model, model_of, replaced
from .ops import operation
from .reading import READERS, TAKES_ARGUMENTS, TRACES_MASKS, LayerReader, KerasReading
from .weights import children

MOST = 1 << 14  # calls of layers; those of nested models count at each of their calls


def network_of(saved: Saved, shapes: Mapping[str, Shape]) -> Network:
    """Reads a model as a network. Raises UnknownPart for unknown parts, InputError for other names and sizes."""
    return read_until_settled(saved.model.config.name, lambda sizes: _KerasReader(saved, sizes).network(shapes))


class _UnknownSizes(UndecidedLayer, UnknownPart):
    """Sizes that are unknown here, which Keras may not need."""


class _KerasReader:
    """The state of reading one model; implements `LayerScope`."""

    def __init__(self, saved: Saved, sizes: InputSizes):
        self.saved, self.weights = saved, saved.weights
        self.net, self.sizes = sizes.net, sizes
        self.left = MOST

    def network(self, shapes: Mapping[str, Shape]) -> Network:
        model = self.saved.model
        names = [self._input_layer(model, ref).name for ref in model.inputs]
        if len(set(names)) < len(names):
            raise model.config.refuse("has an input twice")
        check_inputs(self.saved.name, shapes, names)
        inputs = [self._input(self._input_layer(model, ref), shapes) for ref in model.inputs]
        self._place(model.config, "")
        results = self._run(model, inputs, "")
        for name, held in zip(self._output_names(model, names), results):
            self.net.output(held.tensor(), name)
        return self.net

    def _output_names(self, model: ModelConfig, inputs: list[str]) -> list[str]:
        """Returns the names of the output layers if they all differ, as Keras does."""
        names = [ref.layer for ref in model.outputs]
        several = len(set(names) - set(inputs)) < len(names)
        return [f"output_{i}" for i in range(len(names))] if several else names

    # --- inputs

    def _input_layer(self, model: ModelConfig, ref: Ref) -> LayerConfig:
        layer = model.layers[ref.layer]
        if layer.type != "InputLayer":
            raise layer.refuse("is an input of the model, and no InputLayer")
        return layer

    def _input(self, layer: LayerConfig, shapes: Mapping[str, Shape]) -> HeldTensor:
        """Declares a layer as an input of the network."""
        layer.expect(sparse=False, ragged=False, optional=False, type_spec=None, input_tensor=None)
        shape, kind = _declared(layer)
        layer.check_rest()
        if not isinstance(shape, list) or not all(d is None or type(d) is int and 0 <= d <= MAX_NUMBER for d in shape):
            raise layer.refuse(f"is an input of unknown shape, {shape!r:.60}")
        name, sizes = layer.name, list[int | Range | None](shape)
        if name in shapes:
            sizes = list(parse_shape(name, shapes[name]))
            fits = len(sizes) == len(shape) and all(s in (None, n) for s, n in zip(shape, sizes))
            if not fits:
                raise InputError(f"input {name!r} is {shape} in {self.saved.name}, got {shapes[name]!r}")
        dims = tuple(d if isinstance(d, int) else self.sizes.dynamic(name, i, d) for i, d in enumerate(sizes))
        return HeldTensor(self.net, self.net.input(name, TensorType(kind, dims)))

    # --- models

    def _place(self, layer: LayerConfig, path: str, depth: int = 0) -> None:
        """Sets the paths of variables of a layer, and of its inner layers, in a file of Keras 3."""
        if depth > DEEPEST:
            raise layer.refuse(f"has layers within layers more than {DEEPEST} deep")
        layer.path = path
        for name, child in children(layer):
            self._place(child, f"{path}/{name}" if path else name, depth + 1)

    def within(self, layer: LayerConfig) -> list[LayerConfig]:
        """Returns the layers within a layer, the same ones each time."""
        return [child for _, child in children(layer)]

    def _run(self, model: ModelConfig, given: Sequence[HeldTensor], prefix: str) -> list[HeldTensor]:
        """Computes the outputs of a model for these inputs."""
        if len(given) != len(model.inputs):
            raise model.config.refuse(f"has {len(model.inputs)} inputs, and is called with {len(given)}")
        made: dict[tuple[str, int], list[HeldTensor]] = {}
        for ref, x in zip(model.inputs, given):
            made[ref.layer, 0] = [x]

        def value(ref: Ref) -> HeldTensor:
            outputs = made[ref.layer, ref.call]
            if ref.tensor >= len(outputs):
                raise model.layers[ref.layer].refuse(f"has {len(outputs)} outputs, but output {ref.tensor} is read")
            return outputs[ref.tensor]

        for name, call in self._order(model, made):
            layer, what = model.layers[name], model.calls[name][call]
            args, kwargs = (replaced(v, value) for v in (what.args, what.kwargs))
            label = name if call == 0 else f"{name}_{call}"
            made[name, call] = outputs = self.apply(layer, args, kwargs, label, prefix)
            if outputs and prefix + label not in self.net:
                self.net.alias(outputs[0].tensor(), prefix + label)
        return [value(ref) for ref in model.outputs]

    def _conformed(self, model: ModelConfig, given: Sequence[HeldTensor]) -> list[HeldTensor]:
        """Converts a nested model's inputs to its types; Keras also adds and drops axes of 1."""
        inputs = []
        for ref, x in zip(model.inputs, given):
            layer = self._input_layer(model, ref)
            shape, dtype = _declared(layer)
            if dtype is DType.F32 and x.dtype.is_integer:
                x = x.mapped(lambda t: self.net.cast(t, to="f32"))
            if dtype is not x.dtype or isinstance(shape, list) and len(shape) != x.rank:
                raise layer.refuse(f"is an input {dtype.value}{shape}, but receives {x.form.type}")
            inputs.append(x)
        return [*inputs, *given[len(inputs) :]]

    def _order(self, model: ModelConfig, made: Mapping[tuple[str, int], Any]) -> list[tuple[str, int]]:
        """Returns the calls that the outputs need, each behind those that it reads."""
        order: dict[tuple[str, int], None] = {}
        open: set[tuple[str, int]] = set()
        stack = [(ref.layer, ref.call) for ref in reversed(model.outputs)]
        while stack:
            key = stack[-1]
            if key in order or key in made:
                stack.pop()
            elif key in open:
                open.discard(key)
                order[stack.pop()] = None
            else:
                layer = model.layers[key[0]]
                if key[1] >= len(model.calls.get(key[0], ())):
                    raise layer.refuse("is an input that the model does not list")
                open.add(key)
                needed = [(ref.layer, ref.call) for ref in model.calls[key[0]][key[1]].refs()]
                if any(n in open for n in needed):
                    raise layer.refuse("reads its own output: its calls form a circle")
                stack.extend(needed)
        return list(order)

    # --- layers

    def apply(
        self,
        layer: LayerConfig,
        args: Sequence[Any],
        kwargs: dict[str, Any] | None = None,
        label: str = "",
        prefix: str = "",
    ) -> list[HeldTensor]:
        """Applies a layer. label: unique to this call; prefix: of the model's tensors."""
        self.left -= 1
        if self.left < 0:
            raise layer.refuse(f"is one of more than {MOST} calls")
        try:
            return self._applied(layer, list(args), dict(kwargs or {}), label or layer.name, prefix)
        except Undecided as e:
            raise _UnknownSizes(f"layer {layer.name!r} ({layer.type}): {e}", layer.name, e) from None
        except (InputError, ModelError) as e:
            if isinstance(e, UnknownPart):
                raise
            if isinstance(e.__cause__, Undecided):
                raise _UnknownSizes(f"layer {layer.name!r} ({layer.type}): {e}", layer.name, e.__cause__) from None
            if isinstance(e, ModelError):
                raise
            raise layer.refuse(f"cannot be read: {e}") from None
        except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, MemoryError) as e:
            raise layer.refuse(f"cannot be read: {type(e).__name__}: {e}") from e

    def _applied(
        self, layer: LayerConfig, args: list[Any], kwargs: dict[str, Any], label: str, prefix: str
    ) -> list[HeldTensor]:
        reading = KerasReading(self.net, layer, self, self.weights, args, kwargs)
        if kwargs.pop("training", None) and layer.version == 2:  # Keras 3 overrides it
            raise layer.refuse("is called as in training")
        tensors = _tensors([args, kwargs])
        masked = any(x.masked for x in tensors)
        with self.net.scope(label):
            if is_model(layer):
                if set(kwargs) - {"mask"} or kwargs.get("mask") is not None:
                    raise layer.refuse(f"is called with {', '.join(map(repr, kwargs))}")
                inner = model_of(layer)
                outputs = self._run(inner, self._conformed(inner, reading.inputs), f"{prefix}{label}/")
            elif layer.is_operation:
                outputs = _listed(operation(reading))
            else:
                if any(x.dtype.is_float and x.dtype is not DType.F32 for x in tensors):
                    raise layer.refuse("receives floats of another type than float32")
                if masked and layer.type in TRACES_MASKS:
                    raise layer.refuse("reads a sequence with a mask (of Masking, or mask_zero of Embedding)")
                reader = self._reader(layer)
                if layer.type not in TAKES_ARGUMENTS:
                    reading.expect_arguments(places=1)
                outputs = _listed(reader(reading))
                layer.check_rest()
        for x in outputs:
            x.masked = x.masked or masked
        return outputs

    def _reader(self, layer: LayerConfig) -> LayerReader:
        name = layer.registered or layer.type
        for known in (name, name.rpartition(">")[2], layer.type):
            op = plugin_for("keras", known)
            if op is not None:
                return partial(_apply_plugin, op)
        if not layer.is_own or layer.type not in READERS:
            kind = "a Lambda" if layer.type == "Lambda" else f"a {layer.type}"
            why = "" if layer.is_own else ", an own class"
            raise UnknownPart(f"layer {layer.name!r} is {kind}{why}")
        layer.check_policy()
        return READERS[layer.type]


def _declared(layer: LayerConfig) -> tuple[Any, DType]:
    """Returns the shape and the type of an input."""
    shape = layer.option("batch_shape" if layer.options.get("batch_shape") is not None else "batch_input_shape", None)
    dtype = layer.option("dtype", "float32")
    dtype = dtype.get("config", {}).get("name") if isinstance(dtype, dict) else dtype
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise layer.refuse(f"is an input of type {dtype!r:.60}")
    return shape, BOOL if dtype == "bool" else DType(DTYPES[dtype])


def _tensors(given: Any) -> list[HeldTensor]:
    if isinstance(given, HeldTensor):
        return [given]
    if isinstance(given, dict):
        given = list(given.values())
    return [x for part in given for x in _tensors(part)] if isinstance(given, (list, tuple)) else []


def _listed(found: Any) -> list[HeldTensor]:
    return list(found) if isinstance(found, (list, tuple)) else [found]


def _apply_plugin(op: Op, r: KerasReading) -> list[HeldTensor]:
    """Applies a plugin layer: its attributes are its options, its operands the tensors, then its variables."""
    layer = r.layer
    layer.ignore("dtype")
    r.expect_arguments(places=1)
    options = {k: layer.option(k) for k in layer.options if k not in OF_TRAINING and k != "dtype"}
    attrs = attributes_of(op, options, f"layer {layer.name!r}")
    values = [x.tensor() for x in r.inputs]
    shapes = weight_shapes(op, [t.type for t in values], attrs)
    count = r.weights.count(layer) if shapes is None else len(shapes)
    weights = [r.numbered(i, None if shapes is None else shapes[i]) for i in range(count)]
    return [r.of(t) for t in r.net.apply(op, (*values, *weights), attrs, op.name)]
