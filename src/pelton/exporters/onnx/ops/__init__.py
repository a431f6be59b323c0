"""Writers of ops, by family."""

from . import control, elements, images, norms, recurrent, reductions, shapes, trees, windows  # noqa: F401  (register them)
