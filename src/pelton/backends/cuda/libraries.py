"""The installed libraries that compute some steps of engines, by the symbol of such steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

from pelton.logs import Logger
from pelton.engine.library import LIBRARIES
from pelton.errors import EngineError

from . import cublaslt, cudnn

log = Logger("pelton.runtime")

_MODULES: dict[str, Any] = {"cublaslt": cublaslt, "cudnn": cudnn}
_CLASSES: dict[str, Any] = {"cublaslt": cublaslt.CublasLtLibrary, "cudnn": cudnn.CudnnLibrary}
assert _MODULES.keys() == set(LIBRARIES)


class VendorLibrary(Protocol):
    """A library on a GPU."""

    version: int

    def plan(self, work: Any, aligned: Sequence[int]) -> Any: ...


@lru_cache(maxsize=1)
def versions() -> Mapping[str, int]:
    """Returns the versions of the installed ones; logs the missing ones."""
    versions = {}
    for symbol, module in _MODULES.items():
        try:
            versions[symbol] = module.version()
        except EngineError as e:
            log.info("%s", e)
    return versions


def open_library(symbol: str) -> VendorLibrary:
    """Opens a library for the GPU whose context is this thread's. Raises EngineError if it is missing."""
    library: VendorLibrary = _CLASSES[symbol](_MODULES[symbol].loaded())
    return library
