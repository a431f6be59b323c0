"""Writes what transparent huge pages gain into docs/install.md: the same engine with and without them, in turns.

    python -m benchmarks.huge_pages [--page docs/install.md]

Children forgo huge pages by prctl(PR_SET_THP_DISABLE): the machine keeps its mode, which must not be `never`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import pelton
from benchmarks.formats import replaced
from pelton.backends.cpu import describe
from pelton.system.probes.kernel import huge_pages
from pelton.system.probes.tree import FileTree

SIZE, CHANNELS, LAYERS = 384, 32, 8  # pixels of a side; of each of the convolutions
CHILD = """
import ctypes, json, sys, time
if sys.argv[2] == "without" and ctypes.CDLL(None).prctl(41, 1, 0, 0, 0):  # PR_SET_THP_DISABLE
    sys.exit("prctl refuses to switch huge pages off")
import numpy as np, pelton
engine = pelton.load(sys.argv[1])
x = {"image": np.random.default_rng(0).standard_normal(tuple(engine.inputs[0].shape), np.float32)}
times, context = [], engine.context()
for _ in range(12):
    start = time.perf_counter()
    context.run(x)
    times.append(time.perf_counter() - start)
print(json.dumps([times[0], min(times[1:])]))
"""


def network() -> pelton.Network:
    """Convolutions over large images: activations of 19 MB each, whose addresses change all the time."""
    net, rng = pelton.Network(), np.random.default_rng(0)
    x = net.input("image", f"f32[1, {CHANNELS}, {SIZE}, {SIZE}]")
    for _ in range(LAYERS):
        weight = rng.standard_normal((CHANNELS, CHANNELS, 3, 3)).astype(np.float32) / 17
        x = net.add(net.relu(net.convolution(x, weight, padding=1)), x)
    net.output(x, "y")
    return net


def measure(engine: Path, rounds: int) -> dict[str, tuple[float, float]]:
    """Returns medians of the first run and of the fastest later one, in seconds, with and without huge pages."""
    found: dict[str, list[list[float]]] = {"with": [], "without": []}
    for _ in range(rounds):
        for how, times in found.items():
            command = [sys.executable, "-c", CHILD, str(engine), how]
            times.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
    return {
        how: (statistics.median(t[0] for t in ts), statistics.median(t[1] for t in ts)) for how, ts in found.items()
    }


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--page", type=Path, help="write the sentence there, between its marks")
    ask.add_argument("--rounds", type=int, default=7, metavar="N")
    given = ask.parse_args()
    if (mode := huge_pages(FileTree()).mode) not in ("always", "madvise"):
        sys.exit(f"this machine has no transparent huge pages (mode {mode or 'unknown'})")
    with tempfile.TemporaryDirectory(prefix="pelton-pages-") as folder:
        engine = Path(folder) / "model.pelton"
        pelton.build(network(), level=1).save(engine)
        times = measure(engine, given.rounds)
    (first, later), (first_4k, later_4k) = times["with"], times["without"]
    known = describe()
    text = (
        f"With huge pages, the first run of {LAYERS} convolutions over {SIZE}×{SIZE} pixels of {CHANNELS} channels\n"
        f"took {first * 1e3:.1f} ms instead of {first_4k * 1e3:.1f}, a later one {later * 1e3:.1f} ms instead of "
        f"{later_4k * 1e3:.1f}\n({known['cores']:g} CPUs of {known['model']}, `python -m benchmarks.huge_pages`)."
    )
    print(text)
    if given.page:
        given.page.write_text(replaced(given.page.read_text("utf-8"), "pages", text))


if __name__ == "__main__":
    main()
