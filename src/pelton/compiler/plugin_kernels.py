"""Declares plugin kernels as templates, like built-in ones."""

from __future__ import annotations

from pelton import plugins
from pelton.codegen.c.templates.plugin import CPluginTemplate, declare_templates
from pelton.codegen.template import GPU_TEMPLATES, TEMPLATES
from pelton.codegen.triton.templates.plugin import TritonPluginTemplate
from pelton.ir.op import REGISTRY, Op
from pelton.plugins import CKernel, TritonKernel

_DECLARED: dict[str, Op] = {}


def declare_kernels() -> None:
    """Declares all plugin kernels registered since the last build."""
    for name, cls in plugins.registered().items():
        op = REGISTRY[name]
        if _DECLARED.get(name) is not op:
            in_c, in_triton = ([k for k in cls.kernels if isinstance(k, kind)] for kind in (CKernel, TritonKernel))
            declare_templates(TEMPLATES, CPluginTemplate, op, in_c)
            declare_templates(GPU_TEMPLATES, TritonPluginTemplate, op, in_triton)
            _DECLARED[name] = op
