"""Random weight files for configurations of Darknet, written without the importer."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

HEADER = struct.pack("<3iq", 0, 2, 0, 32013312)


def sections(text: str) -> list[tuple[str, dict[str, str]]]:
    found: list[tuple[str, dict[str, str]]] = []
    for line in text.splitlines():
        line = line.split("#")[0].replace(" ", "")
        if line.startswith("["):
            found.append((line.strip("[]"), {}))
        elif line:
            found[-1][1].setdefault(*line.split("="))
    return found


def random_weights(text: str, seed: int = 0) -> bytes:
    """A `.weights` file for the convolutions of a configuration; activations keep their size."""
    rng = np.random.default_rng(seed)
    (_, net), *layers = sections(text)
    channels, current, parts = [], int(net["channels"]), []
    for i, (name, options) in enumerate(layers):
        if name == "convolutional":
            n, k = int(options["filters"]), int(options["size"])
            taps = current // int(options.get("groups", 1)) * k * k
            parts.append(rng.standard_normal(n) * 0.1)
            if options.get("batch_normalize") == "1":
                parts += [rng.uniform(0.5, 1.5, n), rng.standard_normal(n) * 0.1, rng.uniform(0.5, 1.5, n)]
            parts.append(rng.standard_normal(n * taps) * np.sqrt(2 / taps))
            current = n
        elif name == "route":
            groups = int(options.get("groups", 1))
            current = sum(
                channels[int(j) + i if int(j) < 0 else int(j)] // groups for j in options["layers"].split(",")
            )
        elif name == "reorg":
            current *= int(options.get("stride", 1)) ** 2
        channels.append(current)
    return HEADER + b"".join(p.astype("<f4").tobytes() for p in parts)


def written(folder: Path, text: str, seed: int = 0) -> tuple[Path, Path]:
    """A configuration and its random weights as files."""
    cfg, weights = folder / "net.cfg", folder / "net.weights"
    cfg.write_text(text)
    weights.write_bytes(random_weights(text, seed))
    return cfg, weights
