"""Plugins: an operator in one class, with its types, meaning, kernels and lifetime."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np

from pelton.errors import InputError
from pelton.ir.attributes import checked
from pelton.ir.dims import Dim, Undecided, is_known
from pelton.ir.graph import Graph, Value
from pelton.ir.op import REQUIRED, Op, TermLike
from pelton.ir.types import DType, TensorType
from pelton.network import Network, NetworkTensor

from .kernels import PluginKernel

FUNCTIONS = ("scalar", "infer", "reference", "layers", "flops", "configure", "weights")
_KINDS = {"scalar": "pointwise", "layers": "composite"}  # methods → what ops with them are; others are structured


class Plugin:
    """A user-defined operator. Write a subclass under `@pelton.register`:

    >>> @pelton.register
    ... class HardMish(pelton.Plugin):
    ...     \"\"\"x · clip(x + shift, 0, 2) / 2, element by element.\"\"\"
    ...     onnx = ("com.example", "HardMish")
    ...     shift: float = 2.0
    ...
    ...     def scalar(self, x):
    ...         return x * sc.minimum(sc.maximum(x + self.shift, 0.0), 2.0) * 0.5

    Annotated fields are its attributes: a bool, int, float, str, or a tuple of these; without a default they are
    required. They are checked, and `__post_init__` may raise ValueError for values out of range. One of these defines
    the result:

    scalar(*x): one element of the output from those of the operands, in terms of `pelton.plugins.scalar`. Operands
        broadcast as in numpy. It has kernels for CPUs and GPUs at once, and fuses like built-in operators.
    infer(*types) and reference(*arrays): the output's `TensorType`, or a tuple, from those of the operands (ValueError
        with a reason if these do not fit); and the outputs by numpy, an array or a tuple, with integers or bools
        where the types have them. Operands are read-only arrays, with floats as float64. With these alone it runs as a
        host step, which is reported.
    layers(net, *tensors): the output, or a tuple, by layers that it adds to a `pelton.Network`, which have kernels.

    Optional members:

    kernels: `CKernel`s and `TritonKernel`s, which are timed; an engine with them runs without this class.
    flops(*types): the number of arithmetic operations, for reports.
    configure(*types): arrays computed once, by the build, such as tables and packed weights. They follow the operands
        of all other functions, and are constants of the engine.
    weights(*types): the shapes of weights that follow the operands, if a format separates these from its layers
        (Caffe, Darknet, Keras). Without it, such a layer has the weights in a file of Caffe or Keras.
    initialize(), terminate(): called before a context first runs `reference`, and when it is freed. Each context has
        its own object for each set of sizes, which keeps its state between runs.

    Names in models: `name` is the operator's, the method of networks (default: the class's name in lower_case), `onnx`
    its domain and type, `caffe` and `darknet` the type of a layer, `keras` the class of one ("MyLayer", or as it is
    registered, "Package>MyLayer"), `tflite` a custom code, `torch` a custom operator, such as "mylib::shift".
    """

    name: ClassVar[str] = ""
    onnx: ClassVar[tuple[str, str] | None] = None
    caffe: ClassVar[str | None] = None
    darknet: ClassVar[str | None] = None
    keras: ClassVar[str | None] = None
    tflite: ClassVar[str | None] = None
    torch: ClassVar[str | None] = None
    kernels: ClassVar[Sequence[PluginKernel]] = ()

    def initialize(self) -> None:
        """Called before a context runs `reference` for the first time."""

    def terminate(self) -> None:
        """Called when that context is freed."""


def declare(cls: type[Plugin]) -> Op:
    """Declares the op of a plugin's class; InputError if the class is incomplete."""
    has = {f for f in FUNCTIONS if callable(getattr(cls, f, None))}
    name = cls.name or re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", cls.__name__).lower()
    _check_class(cls, name, has)
    made = _with_attributes(cls)
    fields = {f.name: REQUIRED if f.default is dataclasses.MISSING else f.default for f in dataclasses.fields(made)}
    kind = next((kind for method, kind in _KINDS.items() if method in has), "structured")

    def instance(**attrs: Any) -> Any:
        options = {k: checked(k, v, fields) for k, v in attrs.items()}
        with _faults_of("__post_init__"):
            return made(**options)

    def call(of: str, given: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
        plugin = instance(**attrs)
        _check_count(getattr(plugin, of), given)
        with _faults_of(of):
            return getattr(plugin, of)(*given)

    def infer(*types: TensorType, **attrs: Any) -> tuple[TensorType, ...]:
        if "layers" in has:
            return tuple(v.type for v in _layers(name, instance(**attrs), types).outputs)
        result = call("infer", types, attrs)
        result = result if isinstance(result, tuple) else (result,)
        if not result or not all(isinstance(t, TensorType) and isinstance(t.dtype, DType) for t in result):
            raise TypeError(f"infer must return a TensorType, or a tuple of them, got {result!r:.99}")
        if any(is_known(d) and d < 0 for t in result for d in t.shape):
            raise ValueError(f"infer returned negative sizes, {', '.join(map(str, result))}")
        return result

    def configure(*types: TensorType, **attrs: Any) -> tuple[np.ndarray, ...]:
        result = call("configure", types, attrs)
        arrays = tuple(map(np.asarray, result if isinstance(result, (tuple, list)) else (result,)))
        for a in arrays:
            if not is_numeric(a):
                raise ValueError(f"configure must return arrays of numbers, got one of {a.dtype}")
        return arrays

    def expand(*values: Value, **attrs: Any) -> tuple[TermLike, ...]:
        return _terms(_layers(name, instance(**attrs), [v.type for v in values]), values)

    def flops(*types: TensorType, **attrs: Any) -> Any:
        try:
            result = call("flops", types, attrs)
        except ValueError as e:
            raise InputError(f"plugin {name}: {e}") from None
        if not isinstance(result, (int, float, np.number, Dim)):
            raise InputError(f"plugin {name}: flops must return a number, got {result!r:.99}")
        return result

    def scalar(*x: Any, **attrs: Any) -> Any:
        with _faults_of("scalar"):
            return instance(**attrs).scalar(*x)

    return Op(
        name,
        kind,
        attrs=fields,
        infer=infer if kind != "pointwise" else None,
        reference=(lambda *x, **attrs: compute(instance(**attrs), x)) if "reference" in has else None,
        scalar=scalar if "scalar" in has else None,
        expand=expand if "layers" in has else None,
        flops=flops if "flops" in has else None,
        configure=configure if "configure" in has else None,
        instance=instance,
        doc=(cls.__doc__ or "").strip(),
        heavy=kind != "pointwise",
    )


def compute(plugin: Any, arrays: Sequence[np.ndarray]) -> Any:
    """Calls a plugin's `reference` on read-only operands: they may be an array of the caller's."""
    views = [np.asarray(a).view() for a in arrays]
    for a in views:
        a.flags.writeable = False
    return plugin.reference(*views)


def is_numeric(array: np.ndarray) -> bool:
    """True if elements are numbers or bools, of a type that tensors have."""
    try:
        dtype = DType.of(array)
    except TypeError:
        return False
    return dtype.is_float or dtype.is_integer or dtype is DType.BOOL


def _check_class(cls: type[Plugin], name: str, has: set[str]) -> None:
    """Raises InputError for a class that lacks something, or declares something that plugins cannot have."""
    if not re.fullmatch(r"[^\W\d_](\w*[^\W_])?", name):
        raise InputError(
            f"plugin {cls.__name__}: its name must be an identifier without underscores at its ends, got {name!r}"
        )
    if hasattr(Network, name):
        raise InputError(f"plugin {cls.__name__}: {name!r} is a method of networks; set another `name`")
    if not (has & {"scalar", "layers"} or {"infer", "reference"} <= has):
        raise InputError(
            f"plugin {cls.__name__} needs scalar, layers, or infer with reference; it has"
            f" {', '.join(sorted(has)) or 'none of these'}"
        )
    if not isinstance(cls.kernels, (tuple, list)) or not all(isinstance(k, PluginKernel) for k in cls.kernels):
        raise InputError(
            f"plugin {cls.__name__}: `kernels` must be a tuple of CKernel and TritonKernel, got {cls.kernels!r:.99}"
        )
    if "scalar" in has and cls.kernels:
        raise InputError(f"plugin {cls.__name__} has a scalar function, which defines its kernels; remove `kernels`")


def _with_attributes(cls: type[Plugin]) -> Any:
    """Makes the class a dataclass of its attributes; InputError for annotations that are no attributes."""
    try:
        made: Any = dataclasses.dataclass(kw_only=True, eq=False)(cls)
        fields = {f.name: f.default for f in dataclasses.fields(made)}
        for field, default in fields.items():
            if default not in (dataclasses.MISSING, None):
                checked(field, default, fields)
    except (TypeError, ValueError) as e:  # such as a list, which all objects would share
        raise InputError(
            f"plugin {cls.__name__}: an attribute is a bool, a number, a text or a tuple of these: {e}"
        ) from None
    own = [f for f in fields if f in FUNCTIONS or hasattr(Plugin, f)]
    if own:
        raise InputError(f"plugin {cls.__name__}: {own[0]!r} is no attribute, but of plugins; call it by another name")
    return made


@contextmanager
def _faults_of(function: str) -> Iterator[None]:
    """Converts errors of a plugin's function to a ValueError with its name; a ValueError is a reason and stays."""
    try:
        yield
    except ValueError:
        raise
    except Exception as e:
        raise ValueError(f"`{function}` raised {type(e).__name__}: {e}") from e


def _check_count(function: Callable[..., Any], given: Sequence[Any]) -> None:
    """Raises ValueError unless a function of a plugin takes so many operands."""
    signature = inspect.signature(function)
    try:
        signature.bind(*given)
    except TypeError:
        names = [p for p in signature.parameters if p != "net"]
        count = len(given) - (len(names) < len(signature.parameters))
        raise ValueError(f"needs the operands {', '.join(names) or '(none)'}, got {count}") from None


def _layers(name: str, plugin: Any, types: Sequence[TensorType]) -> Graph:
    """What a plugin's `layers` add to a network of their own, for operands of these types."""
    net = Network(name)
    operands = [net.input(f"operand{i}", t) for i, t in enumerate(types)]
    _check_count(plugin.layers, (net, *operands))
    try:
        with _faults_of("layers"):
            outputs = plugin.layers(net, *operands)
        outputs = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
        if not outputs or not all(isinstance(t, NetworkTensor) for t in outputs):
            raise ValueError(f"layers must return a tensor, or a tuple of them, got {outputs!r:.99}")
        if len(net.inputs) > len(types):
            raise ValueError(f"layers adds the input {net.inputs[-1]!r}; all that it reads are operands")
        return net.graph({f"output{i}": t for i, t in enumerate(outputs)})
    except InputError as e:
        if isinstance(e.__cause__, Undecided):
            raise e.__cause__ from None
        raise


def _terms(graph: Graph, values: Sequence[Value]) -> tuple[TermLike, ...]:
    """Returns the outputs of a graph as terms of values for its inputs."""
    known: dict[Value, TermLike] = {**dict(zip(graph.inputs, values, strict=True)), **graph.constants}
    for node in graph.nodes:
        term = node.op(*(known[v] for v in node.inputs), **node.attrs)
        known |= {v: term if len(node.outputs) == 1 else term[i] for i, v in enumerate(node.outputs)}
    return tuple(known[v] for v in graph.outputs)


def weight_shapes(op: Op, types: Sequence[TensorType], attrs: Mapping[str, Any]) -> list[tuple[int, ...]] | None:
    """Returns the shapes of a plugin's weights for operands of these types; None if it declares none. InputError for
    invalid shapes."""
    assert op.instance is not None, f"{op.name} is no plugin"
    try:
        weights = getattr(op.instance(**attrs), "weights", None)
        if not callable(weights):
            return None
        _check_count(weights, types)
        with _faults_of("weights"):
            shapes = [tuple(shape) for shape in weights(*types)]
    except Undecided:
        raise
    except ValueError as e:
        raise InputError(f"plugin {op.name}: {e}") from None
    if not all(isinstance(d, int) and d >= 1 for shape in shapes for d in shape):
        raise InputError(f"plugin {op.name}: weights must return shapes of positive integers, got {shapes}")
    return shapes
