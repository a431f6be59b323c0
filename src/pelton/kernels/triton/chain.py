"""Several kernels as one launch: one program makes the tiles of each, one after the other, and goes on to the next behind a barrier of its threads."""
from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from pelton.ir.dims import is_known
from pelton.ir.graph import Value
from pelton.kernels.template import Kernel, Packed, Tactic, Template

from .emit import named

HEAD = re.compile(r"^SIGNATURE, WARPS, STAGES = (.*)\nMULTIPLES = (.*)\n", re.M)
IMPORTS = "import triton\nimport triton.language as tl\nfrom triton.language.extra.cuda import libdevice\n"
ALONE = ("DESCRIBED", "PERSISTENT", "PICTURES")          # tactics whose programs count each other, or need scratch


class Chain(Template):
    """What a chain's kernel comes from. No region is offered to it: chains are made of kernels that there are."""

    name = "chain"

    def refuses(self, region):
        return "chains are made of what others take"


def takes(tactic: Tactic) -> bool:
    """Whether kernels of a tactic may be part of a chain."""
    return not any(dict(tactic.params).get(name) for name in ALONE)


def chained(kernels: Sequence[Kernel]) -> Kernel:
    """One kernel that does what these do, in this order, on a grid of one program. All have as many warps, and sizes that are known.

    What a program writes to memory its own threads find there behind a barrier: no other program has to be waited for, so that nothing can hang.
    """
    if not all(is_known(k.tiles) and not k.dims for k in kernels):
        raise ValueError("a chain needs sizes that do not vary")
    heads = [[ast.literal_eval(x) for x in HEAD.search(k.source).groups()] for k in kernels]            # type: ignore[union-attr]
    operands: dict[Value | Packed, tuple[str, bool]] = {}
    for k, ((types, _, _), whole) in zip(kernels, heads):
        for x, kind, begins in zip(k.operands, types, whole, strict=True):
            operands[x] = kind, begins and operands.get(x, (kind, True))[1]
    (warps,) = {warps for (_, warps, _), _ in heads}
    stages = min((n for (_, _, n), _ in heads if n > 1), default=1)                                     # loops that are not pipelined take any number
    place = {x: i for i, x in enumerate(operands)}
    parts, calls = list[str](), list[str]()
    for i, k in enumerate(kernels):
        parts.append(f"# {k.source.splitlines()[0].strip(chr(34))}\n\n{_part(k, i)}")
        given = "".join(f"a[{place[x]}], " for x in k.operands)
        calls += ["tl.debug_barrier()"] * (i > 0)
        calls += [f"part{i}(({given}), tl.program_id(0))"] if k.tiles == 1 else [
            f"for tile in range(0, {k.tiles}):", f"    part{i}(({given}), tl.program_id(0) + tile)"]
    signature = tuple(kind for kind, _ in operands.values())
    source = (f'"""{len(kernels)} kernels one after the other, in one launch."""\nSIGNATURE, WARPS, STAGES = {signature}, {warps}, {stages}\n'
              f"MULTIPLES = {tuple(begins for _, begins in operands.values())}\n{IMPORTS}\n\n"
              + "\n\n\n".join([*parts, "@triton.jit\ndef KERNEL(a):\n    " + "\n    ".join(calls) + "\n"]))
    return named(Kernel(source, "KERNEL", tuple(operands), 1))


def _part(kernel: Kernel, i: int) -> str:
    """The functions of a kernel, all names its own; `part…` makes the tile whose number it is given."""
    text = kernel.source.replace(kernel.symbol, "KERNEL").partition(IMPORTS)[2].strip()
    mine = re.compile(rf"(?<![\w.])({'|'.join(_names(text))})\b")
    text = text.replace("tl.program_id(0)", "program").replace("def KERNEL(a):", "def KERNEL(a, program):")
    return mine.sub(lambda name: f"part{i}" if name[0] == "KERNEL" else f"{name[0]}_{i}", text)


def _names(text: str) -> Iterator[str]:
    """What a source defines."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (n.id for target in node.targets for n in ast.walk(target) if isinstance(n, ast.Name))
