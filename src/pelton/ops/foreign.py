"""Ops of the onnx package: its shape inference types them, its reference evaluator runs them."""

from __future__ import annotations

import base64
import functools
import math
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pelton.errors import EngineError
from pelton.ir.dims import Dim, Size
from pelton.ir.op import FAMILIES
from pelton.ir.types import DType, TensorType

from .foreign_operators import operators
from .op import Op, Untyped

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from onnx import ModelProto
    from onnx.reference import ReferenceEvaluator

TURNS = 1 << 14  # iterations of a loop in the reference evaluator
_LONG = 1 << 16  # elements of a vector too long to be a shape: onnx would propagate each of them
# DType name → TensorProto.DataType, the numbers of the ONNX format.
CODES = {
    "f32": 1,
    "u8": 2,
    "i8": 3,
    "u16": 4,
    "i16": 5,
    "i32": 6,
    "i64": 7,
    "string": 8,
    "bool": 9,
    "f16": 10,
    "f64": 11,
    "u32": 12,
    "u64": 13,
    "c64": 14,
    "c128": 15,
    "bf16": 16,
    "f8e4m3fn": 17,
    "f8e4m3fnuz": 18,
    "f8e5m2": 19,
    "f8e5m2fnuz": 20,
    "u4": 21,
    "i4": 22,
    "f4e2m1fn": 23,
    "f8e8m0fnu": 24,
    "u2": 25,
    "i2": 26,
    "f6e2m3fn": 27,
    "f6e3m2fn": 28,
}
DTYPES = {code: DType(name) for name, code in CODES.items()}


@functools.cache
def foreign(name: str) -> Op:
    """Returns the foreign op of a name (`onnx::Unique@11`); its attribute `model` is a one-node ONNX model in base64.

    Inputs of the op are those of that model, in order; small constants are part of the model.
    """
    return Op(
        name,
        "foreign",
        infer=_infer,
        reference=_reference,
        doc=f"{name}, run by the onnx package's reference evaluator.",
    )


FAMILIES.append(lambda name: foreign(name) if "::" in name else None)


def packed(model: ModelProto) -> str:
    """Encodes the model as the attribute of a foreign node."""
    return base64.b64encode(model.SerializeToString(deterministic=True)).decode("ascii")


@functools.lru_cache(maxsize=256)
def unpacked(model: str) -> ModelProto:
    """Decodes the attribute `model`; raises EngineError without the onnx package, or if the text is damaged."""
    try:
        import onnx
    except ImportError:
        raise EngineError(
            "a step of this model needs the onnx package: pip install onnx, or build without that operator"
        ) from None
    from google.protobuf.message import DecodeError

    try:
        return onnx.ModelProto.FromString(base64.b64decode(model, validate=True))
    except (DecodeError, ValueError) as e:
        raise EngineError(f"the engine is damaged: a foreign step must contain an ONNX model in base64: {e}") from None


@functools.lru_cache(maxsize=256)
def evaluator(model: str) -> ReferenceEvaluator:
    """Returns an evaluator of the node; onnx raises NotImplementedError or RuntimeError without a reference."""
    return bounded(unpacked(model))


def bounded(model: ModelProto) -> ReferenceEvaluator:
    """Returns the onnx package's evaluator, with an Erf as precise as its type, and loops that end.

    It raises RuntimeError after TURNS iterations of nested loops together. Raises ValueError for a tensor in an
    external file, which the package would search in the working directory.
    """
    from onnx.reference import ReferenceEvaluator

    for tensor in parts(model, "TensorProto"):
        if tensor.data_location == tensor.EXTERNAL:
            raise ValueError(
                f"tensor {tensor.name!r} is in an external file, but is no initializer of the model; put its"
                " data into the model"
            )
    return ReferenceEvaluator(model, new_ops=[_loop(), _erf(), *operators()])


def parts(whole: Message, kind: str) -> Iterator[Any]:
    """Yields all messages of a kind, such as TensorProto, in a part of a model, with nested graphs and functions."""
    if whole.DESCRIPTOR.name == kind:
        yield whole
    for field, value in whole.ListFields() if whole.DESCRIPTOR.name != "TensorProto" else ():
        if field.message_type is not None:
            for inner in (value,) if hasattr(value, "ListFields") else value:
                yield from parts(inner, kind)


