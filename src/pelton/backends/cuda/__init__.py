"""The CUDA back end: bundles of cubins, the driver, and a substitute for an absent GPU. Importing it needs neither a
driver nor a package."""

from .bundle import pack, unpack
from .machine import describe

__all__ = ["describe", "pack", "unpack"]
