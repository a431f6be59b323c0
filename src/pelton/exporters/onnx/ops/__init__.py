"""Writers of ops, by family."""

from . import control, elements, images, norms  # noqa: F401  (register them)
from . import recurrent, reductions, shapes, trees, windows  # noqa: F401
