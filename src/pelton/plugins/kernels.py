"""Kernels of plugins, as users write them: a source with two marked blocks, and how it is run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pelton.errors import InputError
from pelton.ir.dims import Size
from pelton.ir.types import TensorType

Types = Sequence[TensorType]
Tactics = Sequence[Mapping[str, int]] | Callable[..., Sequence[Mapping[str, int]]]


@dataclass(frozen=True)
class PluginKernel:
    """What kernels in any language have.

    source: the text, or the path of a file, with one line `<region>` and one `</region>` in comments, and the same of
        `<tactic>`. What stands between these lines lets the file compile by itself, and is replaced: the block `region`
        by sizes, strides, attributes and pointers, the block `tactic` by the numbers of one tactic.
    tiles(inputs, outputs, **tactic): the number of tiles, which are independent of each other: threads share them.
    tactics: the choices of the kernel's own numbers, as {"ROWS": 4}, the best guess first; or a function of (inputs,
        outputs) that gives them. All are timed.
    takes(inputs, outputs): the reason why it cannot compute these types, or None. Default: f32 alone.
    strided: whether it reads and writes any strides; otherwise operands are dense in the order of their axes, and
        copied where they are not.
    dynamic: whether sizes may be known only at run time: macros then read them from `a`, which has to be in scope.
    """

    source: str | Path
    tiles: Callable[..., Size]
    tactics: Tactics = ({},)
    takes: Callable[[Types, Types], str | None] | None = None
    strided: bool = False
    dynamic: bool = False

    def text(self) -> str:
        """The source; InputError where it lacks a block."""
        text = self.source.read_text("utf-8") if isinstance(self.source, Path) else self.source
        for mark in ("region", "tactic"):
            if text.count(f"<{mark}>") != 1 or text.count(f"</{mark}>") != 1:
                raise InputError(
                    f"the source of a kernel needs one line with <{mark}> and one with </{mark}> in a comment, got"
                    f" {text.count(f'<{mark}>')} and {text.count(f'</{mark}>')}; a block may be empty"
                )
        return text

    def choices(self, inputs: Types, outputs: Types) -> list[dict[str, int]]:
        """The tactics for these types; InputError where they are no numbers by name."""
        found = self.tactics(inputs, outputs) if callable(self.tactics) else self.tactics
        choices = [dict(t) for t in found]
        for t in choices:
            if not all(isinstance(k, str) and k.isidentifier() and isinstance(v, int) for k, v in t.items()):
                raise InputError(f"a tactic maps names to whole numbers, as in {{'ROWS': 4}}, got {t!r}")
        return choices


@dataclass(frozen=True)
class CKernel(PluginKernel):
    """A kernel for CPUs in C, compiled by the clang of the ziglang wheel for every ISA level.

    The function is `void KERNEL(const args *table, idx begin, idx end, void *scratch)`, which computes the tiles from
    `begin` up to `end`. Its first line is `OWN_ARGS(a, table);`, its second may be `const operands o = open(a);`: o has
    a pointer for each operand, by the names that the plugin's `infer` gives them, and y0, y1, … for the outputs. The
    block `region` defines, for an operand x: X_0, X_1, … its sizes, X_S0, X_S1, … its strides in elements, X_SIZE the
    number of elements; of outputs Y0_0 and so on; and for an attribute beta the macro BETA (text and lists are left
    out). `vec.h` of src/pelton/codegen/c/src is there to be included: vectors vf32 of VL lanes, ld_f32, st_f32, ….

    scratch(inputs, outputs, **tactic): bytes of memory for each thread.
    """

    scratch: Callable[..., Size] | None = None


@dataclass(frozen=True)
class TritonKernel(PluginKernel):
    """A kernel for NVIDIA GPUs in Triton: `def KERNEL(a)`, of which program i computes tile i (`tl.program_id(0)`).

    The source begins with a docstring and `import triton`, `import triton.language as tl`. `a` is the tuple of
    pointers, inputs first. The block `region` defines the same names as for C, as constants, and for an operand x its
    place in `a`, X. A tactic may have WARPS and STAGES, which are those of the launch.
    """

    def text(self) -> str:
        text = super().text()
        if not text.startswith('"""') or '"""\n' not in text[3:]:
            raise InputError("the source of a kernel in Triton begins with a docstring, whose end is the end of a line")
        return text


def attribute_macros(attrs: Mapping[str, Any]) -> dict[str, float | int | bool]:
    """Attributes that kernels can read, by the names of their macros."""
    return {k.upper(): v for k, v in attrs.items() if isinstance(v, (bool, int, float))}
