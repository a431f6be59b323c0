"""Fuses several kernels into one launch: the first kernel's last program computes the tiles of the others."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from pelton.ir.dims import is_known
from pelton.ir.graph import Value
from pelton.ir.types import DType
from pelton.codegen.template import Kernel, Packed, Tactic, Template
from pelton.plan.workspace import KernelWorkspace

from .emit import with_symbol

HEAD = re.compile(r"^SIGNATURE, WARPS, STAGES = (.*)\nMULTIPLES = (.*)\n", re.M)
IMPORTS = "import triton\nimport triton.language as tl\nfrom triton.language.extra.cuda import libdevice\n"
# parameters of tactics whose programs communicate, or need scratch memory
ALONE = ("DESCRIBED", "FLAT", "PARTS", "PERSISTENT", "PHASED", "PICTURES", "STREAM")


class TritonChain(Template):
    """The template of chained kernels. It rejects every region: chains are built from kernels of other templates."""

    name = "chain"

    def rejection(self, region):
        return "chains use the kernels of other templates"


def is_chainable(tactic: Tactic) -> bool:
    """True if a tactic's kernels may be part of a chain; library kernels, which have no warps, may not."""
    chosen = dict(tactic.params)
    return "WARPS" in chosen and not any(chosen.get(name) for name in ALONE)


def chain_kernels(kernels: Sequence[Kernel]) -> Kernel:
    """Chains kernels, in this order, to one. All have as many warps, and known sizes.

    Programs are those of the first kernel. Each increments a counter atomically, which is zero before and after every
    launch; the last one sees all that the others wrote, and goes on. None waits for another, so nothing can hang. A
    barrier makes a program's own writes visible to its threads. There is no counter if the first kernel has one tile.
    """
    if not all(is_known(k.tiles) and not k.dims for k in kernels):
        raise ValueError("a chain needs sizes that do not vary")
    heads = [[ast.literal_eval(x) for x in match.groups()] for k in kernels if (match := HEAD.search(k.source))]
    operands: dict[Value | Packed | KernelWorkspace, tuple[str, bool]] = {}
    for k, ((types, _, _), whole) in zip(kernels, heads):
        for x, kind, begins in zip(k.operands, types, whole, strict=True):
            operands[x] = kind, begins and operands.get(x, (kind, True))[1]
    programs = int(kernels[0].tiles)
    counter = KernelWorkspace((1,), DType.I32, zero=True)
    if programs > 1:
        operands[counter] = "*i32", True
    (warps,) = {warps for (_, warps, _), _ in heads}
    # loops without pipelining accept any number
    stages = min((n for (_, _, n), _ in heads if n > 1), default=1)
    place = {x: i for i, x in enumerate(operands)}
    arguments = ["".join(f"a[{place[x]}], " for x in k.operands) for k in kernels]
    calls = [f"part0(({arguments[0]}), tl.program_id(0))", "tl.debug_barrier()"]
    deep = ""
    if programs > 1:
        count = f"a[{place[counter]}]"
        calls += [
            f'if tl.atomic_add({count}, 1, sem="acq_rel", scope="gpu") == {programs - 1}:',
            f"    tl.store({count}, 0)",
        ]
        deep = "    "
    for i, k in enumerate(kernels[1:], 1):
        calls += [f"{deep}tl.debug_barrier()"] * (i > 1)
        calls += (
            [f"{deep}part{i}(({arguments[i]}), tl.zeros([], tl.int32))"]
            if k.tiles == 1
            else [
                f"{deep}for tile in range(0, {k.tiles}):",
                f"{deep}    part{i}(({arguments[i]}), tl.zeros([], tl.int32) + tile)",
            ]
        )
    parts = [f"# {k.source.splitlines()[0].strip(chr(34))}\n\n{_part(k, i)}" for i, k in enumerate(kernels)]
    source = (
        f'"""{len(kernels)} kernels one after the other, in one launch."""\n'
        f"SIGNATURE, WARPS, STAGES = {tuple(kind for kind, _ in operands.values())}, {warps}, {stages}\n"
        f"MULTIPLES = {tuple(begins for _, begins in operands.values())}\n{IMPORTS}\n\n"
        + "\n\n\n".join([*parts, "@triton.jit\ndef KERNEL(a):\n    " + "\n    ".join(calls) + "\n"])
    )
    return with_symbol(Kernel(source, "KERNEL", tuple(operands), programs))


def _part(kernel: Kernel, i: int) -> str:
    """Returns the functions of a kernel with names of its own; `part…` computes the tile of a given number."""
    text = kernel.source.replace(kernel.symbol, "KERNEL").partition(IMPORTS)[2].strip()
    mine = re.compile(rf"(?<![\w.])({'|'.join(_names(text))})\b")
    text = text.replace("tl.program_id(0)", "program").replace("def KERNEL(a):", "def KERNEL(a, program):")
    return mine.sub(lambda name: f"part{i}" if name[0] == "KERNEL" else f"{name[0]}_{i}", text)


def _names(text: str) -> Iterator[str]:
    """Yields the names that a source defines at module level."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (n.id for target in node.targets for n in ast.walk(target) if isinstance(n, ast.Name))
