"""PyTorch modules, exported programs (.pt2) and TorchScript files, which torch itself turns into ONNX models."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pelton.importers import onnx
from pelton.importers.imported import Shape
from pelton.importers.registry import About, Format, Traceable, register
from pelton.ir.imported import Examined, Imported
from pelton.ir.unread import Unread

from .files import kind_of

if TYPE_CHECKING:
    from .export import Exported


def recognizes(source: Any) -> bool:
    """True if a source is an object of torch or a file that torch wrote. Does not import torch."""
    if isinstance(source, Traceable):
        source = source.model
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "nn"):
        if isinstance(source, torch.nn.Module):  # ScriptModules are Modules, too
            return True
        export = sys.modules.get("torch.export")
        if export is not None and isinstance(source, export.ExportedProgram):
            return True
    return kind_of(source) is not None


def load(
    source: Any,
    shapes: Mapping[str, Shape] | None = None,
    outputs: Iterable[str] | None = None,
    values: Mapping[str, Any] | None = None,
    optimum: Mapping[str, Sequence[int]] | None = None,
    accept_conversion: bool = False,
) -> Imported:
    model = _exported(source, shapes, accept_conversion)
    return onnx.load_model(model.source, shapes, outputs, values, optimum or model.examples)


def examine(
    source: Any,
    shapes: Mapping[str, Shape] | None = None,
    outputs: Iterable[str] | None = None,
    values: Mapping[str, Any] | None = None,
    optimum: Mapping[str, Sequence[int]] | None = None,
    accept_conversion: bool = False,
) -> Examined:
    model = _exported(source, shapes, accept_conversion)
    return onnx.examine_model(model.source, shapes, outputs, values, optimum or model.examples)


def unread(
    source: Any,
    shapes: Mapping[str, Shape] | None = None,
    outputs: Iterable[str] | None = None,
    values: Mapping[str, Any] | None = None,
    optimum: Mapping[str, Sequence[int]] | None = None,
    accept_conversion: bool = False,
) -> Unread:
    model = _exported(source, shapes, accept_conversion)
    return onnx.unread_model(model.source, shapes, outputs, values, optimum or model.examples)


def _exported(source: Any, shapes: Mapping[str, Shape] | None, accept: bool) -> Exported:
    """Exports a source to ONNX with torch, and compares the result with torch's."""
    from pelton.importers.conversions import compared

    from .export import export  # imports torch

    model = export(source, shapes or {})
    return model._replace(source=compared(model.source, model.reference, accept))


register(
    Format(
        "PyTorch",
        recognizes,
        load,
        examine,
        unread,
        converted=True,
        about=About(
            files="torch.nn.Module, .pt2, TorchScript",
            export="torch.export.save(torch.export.export(module, (x,)), 'model.pt2'), or the module itself",
            extra="pip install 'pelton[torch]'",
            covers="operators of torch's ONNX exporters; checkpoints (torch.save) contain no program and are refused",
            checked="PyTorch 2.13 on the CPU, eager and compiled",
        ),
    )
)
