"""The figures of networks in a browser, and their page."""

from __future__ import annotations

import datetime
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pelton.backends.cpu import describe
from pelton.version import VERSION

RUNTIMES = {"pelton": "Pelton", "onnxruntime": "onnxruntime-web", "tfjs": "TF.js"}
PEERS = tuple(RUNTIMES)[1:]
TOLERANCE = 1e-4  # of the largest magnitude


@dataclass(frozen=True)
class NetworkFigures:
    """What driver.mjs measured on a network.

    off: runtime → largest difference from onnxruntime-web's outputs relative to their largest magnitude. times, by
    runtime, and threads, by the number of Pelton's threads: "ms" and the medians of "rounds". load: runtime → ms of
    each page. code: runtime → "wasm" and "scripts" → "raw" and "gzip" bytes.
    """

    name: str
    title: str
    off: Mapping[str, float | str]
    times: Mapping[str, Mapping[str, Any]]
    threads: Mapping[str, Mapping[str, Any]]
    load: Mapping[str, Sequence[float]]
    code: Mapping[str, Mapping[str, Mapping[str, int]]]
    chromium: str

    def ms(self, runtime: str) -> float | None:
        return self.times[runtime]["ms"] if runtime in self.times else None

    @property
    def ratio(self) -> float:
        """The time of the fastest peer, relative to Pelton's."""
        return min(self.times[p]["ms"] for p in PEERS if p in self.times) / self.times["pelton"]["ms"]

    @property
    def thread_ratio(self) -> float:
        """The time of one thread, relative to that of two."""
        return self.threads["1"]["ms"] / self.threads["2"]["ms"]

    @property
    def spread(self) -> float:
        """Pelton's slowest round, relative to its fastest."""
        rounds = self.times["pelton"]["rounds"]
        return max(rounds) / min(rounds)


def wrong(f: NetworkFigures) -> Iterator[str]:
    """Yields a line for each runtime with outputs out of tolerance."""
    for runtime, off in f.off.items():
        if not float(off) <= TOLERANCE:
            yield f"{f.name}: outputs of {RUNTIMES.get(runtime, runtime)} differ by {off} of the largest, > {TOLERANCE}"


def line(f: NetworkFigures) -> str:
    """Returns the figures of a network for the terminal."""
    times = ", ".join(f"{RUNTIMES[r]} {t['ms']:.3f} ms" for r, t in f.times.items())
    return (
        f"{f.name}: {times}; {f.ratio:.2f} of the better peer, two threads {f.thread_ratio:.2f} of one,"
        f" off {max(map(float, f.off.values())):.1e}"
    )


def page(figures: Sequence[NetworkFigures], versions: Mapping[str, str], *, rounds: int, level: int) -> str:
    """Returns the page of figures, in Markdown."""
    about = ", ".join(f"{package} {version}" for package, version in versions.items())
    geomean = math.exp(statistics.fmean(math.log(f.ratio) for f in figures))
    threads = math.exp(statistics.fmean(math.log(f.thread_ratio) for f in figures))
    return f"""# Networks in a browser

Written by `make bench-web` on {datetime.date.today().isoformat()}: Pelton {VERSION}
(`pelton export --target wasm --level {level}`) beside {about}
in headless Chromium {figures[0].chromium} with relaxed SIMD, on {describe()["model"]}.

All runtimes are in one page, each with one thread, and run in turns on the same random input. A time is the median of
{rounds} rounds, each at least 5 runs and 50 ms; *spread* is Pelton's slowest round by its fastest. *off* is the largest
difference of any runtime's outputs from those of onnxruntime-web, relative to the largest magnitude; outputs within
{TOLERANCE:.0e} are right. TF.js runs what its operators express: convolutional networks.

## Times

{_table(_times(figures))}

Geometric mean of the better peer's time by Pelton's: **{geomean:.2f}**.

## Two threads

Pelton in a worker, `start({{ threads }})`, messages included.

{_table(_threads(figures))}

Geometric mean: {threads:.2f}.

## Time to load

From an empty page to the first outputs, scripts, weights and the first run included; the server is on the same machine.

{_table(_loads(figures))}

## Code

What a page fetches beside the weights, in KB.

{_table(_code(figures))}
"""


def _times(figures: Sequence[NetworkFigures]) -> list[list[str]]:
    rows = [["network", *(f"{title}, ms" for title in RUNTIMES.values()), "better peer / Pelton", "spread", "off"]]
    for f in figures:
        off = max(map(float, f.off.values()))
        rows.append([f.title, *(_ms(f.ms(r)) for r in RUNTIMES), f"{f.ratio:.2f}", f"{f.spread:.2f}", f"{off:.1e}"])
    return rows


def _threads(figures: Sequence[NetworkFigures]) -> list[list[str]]:
    rows = [["network", "1 thread, ms", "2 threads, ms", "1 / 2"]]
    for f in figures:
        rows.append([f.title, *(_ms(f.threads[n]["ms"]) for n in "12"), f"{f.thread_ratio:.2f}"])
    return rows


def _loads(figures: Sequence[NetworkFigures]) -> list[list[str]]:
    rows = [["network", *(f"{title}, ms" for title in RUNTIMES.values())]]
    for f in figures:
        rows.append([f.title, *(f"{statistics.median(f.load[r]):.0f}" if r in f.load else "" for r in RUNTIMES)])
    return rows


def _code(figures: Sequence[NetworkFigures]) -> list[list[str]]:
    rows = [["code", ".wasm", ".wasm, gzip", "scripts", "scripts, gzip"]]
    for runtime, title in RUNTIMES.items():
        measured = [f for f in figures if runtime in f.code]
        # those of peers are the same for all networks
        for f in measured if runtime == "pelton" else measured[:1]:
            sizes = [f.code[runtime][kind][form] for kind in ("wasm", "scripts") for form in ("raw", "gzip")]
            rows.append([f"{title}, {f.title}" if runtime == "pelton" else title, *(f"{n / 1000:,.1f}" for n in sizes)])
    return rows


def _ms(ms: float | None) -> str:
    return "" if ms is None else f"{ms:#.3g}".rstrip(".")


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *body]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
