"""The interface of kernel templates: which regions they take, in which layouts, with which tactics, as which code."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pelton.ir.dims import Size, at, minimum
from pelton.ir.graph import Node, Value
from pelton.ir.types import F32, DType
from pelton.plan.layout import Layout, Layouts, Order, row_major
from pelton.plan.region import Region
from pelton.plan.workspace import KernelWorkspace


@dataclass(frozen=True)
class Target:
    """What code is generated for: an ISA level, and cache sizes from which block sizes are derived."""

    isa: str = "x86_64_v3"
    lanes: int = 8  # of f32 in a register
    registers: int = 16  # of vectors, as many as products may fill
    l1: int = 32 << 10
    l2: int = 512 << 10
    l3: int = 32 << 20
    threads: int = 1
    libraries: tuple[tuple[str, int], ...] = ()  # names and versions of those used in timing
    tf32: bool = False  # whether products of f32 may round their operands to TF32, ten bits of mantissa
    half: DType = F32  # the type in which weights may be stored where that is faster: F32, F16 or BF16

    def version(self, library: str) -> int:
        """The version of a library, 0 if it is absent."""
        return dict(self.libraries).get(library, 0)


@dataclass(frozen=True)
class Tactic:
    """A template and a choice of its parameters. The name parses back: `conv:MR=6,NV=2@x86_64_v3`."""

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
    """A constant in the form that a kernel reads, packed from constants of the region."""

    sources: tuple[Value, ...]
    form: str  # the name of the packing; equal sources and forms are packed once
    shape: tuple[int, ...]
    # writes it into an array of zeros of this shape and type; timing does without
    fill: Callable[[np.ndarray], object]
    dtype: DType = F32
    has_indices: bool = False  # whether kernels address memory by it: then timing fills it, too

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.size


@dataclass(frozen=True, eq=False)
class Kernel:
    """Code for one region with one tactic. Its arguments are pointers to `operands`, then `dims`."""

    source: str
    symbol: str
    # inputs, constants and outputs of the body, packed constants, workspaces
    operands: tuple[Value | Packed | KernelWorkspace, ...]
    tiles: Size
    dims: tuple[Size, ...] = ()  # the dynamic sizes that the code reads
    grain: int = 1
    scratch: Size = 0  # bytes per worker
    phases: Size = 1  # of `tiles` tiles each; all tiles of a phase end before the next phase begins

    def sized(self, sizes: Mapping[str, int], to: Mapping[Value, Value]) -> "Kernel":
        """The kernel with sizes in place of symbols; `to` maps its operands to values of known shape."""

        def operand(x: Value | Packed | KernelWorkspace) -> Value | Packed | KernelWorkspace:
            if isinstance(x, Value):
                return to[x]
            return x.sized(sizes) if isinstance(x, KernelWorkspace) else x

        return replace(
            self,
            operands=tuple(map(operand, self.operands)),
            tiles=at(self.tiles, sizes),
            dims=tuple(at(d, sizes) for d in self.dims),
            scratch=at(self.scratch, sizes),
            phases=at(self.phases, sizes),
        )

    def traffic(self, region: Region, layouts: Layouts) -> Size:
        """The bytes that it has to read and write at least.

        Each element counts once, broadcast ones too; of a gather's input, those that are gathered.
        """
        anchor = region.anchor
        gathered = anchor.inputs[0] if anchor is not None and anchor.op.moves and anchor.op.indexed else None

        def traffic_of(x: Value | Packed | KernelWorkspace) -> Size:
            if not isinstance(x, Value):
                return x.bytes if isinstance(x, Packed) else 0
            size = x.type.dtype.size
            stored = size * math.prod(d for d, stride in zip(x.type.shape, layouts[x]) if stride != 0)
            return minimum(stored, size * region.anchor.output.type.size) if x is gathered else stored

        return sum(map(traffic_of, dict.fromkeys(self.operands)))


class Template:
    """Base of all templates. `region` is the nodes that a kernel computes, `layouts` the strides of its operands."""

    name: str = ""  # as tactics and timing caches on disk have it
    anchors: tuple[str, ...] = ()  # ops; a region has one node of one of them as its only anchor
    without_tail = False  # whether regions may have no pointwise nodes and no slices behind the anchor
    dynamic = False  # whether sizes may be dynamic
    known_sizes = "needs sizes that do not vary"  # the reason where they may not
    timed_only = False  # whether it is taken only where it was timed, with a version of its library that is present
    inexact = False  # whether arithmetic differs from the direct form (Winograd), which `strict` rules out

    def rejection(self, region: Region) -> str | None:
        """The reason why this template cannot compute the region, or None where it can."""
        node = region.anchor
        if node is None or len(region.anchors) != 1 or node.op.name not in self.anchors:
            return f"no single {' or '.join(self.anchors)}"
        if self.without_tail and (region.tail or region.pieces):
            return f"no pointwise operations and no slices after {node.op.name}"
        if node.op.product and (reason := self.types_rejection(node)) is not None:
            return reason
        if any(0 in v.type.shape for v in (*node.inputs, *node.outputs)):
            return "nothing to compute"
        return self.node_rejection(region)

    def types_rejection(self, product: Node) -> str | None:
        """The reason why it cannot sum in the type that a product names, give that type, or pad so; or None."""
        if product.attrs.get("accumulate") is not None or product.attrs.get("to") is not None:
            return "sums in a type of its own, or gives another"
        return "pads with another number than 0" if product.attrs.get("pad_value") or len(product.inputs) > 3 else None

    def node_rejection(self, region: Region) -> str | None:
        """The same, for a region that has one of the anchors and no empty operands."""
        return None

    def output_order(self, region: Region, value: Value, layouts: Layouts) -> Order:
        """The order of axes, outermost first, in which an output is written, given the strides of the inputs."""
        return row_major(value.type.rank)

    def fits(self, region: Region, value: Value, layouts: Layouts) -> bool:
        """Whether the kernel can read (or write) an operand in these layouts; if not, it reads a copy."""
        raise NotImplementedError

    def copy_order(self, region: Region, value: Value, layouts: Layouts) -> Order:
        """The order of axes, outermost first, for the copy of an input that does not fit."""
        return row_major(value.type.rank)

    def preferred_layout(self, region: Region, value: Value, target: Target) -> Layout | None:
        """The best layout for an input that only this region reads, or None if all that fit are as good."""
        return None

    def tactics(self, region: Region, layouts: Layouts, target: Target) -> Iterable[Tactic]:
        """Candidates, the best guess first; none where the template has no kernel for these layouts."""
        return (Tactic(self.name, target.isa),)

    def family(self, tactic: Tactic) -> tuple[int, ...]:
        """The parameters that matter most (a register tile, an algorithm).

        The tuner times one tactic of each family first, then more of the best families.
        """
        return ()

    def is_exact(self, tactic: Tactic) -> bool:
        """Whether arithmetic differs from the direct form in the order of sums alone, as `strict` demands."""
        return not self.inexact

    def margin(self, tactic: Tactic) -> float:
        """The part of the fastest time of smaller margins that it has to save to be worth its error; 0 if exact."""
        return 0.02 if self.inexact else 0.0

    def tolerance(self, tactic: Tactic) -> float:
        """The error that a right kernel may have, of the largest value."""
        return 1e-3  # Winograd's grows with the channels, a wrong kernel's is near one

    def stored(self, tactic: Tactic) -> DType:
        """The type of packed weights that are f32 in the region."""
        return F32

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        """The kernel that computes the region in these layouts."""
        raise NotImplementedError


SOURCES = Path(__file__).parent / "c" / "src"
TEMPLATES: dict[str, Template] = {}  # for CPUs
GPU_TEMPLATES: dict[str, Template] = {}  # for NVIDIA GPUs, declared in `pelton.codegen.triton`
_sources: dict[str, str] = {}


def templates(isa: str) -> dict[str, Template]:
    """The templates for an ISA level, or for an architecture of GPUs (sm_90)."""
    return GPU_TEMPLATES if isa.startswith("sm_") else TEMPLATES


def template(cls: type[Template]) -> type[Template]:
    """Class decorator: declares a template. Where times are equal, the template declared first is taken."""
    return _declare(cls, TEMPLATES)


def gpu_template(cls: type[Template]) -> type[Template]:
    """The same for GPUs."""
    return _declare(cls, GPU_TEMPLATES)


def _declare(cls: type[Template], registry: dict[str, Template]) -> type[Template]:
    if cls.name in registry:
        raise ValueError(f"template {cls.name} is declared twice")
    registry[cls.name] = cls()
    return cls


def add_source(file: str, text: str) -> None:
    """Makes a text known as a kernel file, for kernels of plugins."""
    _sources[file] = text


def source(file: str) -> str:
    """The text of a kernel file."""
    if file not in _sources:
        _sources[file] = (SOURCES / file).read_text("utf-8")
    return _sources[file]
