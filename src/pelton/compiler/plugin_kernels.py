"""Makes the kernels of plugins templates like those that are built in."""

from __future__ import annotations

from pelton import plugins
from pelton.codegen.c.templates.plugin import declare_c_kernels
from pelton.ir.op import REGISTRY, Op

_DECLARED: dict[str, Op] = {}


def declare_kernels() -> None:
    """Declares the kernels of all plugins that were registered since the last build."""
    for name, cls in plugins.registered().items():
        op = REGISTRY[name]
        if _DECLARED.get(name) is not op:
            declare_c_kernels(op, cls.kernels)
            _DECLARED[name] = op
