"""Plugin kernels in C: their sources, with the blocks filled in as documented for plugins."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pelton.codegen.c.emit import constants, kernel, memory_type, number
from pelton.codegen.template import GPU_TEMPLATES, SOURCES, TEMPLATES, Kernel, Tactic, Target, Template, add_source
from pelton.errors import BuildError, InputError
from pelton.ir.dims import Size
from pelton.ir.graph import Node, Value
from pelton.ir.op import Op
from pelton.ir.types import F32
from pelton.plan.layout import Layouts, dense, same_memory
from pelton.plan.region import Region
from pelton.plugins.includes import with_included
from pelton.plugins.kernels import CKernel, PluginKernel, attribute_macros


class PluginTemplate(Template):
    """Base of templates of one kernel of a plugin."""

    without_tail = True
    known_sizes = "its kernel is for known sizes (dynamic=True is missing)"
    suffix = ""

    def __init__(self, op: Op, kernel: PluginKernel, number: int):
        self.name = f"{op.name}_{number}" if number else op.name
        self.anchors, self.dynamic = (op.name,), kernel.dynamic
        self.kernel, self.file, self.text = kernel, f"plugin:{self.name}{self.suffix}", kernel.text()

    def node_rejection(self, region: Region) -> str | None:
        node = region.anchor
        with faults_of(node):
            return self.kernel.rejection(*types_of(node))

    def fits(self, region: Region, value: Value, layouts: Layouts) -> bool:
        shape = value.type.shape
        return self.kernel.strided or same_memory(shape, layouts[value], dense(shape))

    def family(self, tactic: Tactic) -> tuple[int, ...]:
        return tuple(v for _, v in tactic.params)  # all of them are timed

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        with faults_of(region.anchor):
            choices = self.kernel.choices(*types_of(region.anchor))
        for choice in choices:
            yield Tactic(self.name, target.isa, tuple(choice.items()))


class CPluginTemplate(PluginTemplate):
    """A `CKernel`."""

    suffix = ".c"
    kernel: CKernel

    def __init__(self, op: Op, kernel: PluginKernel, number: int):
        super().__init__(op, kernel, number)
        add_source(self.file, self.text)

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node = region.anchor
        operands, names = (*node.inputs, *node.outputs), operand_names(node)
        block = constants(**operand_sizes(names, operands, layouts))
        for name, v in attribute_macros(node.attrs).items():
            block += f"#define {name} {number(v, F32) if isinstance(v, float) else int(v)}\n"
        pointers = [
            f"{'const ' if i < len(node.inputs) else ''}{memory_type(v.type.dtype)} *{name};"
            for i, (name, v) in enumerate(zip(names, operands))
        ]
        opened = ", ".join(f".{name} = a[{i}].p" for i, name in enumerate(names))
        block += (
            f"typedef struct {{ {' '.join(pointers)} }} operands;\n"
            f"AI operands open(const args *a) {{ return (operands){{ {opened} }}; }}\n"
        )
        arguments = (*types_of(node), dict(tactic.params))
        with faults_of(node):
            tiles = self.kernel.count("tiles", *arguments)
            scratch = self.kernel.count("scratch", *arguments) if self.kernel.scratch else 0
        return kernel(self.file, region, tactic, block, operands, tiles, scratch=scratch)


def declare_templates(
    registry: dict[str, Template], made: type[PluginTemplate], op: Op, kernels: Sequence[PluginKernel]
) -> None:
    """Declares templates for a plugin's kernels, in place of those that its class had before."""
    for name in [n for n, t in registry.items() if isinstance(t, PluginTemplate) and t.anchors == (op.name,)]:
        del registry[name]
    for i, k in enumerate(kernels):
        template = made(op, k, i)
        registry[template.name] = template


def own_sources(node: Node | None) -> list[str]:
    """Returns the kernel sources of a node's plugin, with their includes; none for other nodes."""
    if node is None or node.op.instance is None:
        return []
    return [
        with_included(t.text, SOURCES)
        for t in (*TEMPLATES.values(), *GPU_TEMPLATES.values())
        if isinstance(t, PluginTemplate) and node.op.name in t.anchors
    ]


def operand_names(node: Node) -> list[str]:
    """Returns the names of a node's operands in kernels: the parameters of `infer` or `layers`, and y0, y1, … for
    outputs."""
    instance: Any = node.op.instance
    plugin = instance(**node.attrs)
    if hasattr(plugin, "layers"):
        parameters = list(inspect.signature(plugin.layers).parameters.values())[1:]  # except the network
    else:
        parameters = list(inspect.signature(plugin.infer).parameters.values())
    names = [p.name for p in parameters if p.kind is not p.VAR_POSITIONAL]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "x")
    names += [f"{rest}{i}" for i in range(len(node.inputs) - len(names))]
    return [*names[: len(node.inputs)], *(f"y{i}" for i in range(len(node.outputs)))]


def operand_sizes(names: list[str], operands: tuple[Value, ...], layouts: Layouts) -> Mapping[str, Size]:
    """Returns X_0, X_S0, X_SIZE, … of every operand."""
    sizes: dict[str, Size] = {}
    for name, v in zip(names, operands):
        prefix = name.upper()
        sizes |= {f"{prefix}_{i}": d for i, d in enumerate(v.type.shape)}
        sizes |= {f"{prefix}_S{i}": s for i, s in enumerate(layouts[v])}
        sizes[f"{prefix}_SIZE"] = math.prod(v.type.shape)
    return sizes


@contextmanager
def faults_of(node: Node) -> Iterator[None]:
    """Turns an InputError of the block, about a plugin's kernel, into a BuildError that names the layer."""
    try:
        yield
    except InputError as e:
        raise BuildError(
            f"the kernel of plugin {node.op.name} is at fault: {e} (layer {node.name or node.op.name!r})"
        ) from e


def types_of(node: Node) -> tuple[tuple, tuple]:
    return tuple(v.type for v in node.inputs), tuple(v.type for v in node.outputs)
