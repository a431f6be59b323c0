"""What a kernel template says of itself: which regions it takes, in which layouts, with which tactics, as which
code."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pelton.ir.dims import Size, at, minimum
from pelton.ir.graph import Value
from pelton.ir.types import F32, DType
from pelton.plan.layout import Layout, Layouts, Order, row_major
from pelton.plan.region import Region
from pelton.plan.workspace import KernelWorkspace


@dataclass(frozen=True)
class Target:
    """What code is made for: an ISA level and the cache sizes that blockings are derived from."""

    isa: str = "x86_64_v3"
    lanes: int = 8  # of f32 in a register
    registers: int = 16  # of vectors, as many as products may fill
    l1: int = 32 << 10
    l2: int = 512 << 10
    l3: int = 32 << 20
    threads: int = 1
    libraries: tuple[tuple[str, int], ...] = ()  # names and versions of those that times are taken with
    tf32: bool = False  # whether products of f32 may be of its first ten bits behind the point

    def version(self, library: str) -> int:
        """Of a library, 0 where it is not there."""
        return dict(self.libraries).get(library, 0)


@dataclass(frozen=True)
class Tactic:
    """One way to compute a region. The name parses back: `conv_direct:mr=6,nv=2@x86_64_v3`."""

    template: str
    isa: str
    params: tuple[tuple[str, int], ...] = ()

    @property
    def name(self) -> str:
        return f"{self.template}:{','.join(f'{k}={v}' for k, v in self.params)}@{self.isa}"

    def __getitem__(self, key: str) -> int:
        return dict(self.params)[key]

    @classmethod
    def parse(cls, name: str) -> "Tactic":
        template, _, rest = name.partition(":")
        params, _, isa = rest.partition("@")
        return cls(template, isa, tuple((k, int(v)) for k, _, v in (p.partition("=") for p in params.split(",") if p)))


@dataclass(frozen=True, eq=False)
class Packed:
    """A constant in the form that a kernel wants, made from constants of the region."""

    sources: tuple[Value, ...]
    form: str  # names the packing; equal sources and forms are packed once
    shape: tuple[int, ...]
    # puts it into an array of this shape and type that is zero everywhere; timing need not
    fill: Callable[[np.ndarray], object]
    dtype: DType = F32
    has_indices: bool = False  # whether the kernel goes where it says: then timing has to fill it

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.size


@dataclass(frozen=True, eq=False)
class Kernel:
    """Code for one region with one tactic. Pointers come in the order of `operands`, then `dims`."""

    source: str
    symbol: str
    # body inputs, constants and outputs, packed constants, memory of its own
    operands: tuple[Value | Packed | KernelWorkspace, ...]
    tiles: Size
    dims: tuple[Size, ...] = ()  # what the code needs of the sizes that a run decides
    grain: int = 1
    scratch: Size = 0  # bytes per worker
    phases: Size = 1  # of so many tiles each: all of one are done before the next begins

    def sized(self, sizes: Mapping[str, int], to: Mapping[Value, Value]) -> "Kernel":
        """The same for these values of the symbols; `to` gives the values that stand for those of its operands."""

        def operand(x: Value | Packed | KernelWorkspace) -> Value | Packed | KernelWorkspace:
            return to[x] if isinstance(x, Value) else x.sized(sizes) if isinstance(x, KernelWorkspace) else x

        return replace(
            self,
            operands=tuple(map(operand, self.operands)),
            tiles=at(self.tiles, sizes),
            dims=tuple(at(d, sizes) for d in self.dims),
            scratch=at(self.scratch, sizes),
            phases=at(self.phases, sizes),
        )

    def traffic(self, region: Region, layouts: Layouts) -> Size:
        """Bytes that it has to read and write, each once: packed constants as they are stored, of what is repeated one,
        of a table what is picked from it."""
        anchor = region.anchor
        picked = anchor.inputs[0] if anchor is not None and anchor.op.moves and anchor.op.indexed else None

        def needed(x: Value | Packed | KernelWorkspace) -> Size:
            if not isinstance(x, Value):
                return x.bytes if isinstance(x, Packed) else 0
            there = x.type.dtype.size * math.prod(d for d, stride in zip(x.type.shape, layouts[x]) if stride != 0)
            return minimum(there, x.type.dtype.size * region.anchor.output.type.size) if x is picked else there

        return sum(map(needed, dict.fromkeys(self.operands)))


class Template:
    """Base of all templates; a template without tactics for a region simply yields none."""

    name: str = ""
    anchors: tuple[str, ...] = ()  # ops, one of which is all that a region is anchored in
    without_tail = False  # True where nothing pointwise and no slices may follow it
    dynamic = False  # True where sizes may be such as a run decides
    # True where it is no guess: taken where the clock says so, by a version of a library that is there
    timed_only = False
    # True where the arithmetic differs from the direct form (Winograd): not under `strict`
    inexact = False

    def rejection(self, region: Region) -> str | None:
        """None where this template can compute the region, else the reason."""
        node = region.anchor
        if node is None or len(region.anchors) != 1 or node.op.name not in self.anchors:
            return f"no single {' or '.join(self.anchors)}"
        if self.without_tail and (region.tail or region.pieces):
            return f"no pointwise operations and no slices after {node.op.name}"
        if node.op.product and not (node.attrs.get("accumulate") is node.attrs.get("to") is None):
            return "sums in a type of its own, or gives another"
        if any(0 in v.type.shape for v in (*node.inputs, *node.outputs)):
            return "nothing to compute"
        return self.node_rejection(region)

    def node_rejection(self, region: Region) -> str | None:
        """The same of a region that has one of the anchors, and something to compute."""
        return None

    def output_order(self, region: Region, value: Value, layouts: Layouts) -> Order:
        """The order of axes in which an output is written, given the strides of the inputs."""
        return row_major(value.type.rank)

    def fits(self, region: Region, value: Value, layouts: Layouts) -> bool:
        """Whether the kernel can read (or write) an operand that lies as `layouts` say; a copy is made where not."""
        raise NotImplementedError

    def copy_order(self, region: Region, value: Value, layouts: Layouts) -> Order:
        """The order of axes that an input should be copied to where it does not fit."""
        return row_major(value.type.rank)

    def preferred_layout(self, region: Region, value: Value, target: Target) -> Layout | None:
        """The layout that an input had better be written in, where this region alone reads it; None where all that fit
        are as good."""
        return None

    def tactics(self, region: Region, layouts: Layouts, target: Target) -> Iterable[Tactic]:
        """Candidates, the best guess first."""
        return (Tactic(self.name, target.isa),)

    def family(self, tactic: Tactic) -> tuple[int, ...]:
        """What sets tactics apart most (a register tile, an algorithm): the tuner looks at one of each form first, then
        at more of the best ones."""
        return ()

    def is_exact(self, tactic: Tactic) -> bool:
        """Whether a tactic's arithmetic differs from the direct form by no more than the order of sums: no other is
        taken under `strict`."""
        return not self.inexact

    def margin(self, tactic: Tactic) -> float:
        """How much less time than the fastest tactic of a smaller margin one has to take to be worth its error: 0 for
        all that is exact."""
        return 0.02 if self.inexact else 0.0

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        raise NotImplementedError


SOURCES = Path(__file__).parent / "c" / "src"
TEMPLATES: dict[str, Template] = {}  # for CPUs
GPU_TEMPLATES: dict[str, Template] = {}  # for NVIDIA GPUs, declared in `pelton.codegen.triton`
_sources: dict[str, str] = {}


def templates(isa: str) -> dict[str, Template]:
    """The templates that make code for an ISA level, or for a GPU's architecture (sm_90)."""
    return GPU_TEMPLATES if isa.startswith("sm_") else TEMPLATES


def template(cls: type[Template]) -> type[Template]:
    """Class decorator: declares a template. Earlier declarations are preferred where times are equal."""
    return _declared(cls, TEMPLATES)


def gpu_template(cls: type[Template]) -> type[Template]:
    """The same for GPUs."""
    return _declared(cls, GPU_TEMPLATES)


def _declared(cls: type[Template], registry: dict[str, Template]) -> type[Template]:
    if cls.name in registry:
        raise ValueError(f"template {cls.name} is declared twice")
    registry[cls.name] = cls()
    return cls


def source(file: str) -> str:
    """The text of a kernel file."""
    if file not in _sources:
        _sources[file] = (SOURCES / file).read_text("utf-8")
    return _sources[file]
