"""An engine as plain data: ports, buffers, steps, constants and machine code."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from pelton.errors import EngineError

from pelton.record import record

NUMPY_NAMES = {
    "f64": "float64",
    "f32": "float32",
    "f16": "float16",
    "i64": "int64",
    "i32": "int32",
    "i16": "int16",
    "i8": "int8",
    "u64": "uint64",
    "u32": "uint32",
    "u16": "uint16",
    "u8": "uint8",
    "bool": "bool",
    "c64": "complex64",
    "c128": "complex128",
    "string": "object",
}
ML_DTYPES_NAMES = {
    "bf16": "bfloat16",
    "f8e4m3fn": "float8_e4m3fn",
    "f8e4m3fnuz": "float8_e4m3fnuz",
    "f8e5m2": "float8_e5m2",
    "f8e5m2fnuz": "float8_e5m2fnuz",
    "f8e8m0fnu": "float8_e8m0fnu",
    "f6e2m3fn": "float6_e2m3fn",
    "f6e3m2fn": "float6_e3m2fn",
    "f4e2m1fn": "float4_e2m1fn",
    "i4": "int4",
    "u4": "uint4",
    "i2": "int2",
    "u2": "uint2",
}
SIZES = (
    {name: np.dtype(n).itemsize for name, n in NUMPY_NAMES.items()}
    | {name: 1 for name in ML_DTYPES_NAMES}
    | {"bf16": 2}
)
KINDS = ("arena", "zeros", "constant", "table", "input", "output", "strings", "text", "sizes", "iota")
if TYPE_CHECKING:
    Number = int
else:
    # a text, a key of EnginePlan.sizes, if it depends on the sizes of the inputs; `sizes.at` leaves ints alone
    Number = int | str
UNBOUNDED = 1 << 40  # represents a missing upper bound of a size


@cache
def numpy_dtype(name: str) -> np.dtype:
    """Returns the numpy dtype of an element type; raises EngineError if it needs ml_dtypes, which is not installed."""
    if name in NUMPY_NAMES:
        return np.dtype(NUMPY_NAMES[name])
    try:
        import ml_dtypes  # imported only for engines with such types
    except ImportError:
        raise EngineError(f"arrays of {name} need the package ml_dtypes; pip install ml_dtypes") from None
    return np.dtype(getattr(ml_dtypes, ML_DTYPES_NAMES[name]))


@record(frozen=True)
class DynamicDimension:
    """A dimension whose size is known only at run time, `minimum` to `maximum`; the engine is tuned for `optimum`."""

    name: str
    minimum: int
    optimum: int
    maximum: int

    def range(self) -> str:
        """Returns the bounds, for messages."""
        return f"{self.minimum} and more" if self.maximum >= UNBOUNDED else f"{self.minimum} to {self.maximum}"


@record(frozen=True)
class IndexRange:
    """The smallest and the largest index that a layer accepts; negative ones count from the end."""

    low: int
    high: int
    layer: str


@record(frozen=True)
class Port:
    """An input or output: the arrays that the engine accepts or returns. A size that a run decides is a text: the name
    of a symbol, or an expression such as "2*batch". `dims` are the model's names of its dimensions, None for unnamed
    ones. `indices`: the bounds of an input of i32 or i64 whose elements index a table; runs reject others. `shares`:
    the input whose memory an output may use; a run then writes new elements only."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    dims: tuple[str | None, ...] = ()
    indices: IndexRange | None = None
    shares: str | None = None

    def with_shape(self, shape: tuple[int | str, ...]) -> Port:
        """Returns the port with another shape; in a tenth of the time of `replace`, as every new shape needs it."""
        port = object.__new__(Port)
        port.__dict__.update(self.__dict__, shape=shape)
        return port

    @property
    def numpy_dtype(self) -> np.dtype:
        return numpy_dtype(self.dtype)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The shape, if no run decides a size of it."""
        return self.shape  # type: ignore[return-value]

    @property
    def nbytes(self) -> int:
        return math.prod(self.numbers) * SIZES[self.dtype]

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"

    def _repr_html_(self) -> str:
        """Returns the notebook view."""
        from pelton import html  # imported only in notebooks

        return html.table(("name", "type"), [(self.name, str(self))])


@record(frozen=True)
class Buffer:
    """Memory that slices are cut from. `offset`: bytes in the arena, bytes in the constants (a "table" is a constant
    that kernels use for addressing), or the index of the input or output. Strings are Python objects, for host steps
    only: a buffer of kind "strings" belongs to a context and has 8 bytes per object (`offset` is 0), "text" is a
    constant, a JSON list of strings. "sizes" are i64 `values`, "iota" counts from 0 in elements of `dtype`, up to
    `size` bytes: both are computed when a shape first occurs. "zeros" (`offset`: bytes in those of a context, on GPUs
    only) belong to one step, whose kernel expects zeros and leaves zeros, or hold a zero-padded value."""

    kind: str
    offset: Number
    size: Number
    values: tuple[Number, ...] = ()
    dtype: str = "i64"


def strings_in(text: Any) -> np.ndarray:
    """Decodes the bytes of a "text" buffer into its objects; raises ValueError if they are no list of strings."""
    strings = json.loads(bytes(text))
    if not isinstance(strings, list) or not all(isinstance(s, str) for s in strings):
        raise ValueError("no list of strings")
    return np.array(strings, object)


@record(frozen=True)
class Slice:
    """A place in a buffer, in bytes from its start."""

    buffer: int
    offset: Number


@record(frozen=True)
class Tensor:
    """An operand of a host step; strides in elements."""

    slice: Slice
    dtype: str
    shape: tuple[Number, ...]
    strides: tuple[Number, ...]


@record(frozen=True)
class Step:
    """One kernel over its tiles, or one node run by the host.

    A kernel's argument table is the addresses of `args` followed by `dims`. Steps of one wave may run at once.
    `scratch`: bytes per thread. `phases`: number of passes over the tiles, one after the other. `inputs`: operands that
    a host step reads; `outputs`: operands that any step writes. `alternatives`: equivalent kernels; `pelton tune`
    replaces the step by the fastest.
    """

    name: str
    symbol: str
    args: tuple[Slice, ...] = ()
    dims: tuple[Number, ...] = ()
    tiles: Number = 1
    grain: int = 1
    wave: int = 0
    scratch: Number = 0
    phases: Number = 1
    host: str = ""
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()
    info: Mapping[str, Any] = field(default_factory=dict)
    alternatives: tuple[Step, ...] = ()

    @property
    def kernels(self) -> tuple[Step, ...]:
        """Itself, then its alternatives."""
        return (self, *self.alternatives)

    def with_kernel(self, kernel: Step, rest: Sequence[Step], **info: Any) -> Step:
        """Returns the step with one of its kernels, and the rest as its alternatives."""
        alternatives = tuple(replace(s, info={"tactic": s.info["tactic"]}, outputs=(), alternatives=()) for s in rest)
        return replace(
            kernel,
            name=self.name,
            info={**self.info, "tactic": kernel.info["tactic"], **info},
            outputs=self.outputs,
            alternatives=alternatives,
        )


@record(frozen=True)
class EnginePlan:
    """All data of a run. Steps are in order of their waves; `arena` in bytes; `constants` any buffer of bytes, its
    pieces at multiples of 64; `code` one ELF shared object or nothing; `target` names os, arch, isa (a level), features
    and cpu; `meta` is any JSON-compatible value.

    With `symbols`, numbers depend on the sizes of the inputs (`pelton.engine.sizes`): buffers of the arena then have no
    place yet, and `arena` is the need of the optimum sizes. `file`: its source, for messages; not written. `refit`: the
    data for other weights (`refit_record`), in bytes, or nothing. `absent`: buffers of constants without bytes; the
    engine cannot run before a refit."""

    name: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    buffers: tuple[Buffer, ...]
    steps: tuple[Step, ...]
    arena: int
    constants: Any
    code: bytes
    target: Mapping[str, Any]
    meta: Mapping[str, Any]
    symbols: tuple[DynamicDimension, ...] = ()
    sizes: Mapping[str, Any] = field(default_factory=dict)
    file: str = ""
    refit: Any = b""
    absent: tuple[int, ...] = ()

    def __getattr__(self, name: str) -> Any:
        """Decodes these fields on first use, for a plan that was read from a file (`stored`)."""
        state = vars(self)
        if name not in ("buffers", "steps", "sizes") or "_rows" not in state:
            raise AttributeError(f"an engine's plan has no {name!r}")
        rows = state["_rows"]
        try:
            state[name] = rows.steps(state["_infos"]) if name == "steps" else getattr(rows, name)()
        except ValueError as e:
            raise EngineError(f"engine {self.label!r} is damaged: {e}; build it again") from None
        return state[name]

    @property
    def label(self) -> str:
        """Its name in messages: the file that it comes from, else its own name."""
        return self.file or self.name
