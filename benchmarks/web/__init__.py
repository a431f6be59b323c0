"""Engines for WebAssembly beside other runtimes in a browser: `python -m benchmarks.web`."""
