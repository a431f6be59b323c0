"""Engines for WebAssembly as packages for browsers and node: the output of `pelton export --target wasm`."""

from .write import LEVELS, refuse_dynamic, write

__all__ = ["LEVELS", "refuse_dynamic", "write"]
