"""Networks layer by layer: `Network`, whose methods are the operators, and `NetworkTensor`, what they take and give."""

from __future__ import annotations

from .network import Network
from .tensor import NetworkTensor

__all__ = ["Network", "NetworkTensor"]
