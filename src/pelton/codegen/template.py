"""The interface of kernel templates: the regions, layouts and tactics they support, and their code."""

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
from pelton.targets import ISAS, Isa


@dataclass(frozen=True)
class Target:
    """The target of generated code: an ISA level, and the cache sizes that block sizes derive from."""

    isa: str = "x86_64_v3"
    lanes: int = 8  # of f32 in a register
    registers: int = 16  # vector registers that products may fill
    l1: int = 32 << 10
    l2: int = 512 << 10
    l3: int = 32 << 20
    threads: int = 1
    libraries: tuple[tuple[str, int], ...] = ()  # names and versions of those used in timing
    tf32: bool = False  # True if products of f32 may round their operands to TF32, ten bits of mantissa
    max_packed: float = 2.0  # the most bytes of packed weights, relative to the model's own
    half: DType = F32  # the storage type of weights where it is faster: F32, F16 or BF16

    @property
    def level(self) -> Isa:
        """The record of a CPU's instruction set level."""
        return ISAS[self.isa]

    def version(self, library: str) -> int:
        """Returns the version of a library, 0 if it is absent."""
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
    form: str  # name of the packing; equal sources and forms are packed once
    shape: tuple[int, ...]
    # fills zeros of this shape and type; timing skips it
    fill: Callable[[np.ndarray], object]
    dtype: DType = F32
    has_indices: bool = False  # True if kernels address memory by it: timing fills it, too

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
        """Returns the kernel with sizes in place of symbols; `to` maps its operands to values of known shape."""

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
        """Returns the least number of bytes that the kernel reads and writes.

        Each element counts once, even if broadcast; of a gather's input, only gathered elements count.
        """
        anchor = region.anchor
        gathered = anchor.inputs[0] if anchor is not None and anchor.op.moves and anchor.op.indexed else None

        def traffic_of(x: Value | Packed | KernelWorkspace) -> Size:
            if not isinstance(x, Value):
                size = x.bytes if isinstance(x, Packed) else 0
                picked = anchor is not None and anchor.op.indexed
                return minimum(size, anchor.output.type.size * anchor.output.type.dtype.size) if picked else size
            size = x.type.dtype.size
            stored = size * math.prod(d for d, stride in zip(x.type.shape, layouts[x]) if stride != 0)
            return minimum(stored, size * region.anchor.output.type.size) if x is gathered else stored

        return sum(map(traffic_of, dict.fromkeys(self.operands)))


class Template:
    """Base of all templates. `region`: the nodes that a kernel computes; `layouts`: the strides of its operands."""

    name: str = ""  # in tactics, and in timing caches on disk
    anchors: tuple[str, ...] = ()  # ops; a region's only anchor is a node of one of them
    without_tail = False  # True if no pointwise nodes and no slices may follow the anchor
    dynamic = False  # True if sizes may be dynamic
    known_sizes = "needs sizes that do not vary"  # the reason to reject dynamic sizes
    timed_only = False  # True if only timing can choose it, with a present version of its library
    inexact = False  # True if arithmetic differs from the direct form (Winograd); `strict` rules it out
    each_once = False  # True if each element's tail is computed once, from its own elements of what the tail reads

    def rejection(self, region: Region) -> str | None:
        """Returns the reason to reject the region, or None."""
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
        """Returns the reason to reject a product's type of sums or output, or its padding; or None."""
        if product.attrs.get("accumulate") is not None or product.attrs.get("to") is not None:
            return "has another type of sums or outputs"
        return "pads with another number than 0" if product.attrs.get("pad_value") or len(product.inputs) > 3 else None

    def node_rejection(self, region: Region) -> str | None:
        """Returns the reason to reject a region that has one of the anchors and no empty operands, or None."""
        return None

    def output_order(self, region: Region, value: Value, layouts: Layouts) -> Order:
        """Returns the order of axes, outermost first, in which an output is written, given the inputs' strides."""
        return row_major(value.type.rank)

    def fits(self, region: Region, value: Value, layouts: Layouts) -> bool:
        """True if the kernel can read (or write) an operand in these layouts; if not, it reads a copy."""
        raise NotImplementedError

    def copy_order(self, region: Region, value: Value, layouts: Layouts) -> Order:
        """Returns the order of axes, outermost first, for the copy of an input that does not fit."""
        return row_major(value.type.rank)

    def preferred_layout(self, region: Region, value: Value, target: Target) -> Layout | None:
        """Returns the best layout for an input that only this region reads, or None if all that fit are as good."""
        return None

    def tactics(self, region: Region, layouts: Layouts, target: Target) -> Iterable[Tactic]:
        """Returns candidates, the best guess first; none where the template has no kernel for these layouts."""
        return (Tactic(self.name, target.isa),)

    def family(self, tactic: Tactic) -> tuple[int, ...]:
        """Returns the parameters that matter most (a register tile, an algorithm).

        The tuner times one tactic of each family first, then more of the best families.
        """
        return ()

    def is_exact(self, tactic: Tactic) -> bool:
        """True if arithmetic differs from the direct form only in the order of sums, as `strict` demands."""
        return not self.inexact

    def margin(self, tactic: Tactic) -> float:
        """Returns the least share of time that it must save over tactics of smaller margins; 0 if exact."""
        return 0.02 if self.inexact else 0.0

    def tolerance(self, tactic: Tactic) -> float:
        """Returns the error that a correct kernel may have, relative to the largest value."""
        return 1e-3  # Winograd's grows with the channels, a wrong kernel's is near one

    def rounded_as(self, tactic: Tactic) -> DType:
        """Returns the type whose roundings are as large as those of the kernel's operands."""
        return F32

    def rounding(self, tactic: Tactic) -> str:
        """Describes a rounding of operands, for the summary of a build; "" without one."""
        return ""

    def sparsity(self, tactic: Tactic) -> str:
        """Describes the weights that the kernel skips, for the summary of a build; "" if none."""
        return ""

    def stored(self, tactic: Tactic) -> DType:
        """Returns the type of packed weights that are f32 in the region."""
        return F32

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        """Emits the kernel that computes the region in these layouts."""
        raise NotImplementedError


SOURCES = Path(__file__).parent / "c" / "src"
TEMPLATES: dict[str, Template] = {}  # for CPUs
GPU_TEMPLATES: dict[str, Template] = {}  # for NVIDIA GPUs, declared in `pelton.codegen.triton`
_sources: dict[str, str] = {}


def templates(isa: str) -> dict[str, Template]:
    """Returns the templates for an ISA level, or for a GPU architecture (sm_90)."""
    return GPU_TEMPLATES if isa.startswith("sm_") else TEMPLATES


def template(cls: type[Template]) -> type[Template]:
    """Declares a template, as a class decorator. Of equally fast templates, the first declared wins."""
    return _declare(cls, TEMPLATES)


def gpu_template(cls: type[Template]) -> type[Template]:
    """Declares a template for GPUs, as a class decorator."""
    return _declare(cls, GPU_TEMPLATES)


def _declare(cls: type[Template], registry: dict[str, Template]) -> type[Template]:
    if cls.name in registry:
        raise ValueError(f"template {cls.name} is declared twice")
    registry[cls.name] = cls()
    return cls


def add_source(file: str, text: str) -> None:
    """Registers a text as a kernel file, for plugin kernels."""
    _sources[file] = text


def source(file: str) -> str:
    """Returns the text of a kernel file."""
    if file not in _sources:
        _sources[file] = (SOURCES / file).read_text("utf-8")
    return _sources[file]
