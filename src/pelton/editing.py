"""Reads ONNX models as networks to edit, and writes networks as ONNX models."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pelton.network import Network


def import_onnx(model: str | os.PathLike[str] | bytes | Any, shapes: Mapping[str, Any] | None = None) -> Network:
    """Returns the network of an ONNX model, to edit.

    model: a path, bytes or an `onnx.ModelProto`. shapes: as for `pelton.build`, which also has the errors.
    """
    from pelton.importers import load
    from pelton.plugins import Network

    return Network.from_graph(load(model, shapes).graph)


def export_onnx(
    network: Network,
    path: str | os.PathLike[str] | None = None,
    *,
    opset: int | None = None,
    external: bool | None = None,
) -> Any:
    """Returns a network as an `onnx.ModelProto`, and writes it to `path` if there is one.

    opset: 18 or newer. Default: 21, or the first one that has all operators of the network. From 23 on, attention, RMS
    normalization and rotary embedding are one operator each; before, they are decomposed.
    external: write the weights to a file of their own, PATH.data. Default: only above 2 GB.

    Raises ModelError, naming the layer, if ONNX cannot express it. The bounds of dynamic dimensions are lost: ONNX only
    has names for them.
    """
    from pelton.exporters import to_onnx

    return to_onnx(network.graph(), path, opset=opset, external=external)
