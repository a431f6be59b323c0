"""Ops by name, for programs and patterns: `from pelton.ops.words import convolution, relu`."""

from __future__ import annotations

from pelton.ops import get
from pelton.ops.op import Op


def __getattr__(name: str) -> Op:
    """Returns an op by name, without a trailing underscore. Type checkers see declared classes otherwise; here it is
    the op."""
    try:
        return get(name.rstrip("_"))
    except KeyError:
        raise AttributeError(f"there is no op {name!r}") from None
