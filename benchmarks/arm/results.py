"""The committed counts: rows by network and level, their file, their page, and the check of new counts against them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

FILE, PAGE = (Path(__file__).parent / f"results.{ending}" for ending in ("json", "md"))
MORE = 1.02  # instructions relative to the committed ones; more is an error
INT8 = ("mlperf_tiny",)
# Pelton's instructions relative to XNNPACK's, in the convolutions of a network
GATES = {"resnet20": 1.02, "mobilenet_v2": 1.02, "mlperf_tiny": 1.15}
COMPARED = "aarch64_dotprod"  # the level with the instructions that XNNPACK uses


@dataclass(frozen=True)
class CountRow:
    """Kernels of equal convolutions: what they compute, how many there are, and the instructions of all together."""

    layers: str
    tail: str  # the pointwise operators that the kernel computes, too
    tactic: str
    kernels: int
    products: int  # multiply-adds
    instructions: int
    memory: int  # loads and stores
    xnnpack: int  # instructions of XNNPACK for the convolutions alone, 0 if not counted

    @property
    def per_product(self) -> float:
        return self.instructions / self.products


@dataclass(frozen=True)
class NetworkCounts:
    """An engine: the rows of its convolutions, and the instructions of all steps."""

    rows: tuple[CountRow, ...]
    all: int

    @property
    def convolutions(self) -> int:
        return sum(r.instructions for r in self.rows)

    @property
    def xnnpack(self) -> int:
        return sum(r.xnnpack for r in self.rows)


ABOUT = """`python -m benchmarks.arm.counts` writes this section. These are instruction counts under emulation; they are
not times. Engines are built untimed (`--level 0`), for one thread and a batch of 1. A kernel's count includes its
pointwise operators. Outputs are compared with those of an engine for x86-64."""
BESIDE = """XNNPACK computes the convolutions alone, all of them directly. Pelton's kernels add residuals, too, and some
convolutions are by Winograd's algorithm."""

Measured = dict[str, dict[str, NetworkCounts]]  # by network and level


def read(path: Path = FILE) -> tuple[Measured, dict[str, str]]:
    """Returns the committed counts, and the versions of the programs that they are from."""
    if not path.exists():
        return {}, {}
    stored = json.loads(path.read_text())
    counts = {
        network: {
            level: NetworkCounts(tuple(CountRow(**row) for row in of["rows"]), of["all"])
            for level, of in levels.items()
        }
        for network, levels in stored["counts"].items()
    }
    return counts, stored["versions"]


def write(measured: Measured, versions: Mapping[str, str]) -> None:
    """Writes the file and the page."""
    counts = {network: {level: asdict(of) for level, of in levels.items()} for network, levels in measured.items()}
    FILE.write_text(json.dumps({"versions": dict(versions), "counts": counts}, indent=1) + "\n")
    PAGE.write_text(page(measured, versions))


def regressions(committed: Measured, measured: Measured) -> Iterator[str]:
    """Yields a line for each network and each convolution that needs more instructions than committed."""
    for network, levels in measured.items():
        for level, new in levels.items():
            old = committed.get(network, {}).get(level)
            if old is None:
                yield f"{network}, {level}: no committed counts; run without --check"
                continue
            pairs = [("all steps", old.all, new.all), ("all convolutions", old.convolutions, new.convolutions)]
            before, now = _by_layers(old.rows), _by_layers(new.rows)
            pairs += [(layers, before[layers], now[layers]) for layers in now if layers in before]
            for what, was, count in pairs:
                if count > was * MORE:
                    yield f"{network}, {level}, {what}: {was:,} → {count:,} instructions ({count / was - 1:+.1%})"


def _by_layers(rows: Iterable[CountRow]) -> dict[str, int]:
    """Sums up instructions by layers and tails, whatever the tactics."""
    out: dict[str, int] = {}
    for row in rows:
        key = " ".join(filter(None, (row.layers, row.tail)))
        out[key] = out.get(key, 0) + row.instructions
    return out


def page(measured: Measured, versions: Mapping[str, str]) -> str:
    """Returns the counts as a section of a page in Markdown."""
    about = ", ".join(f"{name} {version}" for name, version in versions.items())
    return (
        "\n\n".join(
            [
                "## Instructions of kernels for AArch64",
                ABOUT,
                f"{BESIDE} Versions: {about}.",
                _summary(measured),
                *(
                    section
                    for network, levels in measured.items()
                    if COMPARED in levels
                    for section in (f"### {network}, `{COMPARED}`", _table(levels[COMPARED]))
                ),
            ]
        )
        + "\n"
    )


def _summary(measured: Measured) -> str:
    head = ["network", "level", "all steps, millions", "convolutions", "per multiply-add", "XNNPACK, millions", "ratio"]
    lines = [f"| {' | '.join(head)} |", "| --- | --- | ---: | ---: | ---: | ---: | ---: |"]
    for network, levels in measured.items():
        for level, c in levels.items():
            products = sum(r.products for r in c.rows)
            beside = ["", ""]
            if level == COMPARED and c.xnnpack:
                beside = [f"{c.xnnpack / 1e6:.3f}", f"{c.convolutions / c.xnnpack:.3f}"]
            numbers = [f"{c.all / 1e6:.3f}", f"{c.convolutions / 1e6:.3f}", f"{c.convolutions / products:.4f}", *beside]
            lines.append(f"| {' | '.join([network, f'`{level}`', *numbers])} |")
    return "\n".join(lines)


def _table(counts: NetworkCounts) -> str:
    compared = counts.xnnpack > 0
    head = ["kernels", "convolutions", "tactic", "instructions", "per multiply-add", *(["ratio to XNNPACK"] * compared)]
    lines = [f"| {' | '.join(head)} |", "| ---: | --- | --- |" + " ---: |" * (len(head) - 3)]
    for r in counts.rows:
        cells = [str(r.kernels), r.layers, f"`{r.tactic}`", f"{r.instructions:,}", f"{r.per_product:.4f}"]
        lines.append(f"| {' | '.join([*cells, *([f'{r.instructions / r.xnnpack:.3f}'] if compared else [])])} |")
    return "\n".join(lines)


def missed_gates(measured: Measured) -> Sequence[str]:
    """Returns a line for each network whose convolutions need more instructions than its gate allows."""
    lines = []
    for network, gate in GATES.items():
        counts = measured.get(network, {}).get(COMPARED)
        if counts is not None and counts.xnnpack and counts.convolutions > gate * counts.xnnpack:
            lines.append(f"{network}: {counts.convolutions / counts.xnnpack:.3f} of XNNPACK's instructions, > {gate}")
    return lines
