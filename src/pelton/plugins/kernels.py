"""Plugin kernels as users write them: a source with two marked blocks, and its launch."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pelton.errors import InputError
from pelton.ir.dims import Dim, Size, Undecided
from pelton.ir.types import F32, TensorType

from .includes import with_paths

MAX_COUNT = (1 << 31) - 1  # limit of tiles, and of numbers in tactics and attributes

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
    takes(inputs, outputs): the reason why it cannot compute operands of these types and shapes, as a text, or None
        where it can. Without it, the kernel is for f32 alone.
    strided: whether it reads and writes operands of any strides, as X_S0, X_S1, … say. Without it, operands are dense
        in the order of their axes, and copied first where they are not.
    dynamic: whether sizes may be known only at run time: X_0 and its like are then macros that read them from `a`,
        which must be in scope, and not constants. Without it, the kernel is for operands of known sizes alone.
    """

    source: str | Path
    tiles: Callable[..., Size]
    tactics: Tactics = ({},)
    takes: Callable[[Types, Types], str | None] | None = None
    strided: bool = False
    dynamic: bool = False

    def __init_subclass__(cls) -> None:
        """Adds the fields' descriptions to each class, as `help` shows no text of a base."""
        own, common = (inspect.cleandoc(c.__doc__ or "") for c in (cls, PluginKernel))
        cls.__doc__ = "\n\n".join((own, common.partition("\n\n")[2]))

    def text(self) -> str:
        """Returns the source; InputError if it cannot be read, or lacks a block or the function."""
        try:
            path = self.source if isinstance(self.source, Path) else None
            text = self.source if path is None else with_paths(path.read_text("utf-8"), path.parent)
        except (OSError, UnicodeDecodeError) as e:
            raise InputError(f"the source of a kernel, {self.source}, cannot be read: {e}") from None
        if not isinstance(text, str):
            raise InputError(f"the source of a kernel must be a text or a Path, got {text!r:.99}")
        for mark in ("region", "tactic"):
            if text.count(f"<{mark}>") != 1 or text.count(f"</{mark}>") != 1:
                raise InputError(
                    f"the source of a kernel needs one line with <{mark}> and one with </{mark}> in a comment, got"
                    f" {text.count(f'<{mark}>')} and {text.count(f'</{mark}>')}; a block may be empty"
                )
        if "KERNEL" not in text:
            raise InputError("the source of a kernel needs a function KERNEL, got none")
        return text

    def choices(self, inputs: Types, outputs: Types) -> list[dict[str, int]]:
        """Returns the tactics for these types; InputError unless they are numbers by name."""
        tactics = self._ask("tactics", inputs, outputs) if callable(self.tactics) else self.tactics
        if not isinstance(tactics, Iterable):
            raise InputError(f"`tactics` must be or return a list of tactics, got {tactics!r:.99}")
        choices = []
        for t in tactics:
            if not isinstance(t, Mapping) or not all(
                isinstance(k, str) and k.isidentifier() and isinstance(v, int) and abs(v) <= MAX_COUNT
                for k, v in t.items()
            ):
                raise InputError(f"a tactic maps names to whole numbers, as in {{'ROWS': 4}}, got {t!r:.99}")
            choices.append(dict(t))
        return choices

    def rejection(self, inputs: Types, outputs: Types) -> str | None:
        """Returns the reason why it cannot compute these types, or None."""
        if self.takes is not None:
            why = self._ask("takes", inputs, outputs)
            if why is not None and not isinstance(why, str):
                raise InputError(f"`takes` must return a reason for rejection, a text, or None, got {why!r:.99}")
            why = why and f"its `takes` returned: {why}"
        else:
            others = dict.fromkeys(t.dtype.value for t in (*inputs, *outputs) if t.dtype is not F32)
            why = f"its kernel supports f32 only (no takes=), got {', '.join(others)}" if others else None
        return why or (None if self.choices(inputs, outputs) else "there is no tactic for these types")

    def count(self, function: str, inputs: Types, outputs: Types, tactic: Mapping[str, int]) -> Size:
        """Returns the result of `tiles` or `scratch`; InputError unless it is a number."""
        count = self._ask(function, inputs, outputs, **tactic)
        limit = MAX_COUNT if function == "tiles" else sys.maxsize
        if not isinstance(count, Dim) and not (isinstance(count, (int, np.integer)) and 0 <= count <= limit):
            raise InputError(f"`{function}` must return an integer from 0 to {limit}, got {count!r:.99}")
        return count if isinstance(count, Dim) else int(count)

    def _ask(self, function: str, *types: Types, **tactic: int) -> Any:
        """Calls a function of the kernel; InputError with its name if it raises."""
        try:
            return getattr(self, function)(*types, **tactic)
        except Undecided:
            raise
        except Exception as e:  # any error of the plugin
            raise InputError(f"`{function}` raised {type(e).__name__}: {e}") from e


@dataclass(frozen=True)
class CKernel(PluginKernel):
    """A kernel for CPUs in C, compiled by the clang of the ziglang wheel for every ISA level.

    The function is `void KERNEL(const args *table, idx begin, idx end, void *scratch)`, which computes the tiles from
    `begin` up to `end`. Its first line is `OWN_ARGS(a, table);`, its second may be `const operands o = open(a);`: o has
    a pointer for each operand, by the names that the plugin's `infer` gives them, and y0, y1, … for the outputs. The
    block `region` defines, for an operand x: X_0, X_1, … its sizes, X_S0, X_S1, … its strides in elements, X_SIZE the
    number of elements; of outputs Y0_0 and so on; and for an attribute beta the macro BETA (text and lists are left
    out). `vec.h` of src/pelton/codegen/c/src is there to be included: vectors vf32 of VL lanes, ld_f32, st_f32, …; so
    are headers beside a source that is a Path.

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
    """Returns the attributes that kernels can read, by the names of their macros."""
    return {k.upper(): v for k, v in attrs.items() if isinstance(v, (bool, int, float))}
