"""Engines for WebAssembly as packages for browsers and node: the output of `pelton export --target wasm`."""

from .write import LEVELS, write

__all__ = ["LEVELS", "write"]
