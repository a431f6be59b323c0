"""Matrix products that a library computes instead of a kernel of the engine's own, as plain data: what a step of symbol `cublaslt` says in its dims."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, fields, replace

from pelton.errors import EngineError

from .engine import SIZES, Slice, Step
from .record import record

SYMBOL = "cublaslt"
CHOICES = 3                                    # algorithms of the library's list that are timed
KINDS = ("f32", "f16", "bf16")
ENDS = ("", "relu", "gelu_tanh")
ALIGNED = 16                                   # bytes: what operands that begin at a multiple of it are known to
_COUNT = (1, (1 << 31) - 1)
_STEP = (0, 1 << 40)
_LIMITS = {"version": (0, 1 << 40), "choice": (0, CHOICES - 1), "kind": (0, len(KINDS) - 1), "out": (0, len(KINDS) - 1), "end": (0, len(ENDS) - 1),
           "bias": (0, 1), "added": (0, 1), "scale": (0, (1 << 32) - 1), **dict.fromkeys(("batch", "m", "n", "k"), _COUNT),
           **dict.fromkeys(("a_turned", "b_turned"), (0, 1))}


@record(frozen=True)
class Product:
    """D[b] = end(scale · A[b] · B[b] + C[b] + bias), of m×k by k×n elements, summed in f32. All numbers, so that the dims of a step can be these.

    version: the library's that it was timed with, 0 before that. choice: which algorithm of those that this version proposes for this product.
    kind: of A and B, out: of all others. bias: whether there is one, n elements side by side; added: whether there is a C. scale: the bits of an f32.
    Lines of a matrix, whose elements lie side by side, are its rows, or its columns where it is turned: `_line` elements from one line to the next, `_step`
    from one matrix of the batch to the next, 0 for one and the same. The operands of a step are A, B, the bias, C and D, as far as there are such.
    """

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
        return astuple(self)

    def operands(self) -> list[tuple[str, int]]:
        """Of each operand its element type, and the elements from its first to past its last."""
        def reach(lines: int, length: int, line: int, step: int) -> int:
            return (self.batch - 1) * step + (lines - 1) * line + length
        a, b = (self.k, self.m) if self.a_turned else (self.m, self.k), (self.n, self.k) if self.b_turned else (self.k, self.n)
        kind, out = KINDS[self.kind], KINDS[self.out]
        found = [(kind, reach(*a, self.a_line, self.a_step)), (kind, reach(*b, self.b_line, self.b_step))]
        found += [(out, self.n)] if self.bias else []
        found += [(out, reach(self.m, self.n, self.c_line, self.c_step))] if self.added else []
        return [*found, (out, reach(self.m, self.n, self.d_line, self.d_step))]

    def wrong(self) -> str | None:
        """What no product says; None where all is well."""
        for name, value in zip(NAMES, self.dims()):
            least, most = _LIMITS.get(name, _STEP)
            if type(value) is not int or not least <= value <= most:
                return f"{name} is {value!r}, expected a whole number from {least} to {most}"
        if self.out not in (self.kind, KINDS.index("f32")):
            return f"it makes {KINDS[self.out]} of {KINDS[self.kind]}"
        lengths = {"a": self.m if self.a_turned else self.k, "b": self.k if self.b_turned else self.n, "d": self.n, **({"c": self.n} if self.added else {})}
        for name, length in lengths.items():
            if getattr(self, name + "_line") < length:
                return f"lines of {name} have {length} elements and begin every {getattr(self, name + '_line')}"
        rows = (self.m - 1) * self.d_line + self.n
        return f"matrices of d have {rows} elements and begin every {self.d_step}" if self.batch > 1 and self.d_step < rows else None


NAMES = tuple(f.name for f in fields(Product))


def product(dims: Sequence[object]) -> Product:
    """What the dims of a step say; EngineError where they say no product."""
    found = Product(*dims) if len(dims) == len(NAMES) else None                # type: ignore[arg-type]
    reason = f"it has {len(dims)} dims, expected {len(NAMES)}" if found is None else found.wrong()
    if found is None or reason is not None:
        raise EngineError(f"a product of the library {SYMBOL} cannot be: {reason}; build the engine again")
    return found


def aligned(args: Sequence[Slice], kinds: Sequence[str]) -> tuple[int, ...]:
    """The powers of two whose multiples the operands begin at for certain, whatever buffers they lie in."""
    return tuple(SIZES[kind] if not isinstance(a.offset, int) else min(a.offset & -a.offset or ALIGNED, ALIGNED) for a, kind in zip(args, kinds))


def spoken(version: int) -> str:
    """A version as the library's makers write it: 130100 is 13.1.0."""
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


def of_version(step: Step, version: int) -> Step:
    """The step and its spares, products by the library to be timed with this version of it."""
    spares = tuple(of_version(s, version) for s in step.spares)
    if step.symbol != SYMBOL:
        return replace(step, spares=spares) if spares != step.spares else step
    found = replace(product(step.dims), version=version)
    return replace(step, dims=found.dims(), info={**step.info, "tactic": name(found, str(step.info["tactic"]).partition("@")[2])}, spares=spares)


def name(product: Product, isa: str) -> str:
    """What its tactic is called."""
    return f"{SYMBOL}:CHOICE={product.choice},VERSION={product.version}@{isa}"
