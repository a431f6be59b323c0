"""Writers of ops, one file per family; importing this registers them."""

from __future__ import annotations

from . import elements, expansions, picks, products, quantize  # noqa: F401  (registers)
from . import recurrent, reductions, shapes, windows  # noqa: F401  (registers)
