"""Plugin kernels in Triton: their sources, with the blocks filled in as documented for plugins."""

from __future__ import annotations

import math
from dataclasses import replace

from pelton.codegen.c.templates.plugin import PluginTemplate, faults_of, operand_names, operand_sizes, types_of
from pelton.codegen.template import Kernel, Tactic, Target
from pelton.codegen.triton.emit import add_source, kernel
from pelton.ir.op import Op
from pelton.plan.layout import Layouts
from pelton.plan.region import Region
from pelton.plugins.kernels import PluginKernel, attribute_macros

WARPS = 4  # default of launches


class TritonPluginTemplate(PluginTemplate):
    """A `TritonKernel`."""

    suffix = ".py"

    def __init__(self, op: Op, kernel: PluginKernel, number: int):
        super().__init__(op, kernel, number)
        add_source(self.file, self.text)

    def tactics(self, region: Region, layouts: Layouts, target: Target):
        for tactic in super().tactics(region, layouts, target):
            yield replace(tactic, params=tuple({"WARPS": WARPS, **dict(tactic.params)}.items()))

    def emit(self, region: Region, layouts: Layouts, tactic: Tactic, target: Target) -> Kernel:
        node = region.anchor
        operands, names = (*node.inputs, *node.outputs), operand_names(node)
        constants = {name.upper(): i for i, name in enumerate(names)} | attribute_macros(node.attrs)
        block = "".join(f"{name} = tl.constexpr({_number(v)})\n" for name, v in constants.items())
        own = {k: v for k, v in tactic.params if k not in ("WARPS", "STAGES")}
        with faults_of(node):
            tiles = self.kernel.count("tiles", *types_of(node), own)
        return kernel(
            self.file, region, tactic, operand_sizes(names, operands, layouts), block, operands, tiles, layouts
        )


def _number(x: float | int | bool) -> str:
    """Returns a number in Python."""
    return repr(x) if math.isfinite(x) else f'float("{x}")'
