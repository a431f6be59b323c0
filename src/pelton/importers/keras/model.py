"""The graph of a Keras model: layers, their calls and arguments; the formats of Keras 2 and of Keras 3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .config import LayerConfig, UnknownPart, array_of, flattened

MODELS = ("Functional", "Sequential", "Model")
DEEPEST = 32  # models within models, wrappers included
MOST = 1 << 15  # layers of a model
CONSTANT = "_CONSTANT_VALUE"  # a layer's placeholder name in files of Keras 2
INPUT = "input_layer"  # Keras' name of unnamed inputs


@dataclass(frozen=True)
class Ref:
    """A tensor of a layer's call: its number among the results."""

    layer: str
    call: int
    tensor: int


@dataclass
class Call:
    """Arguments of a layer's call, with `Ref`s for tensors."""

    args: list[Any]
    kwargs: dict[str, Any]

    def refs(self) -> list[Ref]:
        return [leaf for leaf in flattened([self.args, self.kwargs]) if isinstance(leaf, Ref)]


@dataclass
class ModelConfig:
    """A model: layers by name, in the order of the file; their calls; its input and output tensors."""

    config: LayerConfig
    layers: dict[str, LayerConfig]
    calls: dict[str, list[Call]] = field(default_factory=dict)
    inputs: list[Ref] = field(default_factory=list)
    outputs: list[Ref] = field(default_factory=list)
    optional: dict[str, Any] = field(default_factory=dict)

    @property
    def children(self) -> list[LayerConfig]:
        """The layers that Keras lists: without the input of a Sequential, and without operations."""
        layers = [layer for layer in self.layers.values() if not layer.is_operation]
        return layers[1:] if self.config.type == "Sequential" and layers and layers[0].type == "InputLayer" else layers


def is_model(layer: LayerConfig) -> bool:
    return layer.type in MODELS and layer.is_own and isinstance(layer.options.get("layers"), list)


def model_of(config: LayerConfig) -> ModelConfig:
    """Returns the model that an object describes, cached; raises UnknownPart if it is none, or has an unknown form."""
    if "model" not in config.parts:
        config.parts["model"] = _model_of(config)
    model: ModelConfig = config.parts["model"]
    return model


def _model_of(config: LayerConfig) -> ModelConfig:
    if not is_model(config):
        kind = "is a model of an own class" if not config.is_own or config.type not in MODELS else "has no layers"
        raise config.refuse(kind)
    configs = config.option("layers")
    if not 0 < len(configs) <= MOST:
        raise config.refuse(f"must have from 1 to {MOST} layers, got {len(configs)}")
    where = f"model {config.name!r}"
    layers = [LayerConfig.of(layer, config.version, where) for layer in configs]
    if len({layer.name for layer in layers}) < len(layers):
        raise config.refuse("has two layers of one name")
    policy = config.options.get("dtype")
    if policy is not None:
        config.check_policy()
    config.ignore("layers", "name", "trainable", "input_layers", "output_layers", "build_input_shape", "dtype")
    config.check_rest()
    model = ModelConfig(config, {layer.name: layer for layer in layers})
    (_chain if config.type == "Sequential" else _graph)(model)
    return model


# --- Sequential


def _chain(model: ModelConfig) -> None:
    """Calls each layer once, with the output of the one before."""
    layers = list(model.layers.values())
    if layers[0].type != "InputLayer":
        layers.insert(0, _input_of(model, layers[0]))
        model.layers = {layer.name: layer for layer in layers}
        if len(model.layers) < len(layers):
            raise model.config.refuse(f"has a layer that is named {INPUT!r} and is no input")
    for before, layer in zip(layers, layers[1:]):
        if layer.is_operation:
            raise layer.refuse("is no layer")
        model.calls[layer.name] = [Call([Ref(before.name, 0, 0)], {})]
    model.inputs, model.outputs = [Ref(layers[0].name, 0, 0)], [Ref(layers[-1].name, 0, 0)]


def _input_of(model: ModelConfig, first: LayerConfig) -> LayerConfig:
    """Returns the input that Keras prepends, with the shape for which the model or its first layer was built."""
    options = first.options
    shape = (
        options.get("batch_input_shape") or options.get("batch_shape") or model.config.options.get("build_input_shape")
    )
    if shape is None and is_model(first):
        return _input_of(model_of(first), first)  # any shape: the inner model has its own
    dtype = options.get("dtype")
    config = {"batch_shape": shape, "dtype": dtype if isinstance(dtype, str) else "float32", "name": INPUT}
    return LayerConfig("InputLayer", "", "", INPUT, config, first.version)


# --- Functional


def _graph(model: ModelConfig) -> None:
    config = model.config
    for layer in model.layers.values():
        model.calls[layer.name] = [_call(model, layer, node) for node in layer.nodes]
    for name, into in (("input_layers", model.inputs), ("output_layers", model.outputs)):
        refs = flattened(_with_refs(model, config.options.get(name), ends=True))
        if not refs or not all(isinstance(ref, Ref) for ref in refs):
            raise config.refuse(f"has {name} in an unknown form")
        into.extend(refs)
    _number_from_zero(model)


