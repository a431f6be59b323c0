"""Ops by name, for programs and patterns: `from pelton.ops.words import convolution, relu`."""

from __future__ import annotations

from pelton.ops import get
from pelton.ops.op import Op


def __getattr__(name: str) -> Op:
    """Type checkers take a declared class for the class that it no longer is; here it is the op. A trailing underscore
    is left off."""
    try:
        return get(name.rstrip("_"))
    except KeyError:
        raise AttributeError(f"there is no op {name!r}") from None