def inferred(model: ModelProto, *, strict: bool = False) -> ModelProto:
    """Infers types by onnx, propagating values of shapes; raises ValueError if onnx cannot.

    An output without elements is ignored where inputs have elements and dynamic dimensions: Attention's inference
    treats unknown sizes as 0.
    """
    import onnx

    long = any(
        d.dim_value > _LONG
        for v in model.graph.input
        if len(v.type.tensor_type.shape.dim) == 1
        for d in v.type.tensor_type.shape.dim
    )
    if long and any(node.op_type == "Expand" for node in parts(model, "NodeProto")):
        raise ValueError(f"no shape has more than {_LONG} axes")
    try:
        typed = onnx.shape_inference.infer_shapes(model, strict_mode=strict, data_prop=not long)
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, RuntimeError) as e:
        raise ValueError(f"onnx cannot infer its outputs: {str(e).strip()}") from None
    input_dims, made = (
        [d for v in values for d in v.type.tensor_type.shape.dim] for values in (typed.graph.input, typed.graph.output)
    )
    if not all(d.HasField("dim_value") for d in input_dims) and all(
        d.dim_value or not d.HasField("dim_value") for d in input_dims
    ):
        for d in made:
            if d.HasField("dim_value") and not d.dim_value:
                d.Clear()
    return typed


@functools.cache
def _loop() -> Any:
    from onnx.reference.ops.op_loop import Loop as Endless

    class Loop(Endless):
        op_domain = ""

        def __init__(self, node: Any, params: Any):
            super().__init__(node, params)
            body: Any = self._run_body  # type: ignore[has-type]

            def counted(*inputs: Any, **more: Any) -> Any:
                _turns.left -= 1
                if _turns.left < 0:
                    raise RuntimeError(f"it exceeds {TURNS} iterations; if the model is meant to, run it in parts")
                return body(*inputs, **more)

            self._run_body = counted

        def _run(self, *inputs: Any, **more: Any) -> Any:
            outer = _turns.left is None
            if outer:
                _turns.left = TURNS
            try:
                return super()._run(*inputs, **more)
            finally:
                if outer:
                    _turns.left = None

    return Loop


@functools.cache
def _erf() -> Any:
    from onnx.reference.ops.op_erf import Erf as Rough

    class Erf(Rough):
        op_domain = ""

        def __init__(self, node: Any, params: Any):
            super().__init__(node, params)
            self._erf = np.vectorize(math.erf, otypes=["d"])  # the package's own returns float32 for all types

    return Erf


class _Turns(threading.local):
    """The remaining iterations, of TURNS, for the loop of this thread."""

    left: Any = None


_turns = _Turns()


def _infer(*types: TensorType, model: str) -> tuple[TensorType, ...]:
    import onnx

    typed = onnx.ModelProto()
    typed.CopyFrom(unpacked(model))
    if len(types) != len(typed.graph.input):
        raise ValueError(f"needs {len(typed.graph.input)} inputs, got {len(types)}")
    for slot, operand in zip(typed.graph.input, types):
        slot.type.CopyFrom(onnx.helper.make_tensor_type_proto(CODES[operand.dtype.value], dims_as_onnx(operand.shape)))
    named = {str(d): d for t in types for d in t.shape if isinstance(d, Dim)}
    return tuple(_known_type(v.type, named) for v in inferred(typed, strict=True).graph.output)


def dims_as_onnx(shape: tuple[Size, ...]) -> list[int | str]:
    """Returns a shape in ONNX's form: dynamic dimensions are names."""
    return [str(d) if isinstance(d, Dim) else d for d in shape]


def _known_type(found, named: Mapping[str, Size]) -> TensorType:
    if found.WhichOneof("value") != "tensor_type":
        raise Untyped("has an output that is no tensor")
    tensor = found.tensor_type
    if tensor.elem_type not in DTYPES:
        raise Untyped("onnx cannot infer its element type")
    if not tensor.HasField("shape") or not all(
        d.HasField("dim_value") or d.dim_param in named for d in tensor.shape.dim
    ):
        raise Untyped("the shape of its output depends on the data")
    if any(d.dim_value < 0 for d in tensor.shape.dim):
        raise ValueError("onnx infers a size below 0 for its output")
    return TensorType(
        DTYPES[tensor.elem_type],
        tuple(d.dim_value if d.HasField("dim_value") else named[d.dim_param] for d in tensor.shape.dim),
    )


def _reference(*arrays: np.ndarray, model: str) -> tuple[np.ndarray, ...]:
    run = evaluator(model)
    declared = [DTYPES[v.type.tensor_type.elem_type].numpy for v in unpacked(model).graph.input]
    feeds = {
        v.name: np.asarray(a).astype(d, copy=False) for v, a, d in zip(unpacked(model).graph.input, arrays, declared)
    }
    return tuple(np.asarray(a) for a in run.run(None, feeds))
