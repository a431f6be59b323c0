"""The rules, declared in the order of these imports: of the rules of a stage, the first one that applies is taken."""

from . import simplify, limits, casts  # noqa: F401
from . import views, slices, pads  # noqa: F401
from . import activations, norms, attention, rotary  # noqa: F401
from . import merge  # noqa: F401
from . import float8, integers, narrow_weights, quantized_moves  # noqa: F401
