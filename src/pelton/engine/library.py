"""What a library computes instead of a kernel of the engine's own, as plain data: what a step whose symbol is a library's name says in its dims."""
from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, ClassVar

from pelton.errors import EngineError

from .model import SIZES, Slice, Step
from pelton.record import record

CHOICES = 3                                    # algorithms of a library's list that are timed
KINDS = ("f32", "f16", "bf16", "tf32")         # the last: f32 that may be multiplied as TF32
TYPES = ("f32", "f16", "bf16", "f32")          # of elements, by kind
ENDS = ("", "relu", "gelu_tanh")
ALIGNED = 16                                   # bytes: what operands that begin at a multiple of it are known to
_COUNT = (1, (1 << 31) - 1)
_STEP = (0, 1 << 40)
_FLAG = (0, 1)
_SAID = {"version": (0, 1 << 40), "choice": (0, CHOICES - 1), "kind": (0, len(KINDS) - 1), "bias": _FLAG, "added": _FLAG}


def _reach(counts: Sequence[int], steps: Sequence[int]) -> int:
    """Elements from the first to past the last of those that lie so far from each other."""
    return 1 + sum((n - 1) * step for n, step in zip(counts, steps))


def _values(work: Product | Convolution) -> tuple[int, ...]:
    """All of them in order; `astuple` would look for records inside of each."""
    return tuple(getattr(work, f.name) for f in fields(work))


def _outside(work: Product | Convolution, limits: Mapping[str, tuple[int, int]]) -> str | None:
    """What is not within limits."""
    for f, value in zip(fields(work), work.dims()):
        least, most = limits.get(f.name, _STEP)
        if type(value) is not int or not least <= value <= most:
            return f"{f.name} is {value!r}, expected a whole number from {least} to {most}"
    return None


@record(frozen=True)
class Product:
    """D[b] = end(scale · A[b] · B[b] + C[b] + bias), of m×k by k×n elements, summed in f32. All numbers, so that the dims of a step can be these.

    version: the library's that it was timed with, 0 before that. choice: which algorithm of those that this version proposes for this product.
    kind: of A and B, out: of all others. bias: whether there is one, n elements side by side; added: whether there is a C. scale: the bits of an f32.
    Lines of a matrix, whose elements lie side by side, are its rows, or its columns where it is turned: `_line` elements from one line to the next, `_step`
    from one matrix of the batch to the next, 0 for one and the same. The operands of a step are A, B, the bias, C and D, as far as there are such.
    """

    symbol: ClassVar[str] = "cublaslt"

    version: int
    choice: int
    kind: int
    out: int
    end: int
    bias: int
    added: int
    scale: int
    batch: int
    m: int
    n: int
    k: int
    a_line: int
    a_turned: int
    a_step: int
    b_line: int
    b_turned: int
    b_step: int
    c_line: int
    c_step: int
    d_line: int
    d_step: int

    def dims(self) -> tuple[int, ...]:
        return _values(self)

    def operands(self) -> list[tuple[str, int]]:
        """Of each operand its element type, and the elements from its first to past its last."""
        def reach(lines: int, length: int, line: int, step: int) -> int:
            return (self.batch - 1) * step + (lines - 1) * line + length
        a, b = (self.k, self.m) if self.a_turned else (self.m, self.k), (self.n, self.k) if self.b_turned else (self.k, self.n)
        kind, out = TYPES[self.kind], TYPES[self.out]
        found = [(kind, reach(*a, self.a_line, self.a_step)), (kind, reach(*b, self.b_line, self.b_step))]
        found += [(out, self.n)] if self.bias else []
        found += [(out, reach(self.m, self.n, self.c_line, self.c_step))] if self.added else []
        return [*found, (out, reach(self.m, self.n, self.d_line, self.d_step))]

    def wrong(self) -> str | None:
        """What no product says; None where all is well."""
        limits = _SAID | {"out": (0, len(KINDS) - 2), "end": (0, len(ENDS) - 1), "scale": (0, (1 << 32) - 1), "a_turned": _FLAG, "b_turned": _FLAG,
                          **dict.fromkeys(("batch", "m", "n", "k"), _COUNT)}
        if reason := _outside(self, limits):
            return reason
        if TYPES[self.out] not in (TYPES[self.kind], "f32"):
            return f"it makes {KINDS[self.out]} of {KINDS[self.kind]}"
        lengths = {"a": self.m if self.a_turned else self.k, "b": self.k if self.b_turned else self.n, "d": self.n, **({"c": self.n} if self.added else {})}
        for name, length in lengths.items():
            if getattr(self, name + "_line") < length:
                return f"lines of {name} have {length} elements and begin every {getattr(self, name + '_line')}"
        rows = (self.m - 1) * self.d_line + self.n
        return f"matrices of d have {rows} elements and begin every {self.d_step}" if self.batch > 1 and self.d_step < rows else None

    def __str__(self) -> str:
        return f"a product of {self.m}×{self.k} by {self.k}×{self.n}"


