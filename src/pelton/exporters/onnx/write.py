"""Writes a program as an ONNX model, optionally to a file."""

from __future__ import annotations

import os

import onnx

from pelton.errors import InputError, ModelError
from pelton.ir.graph import Graph

from .file import put_arrays, save
from .program import OLDEST, to_model
from .schemas import Unwritable, with_opset

DEFAULT = 21  # the opset unless a program needs another one: most runtimes have all of its operators


def to_onnx(
    graph: Graph,
    path: str | os.PathLike[str] | None = None,
    *,
    opset: int | None = None,
    external: bool | None = None,
) -> onnx.ModelProto:
    """Returns the program as an ONNX model, and writes it to a file if a path is given.

    opset: 18 and up; by default 21, or another one with all operators of the program. From 23 on, attention, RMS
        normalizations and rotary embeddings are one operator each; before, they are expanded.
    external: True to store weights in a separate file, PATH.data, the default above 2 GB. The returned model then
        refers to that file.

    Raises ModelError, which names the operator, for operators without an ONNX form.
    """
    newest = onnx.defs.onnx_opset_version()
    if opset is not None and not OLDEST <= opset <= newest:
        raise InputError(f"opsets from {OLDEST} to {newest} can be written, got {opset}")
    if external and path is None:
        raise InputError("weights in a file of their own need a path for the model")
    try:
        model, arrays = (
            with_opset(min(DEFAULT, newest), OLDEST, lambda tried: to_model(graph, tried))
            if opset is None
            else to_model(graph, opset)
        )
    except Unwritable as e:
        raise ModelError(_message(e, graph)) from None
    if path is not None:
        return save(model, arrays, path, external)
    put_arrays(model, arrays)
    return model


def _message(e: Unwritable, graph: Graph) -> str:
    node = e.node
    where = f"{node.op.name} (layer {node.name or node.outputs[0].name!r})" if node else f"network {graph.name!r}"
    return f"{where} cannot be written to ONNX: {e}"
