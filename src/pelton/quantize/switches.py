"""Runs an engine with switches, and measures the effect of each setting on the outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from pelton.errors import Cancelled
from pelton.metrics import Noise
from pelton.runtime import Engine


def noises(
    engine: Engine,
    switches: str,
    settings: Sequence[np.ndarray],
    feeds: Sequence[Mapping[str, np.ndarray]],
    progress: Callable[[int, int], bool | None] | None = None,
) -> list[dict[str, Noise]]:
    """Returns, for each setting, output → its noise relative to the engine with all switches at 0, over all feeds.

    switches: the name of their input. progress: called with the completed and the total number of runs. Cancelled if it
    returns False.
    """
    context = engine.context()
    off = np.zeros_like(settings[0], np.float32) if len(settings) else np.zeros(0, np.float32)
    noises: list[dict[str, Noise]] = [{p.name: Noise() for p in engine.outputs} for _ in settings]
    total = len(feeds) * (len(settings) + 1)
    for number, feed in enumerate(feeds):
        exact: dict[str, np.ndarray] = {}
        for i, setting in enumerate((off, *settings)):
            done = number * (len(settings) + 1) + i + 1
            if progress is not None and progress(done, total) is False:
                raise Cancelled(f"cancelled in run {done} of {total}")
            outputs = context.run({**feed, switches: setting.astype(np.float32)})
            if not i:
                exact = {name: np.array(a) for name, a in outputs.items()}
                continue
            for name, noise in noises[i - 1].items():
                if exact[name].dtype.kind in "fiub":
                    noise.add(exact[name], outputs[name])
    return noises


def together(noise: Iterable[Noise]) -> float:
    """Sums the ratio of noise power to signal power over outputs."""
    return sum(n.ratio for n in noise)
