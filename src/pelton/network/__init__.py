"""Networks layer by layer: `Network`, with operators as methods, and `NetworkTensor`, their operands and results."""

from __future__ import annotations

from .network import Network
from .tensor import NetworkTensor

__all__ = ["Network", "NetworkTensor"]