@record(frozen=True)
class Convolution:
    """Y = end(X ∗ W + Z + bias), as ONNX has it, summed in f32: pictures of h×w pixels, whose channels lie side by side. All numbers, as in products.

    version, choice: as of products. kind: of all operands. end: of `ENDS`, without GELU. bias: whether there is one, `out` elements side by side;
    added: whether there is a Z, as large as Y. W has for each of `out` outputs kernel_h × kernel_w × c / group elements, c / group of them side by side, and
    `w_step` elements from one output to the next. x_n, x_h, x_w: elements from one picture, row or pixel of X to the next; so for Y and Z.
    The operands of a step are X, W, the bias, Z and Y, as far as there are such.
    """

    symbol: ClassVar[str] = "cudnn"

    version: int
    choice: int
    kind: int
    end: int
    bias: int
    added: int
    n: int
    c: int
    h: int
    w: int
    out: int
    group: int
    kernel_h: int
    kernel_w: int
    stride_h: int
    stride_w: int
    dilation_h: int
    dilation_w: int
    top: int
    left: int
    bottom: int
    right: int
    w_step: int
    x_n: int
    x_h: int
    x_w: int
    y_n: int
    y_h: int
    y_w: int
    z_n: int
    z_h: int
    z_w: int

    def dims(self) -> tuple[int, ...]:
        return _values(self)

    @property
    def space(self) -> tuple[int, int]:
        """Rows and columns of Y."""
        return ((self.h + self.top + self.bottom - self.dilation_h * (self.kernel_h - 1) - 1) // self.stride_h + 1,
                (self.w + self.left + self.right - self.dilation_w * (self.kernel_w - 1) - 1) // self.stride_w + 1)

    def operands(self) -> list[tuple[str, int]]:
        """Of each operand its element type, and the elements from its first to past its last."""
        filters = self.kernel_h * self.kernel_w * (self.c // self.group)
        made = (self.n, *self.space, self.out)
        found = [_reach((self.n, self.h, self.w, self.c), (self.x_n, self.x_h, self.x_w, 1)), _reach((self.out, filters), (self.w_step, 1))]
        found += [self.out] if self.bias else []
        found += [_reach(made, (self.z_n, self.z_h, self.z_w, 1))] if self.added else []
        return [(TYPES[self.kind], n) for n in (*found, _reach(made, (self.y_n, self.y_h, self.y_w, 1)))]

    def wrong(self) -> str | None:
        """What no convolution says; None where all is well."""
        counts = ("n", "c", "h", "w", "out", "group", "kernel_h", "kernel_w", "stride_h", "stride_w", "dilation_h", "dilation_w")
        limits = _SAID | {"end": (0, ENDS.index("relu")), **dict.fromkeys(counts, _COUNT), **dict.fromkeys(("top", "left", "bottom", "right"), (0, _COUNT[1]))}
        if reason := _outside(self, limits):
            return reason
        if self.c % self.group or self.out % self.group:
            return f"{self.c} channels and {self.out} outputs are of {self.group} groups"
        if min(self.space) < 1:
            return "no window fits"
        if self.w_step < self.kernel_h * self.kernel_w * (self.c // self.group):
            return f"filters begin every {self.w_step} elements, and have more"
        for name, (rows, columns), length in (("x", (self.h, self.w), self.c), ("y", self.space, self.out), ("z", self.space, self.out)):
            if name == "z" and not self.added:
                continue
            for axis, count in (("w", columns), ("h", rows), ("n", self.n)):
                step = getattr(self, f"{name}_{axis}")
                if count > 1 and step < length:
                    return f"what {name} has along {axis} begins every {step} elements, and is {length} long"
                length += (count - 1) * step
        return None

    def __str__(self) -> str:
        return f"a convolution of {self.n}×{self.c}×{self.h}×{self.w} by {self.out} filters of {self.kernel_h}×{self.kernel_w}"


WORK: dict[str, type[Product] | type[Convolution]] = {work.symbol: work for work in (Product, Convolution)}          # by the name of its library
LIBRARIES: Collection[str] = WORK.keys()


def work(symbol: str, dims: Sequence[object]) -> Product | Convolution:
    """What the dims of a library's step say; EngineError where they say nothing that can be."""
    kind, found = WORK[symbol], None
    if len(dims) == len(fields(kind)):
        found = kind(*dims)                                                    # type: ignore[arg-type]
    reason = f"it has {len(dims)} dims, expected {len(fields(kind))}" if found is None else found.wrong()
    if found is None or reason is not None:
        raise EngineError(f"a {kind.__name__.lower()} of the library {symbol} cannot be: {reason}; build the engine again")
    return found


def aligned(args: Sequence[Slice], kinds: Sequence[str]) -> tuple[int, ...]:
    """The powers of two whose multiples the operands begin at for certain, whatever buffers they lie in."""
    return tuple(SIZES[kind] if not isinstance(a.offset, int) else min(a.offset & -a.offset or ALIGNED, ALIGNED) for a, kind in zip(args, kinds))


def spoken(version: int) -> str:
    """A version as the library's makers write it: 130100 is 13.1.0."""
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


def of_version(step: Step, versions: Mapping[str, int]) -> Step:
    """The step and its spares, what libraries compute to be timed with these versions of them (by their names)."""
    spares = tuple(of_version(s, versions) for s in step.spares)
    if step.symbol not in LIBRARIES or step.symbol not in versions:
        return replace(step, spares=spares) if spares != step.spares else step
    found: Any = replace(work(step.symbol, step.dims), version=versions[step.symbol])
    return replace(step, dims=found.dims(), info={**step.info, "tactic": name(found, str(step.info["tactic"]).partition("@")[2])}, spares=spares)


def name(work: Product | Convolution, isa: str) -> str:
    """What its tactic is called."""
    return f"{work.symbol}:CHOICE={work.choice},VERSION={work.version}@{isa}"
