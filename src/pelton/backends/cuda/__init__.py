"""The CUDA back end: bundles of cubins, the driver, and what stands for a GPU where there is none. Importing it needs neither a driver nor a package."""
from .bundle import Cubin, pack, unpack
from .machine import describe, target

__all__ = ["Cubin", "describe", "pack", "target", "unpack"]