def _call(model: ModelConfig, layer: LayerConfig, node: Any) -> Call:
    if isinstance(node, dict) and {"args", "kwargs"} <= node.keys():
        args, kwargs = _value(node["args"], 0), _value(node["kwargs"], 0)
        if isinstance(args, (list, tuple)) and isinstance(kwargs, dict):
            return Call(list(args), kwargs)
    elif isinstance(node, list) and node:
        # a single tensor of an operation is not in a list
        single = isinstance(node[0], str)
        tensors, kwargs = [], list[Any]()
        for item in [node] if single else node:
            if not isinstance(item, list) or len(item) not in (3, 4) or not isinstance(item[0], str):
                break
            tensors.append(item[2] if item[0] == CONSTANT else _ref(model, item[:3]))
            kwargs += item[3:]
        else:
            if all(isinstance(entry, dict) and entry == kwargs[0] for entry in kwargs):  # each tensor has all
                named = _with_refs(model, kwargs[0] if kwargs else {})
                return Call([tensors[0] if len(tensors) == 1 else tensors], named)
    raise layer.refuse(f"is called in an unknown form: {node!r:.80}")


def _ref(model: ModelConfig, given: list[Any]) -> Ref:
    name, call, tensor = given
    if name not in model.layers or not (isinstance(call, int) and isinstance(tensor, int) and min(call, tensor) >= 0):
        raise model.config.refuse(f"reads {given!r:.80}, which does not exist")
    return Ref(name, call, tensor)


def _with_refs(model: ModelConfig, given: Any, ends: bool = False) -> Any:
    """Replaces each [layer, call, tensor] by a `Ref`. ends: for the model's own inputs and outputs."""
    if isinstance(given, dict):
        return {key: _with_refs(model, value, ends) for key, value in given.items()}
    if isinstance(given, list):
        if len(given) == 3 and isinstance(given[0], str) and (ends or given[0] in model.layers):
            return _ref(model, given)
        if len(given) == 3 and given[0] == CONSTANT:
            return given[2]
        return [_with_refs(model, value, ends) for value in given]
    return given


def _value(given: Any, depth: int) -> Any:
    """Parses an argument of a call in a file of Keras 3."""
    if depth > DEEPEST:
        raise UnknownPart(f"arguments of a call are nested more than {DEEPEST} deep")
    if isinstance(given, list):
        return [_value(v, depth + 1) for v in given]
    if not isinstance(given, dict):
        return given
    kind, config = given.get("class_name"), given.get("config")
    if not isinstance(kind, str) or not isinstance(config, dict):
        return {key: _value(v, depth + 1) for key, v in given.items()}
    if kind == "__keras_tensor__":
        history = config.get("keras_history")
        if isinstance(history, list) and [type(part) for part in history] == [str, int, int] and min(history[1:]) >= 0:
            return Ref(*history)
    if kind == "__slice__":
        return slice(*(config.get(key) for key in ("start", "stop", "step")))
    if kind == "__ellipsis__":
        return Ellipsis
    if kind in ("__numpy__", "__tensor__"):
        return array_of(config)
    if kind == "__tuple__":
        return tuple(_value(config.get("value", []), depth + 1))
    raise UnknownPart(f"a call has an argument of an unknown kind, {kind!r:.60}")


def _number_from_zero(model: ModelConfig) -> None:
    """Renumbers calls from 0 on.

    Nested models have one more call, that of their construction. Files of Keras 2 count it; those of Keras 3 count it
    only in the outputs of the outer model, and only for Functional ones.
    """
    every = [ref for calls in model.calls.values() for call in calls for ref in call.refs()]
    first: dict[str, int] = {}
    for ref in [*every, *model.outputs]:
        if ref.layer not in model.layers:
            raise model.config.refuse(f"reads layer {ref.layer!r}, which it does not have")
        first[ref.layer] = min(ref.call, first.get(ref.layer, ref.call))

    def from_zero(ref: Ref, output: bool) -> Ref:
        layer = model.layers[ref.layer]
        begin = 0
        if is_model(layer):
            old = all(isinstance(node, list) for node in layer.nodes)
            begin = first[ref.layer] if old else int(output and layer.type != "Sequential")
        calls = 1 if layer.type == "InputLayer" else len(model.calls[ref.layer])
        if not 0 <= ref.call - begin < calls:
            raise layer.refuse(f"is called {calls} times, and its call {ref.call} is read")
        return Ref(ref.layer, ref.call - begin, ref.tensor)

    for calls in model.calls.values():
        for call in calls:
            call.args, call.kwargs = (replaced(v, lambda ref: from_zero(ref, False)) for v in (call.args, call.kwargs))
    model.outputs = [from_zero(ref, True) for ref in model.outputs]


def replaced(given: Any, by: Any) -> Any:
    """Replaces each `Ref` by by(ref)."""
    if isinstance(given, Ref):
        return by(given)
    if isinstance(given, Mapping):
        return {key: replaced(v, by) for key, v in given.items()}
    if isinstance(given, (list, tuple)):
        return type(given)(replaced(v, by) for v in given)
    return given
