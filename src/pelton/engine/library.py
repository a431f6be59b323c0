"""The libraries that compute some steps of engines, by name, and their steps: what the dims of one say, and which
version it was timed with."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from pelton.errors import EngineError

from .convolution import ConvolutionDescriptor
from .model import SIZES, Slice, Step
from .product import MatmulDescriptor
from .work import ALIGNED, Work

# the name of a library → what says its steps' work
WORK: Mapping[str, type[Any]] = {kind.symbol: kind for kind in (MatmulDescriptor, ConvolutionDescriptor)}
LIBRARIES: Collection[str] = WORK.keys()


def work(symbol: str, dims: Sequence[object]) -> Work:
    """What the dims of a library's step say; EngineError where they say nothing that can be."""
    kind = WORK[symbol]
    found: Work | None = None
    if len(dims) == len(fields(kind)):
        found = kind(*dims)
    reason = f"it has {len(dims)} dims, expected {len(fields(kind))}" if found is None else found.rejection()
    if found is None or reason is not None:
        what = kind.__name__.removesuffix("Descriptor").lower()
        raise EngineError(f"the {what} of a step by {symbol} is impossible: {reason}; build the engine again")
    return found


def aligned(args: Sequence[Slice], kinds: Sequence[str]) -> tuple[int, ...]:
    """The powers of two whose multiples the operands begin at for certain, whatever buffers they lie in."""
    return tuple(
        SIZES[kind] if not isinstance(a.offset, int) else min(a.offset & -a.offset or ALIGNED, ALIGNED)
        for a, kind in zip(args, kinds)
    )


def spoken(version: int) -> str:
    """A version as the library's makers write it: 130100 is 13.1.0."""
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


def of_version(step: Step, versions: Mapping[str, int]) -> Step:
    """The step and its alternatives, with these versions (by name of library) in what libraries compute."""
    alternatives = tuple(of_version(s, versions) for s in step.alternatives)
    if step.symbol not in LIBRARIES or step.symbol not in versions:
        return replace(step, alternatives=alternatives) if alternatives != step.alternatives else step
    found: Any = replace(work(step.symbol, step.dims), version=versions[step.symbol])
    return replace(
        step,
        dims=found.dims(),
        info={**step.info, "tactic": name(found, str(step.info["tactic"]).partition("@")[2])},
        alternatives=alternatives,
    )


def name(work: Work, isa: str) -> str:
    """What its tactic is called."""
    return f"{work.symbol}:CHOICE={work.choice},VERSION={work.version}@{isa}"
