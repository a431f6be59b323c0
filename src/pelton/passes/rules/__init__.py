"""The rules, declared in the order of these imports; within a stage, the first match wins."""

from . import simplify, limits, casts  # noqa: F401
from . import views, slices, pads  # noqa: F401
from . import activations, norms, attention, rotary  # noqa: F401
from . import merge  # noqa: F401
from . import float8, integers, few_bits, narrow_weights, quantized_moves  # noqa: F401
