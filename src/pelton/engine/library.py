"""The libraries that compute some steps of engines, by name; their steps: the meaning of the dims, and the version that
was timed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from pelton.errors import EngineError

from .convolution import ConvolutionDescriptor
from .plan import SIZES, Slice, Step
from .product import MatmulDescriptor
from .work import ALIGNED, Work

# name of a library → class of its steps' work
WORK: Mapping[str, type[Any]] = {kind.symbol: kind for kind in (MatmulDescriptor, ConvolutionDescriptor)}
LIBRARIES: Collection[str] = WORK.keys()


def work(symbol: str, dims: Sequence[object]) -> Work:
    """Decodes the dims of a library's step; raises EngineError if they are impossible."""
    kind = WORK[symbol]
    op: Work | None = None
    if len(dims) == len(fields(kind)):
        op = kind(*dims)
    reason = f"it has {len(dims)} dims, expected {len(fields(kind))}" if op is None else op.rejection()
    if op is None or reason is not None:
        what = kind.__name__.removesuffix("Descriptor").lower()
        raise EngineError(f"the {what} of a step by {symbol} is impossible: {reason}; build the engine again")
    return op


def aligned(args: Sequence[Slice], kinds: Sequence[str]) -> tuple[int, ...]:
    """Returns the guaranteed alignment of each operand, a power of two, in any buffers."""
    return tuple(
        SIZES[kind] if not isinstance(a.offset, int) else min(a.offset & -a.offset or ALIGNED, ALIGNED)
        for a, kind in zip(args, kinds)
    )


def spoken(version: int) -> str:
    """Formats a version as the library's makers do: 130100 is 13.1.0."""
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


def of_version(step: Step, versions: Mapping[str, int]) -> Step:
    """Returns the step and its alternatives with these library versions (by name of library)."""
    alternatives = tuple(of_version(s, versions) for s in step.alternatives)
    if step.symbol not in LIBRARIES or step.symbol not in versions:
        return replace(step, alternatives=alternatives) if alternatives != step.alternatives else step
    op: Any = replace(work(step.symbol, step.dims), version=versions[step.symbol])
    return replace(
        step,
        dims=op.dims(),
        info={**step.info, "tactic": name(op, str(step.info["tactic"]).partition("@")[2])},
        alternatives=alternatives,
    )


def name(work: Work, isa: str) -> str:
    """Returns the name of its tactic."""
    return f"{work.symbol}:CHOICE={work.choice},VERSION={work.version}@{isa}"
