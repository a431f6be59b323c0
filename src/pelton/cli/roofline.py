"""The roofline of a machine (Williams et al. 2009): the bound of each step, and a plot of all of them as SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from . import text

SHORT = 1e3  # nanoseconds: about the start of a step on all threads
WIDTH, HEIGHT = 1000, 655
LEFT, RIGHT, TOP, BOTTOM = 72, 780, 64, 580  # of the field with the dots
AREA = 14_000  # square pixels of all dots together
SMALLEST = 2.5  # radius in pixels
COLOURS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5", "#9c6b4e", "#9498a0")
OTHERS = COLOURS[-1]  # templates after the first nine
QUIET, MIDDLE, END = 'fill="#666"', 'text-anchor="middle"', 'text-anchor="end"'


@dataclass(frozen=True)
class Roof:
    """The peak of a machine: f32 operations and bytes of memory per nanosecond."""

    gflops: float
    gbytes: float

    def best(self, other: Roof) -> Roof:
        """Returns the better of two measurements."""
        return Roof(max(self.gflops, other.gflops), max(self.gbytes, other.gbytes))

    def at(self, intensity: float) -> float:
        """Returns the highest possible GFLOP/s of a step with `intensity` operations per byte."""
        return min(self.gflops, self.gbytes * intensity)

    def bound(self, flops: float, nbytes: float) -> tuple[str, float]:
        """Returns the bound of a step, "compute" or "memory" ("" if it does too little of both), and its lower bound in
        nanoseconds."""
        compute, memory = flops / self.gflops, nbytes / self.gbytes
        least = max(compute, memory)
        if least < SHORT:
            return "", least
        return ("memory" if memory > compute else "compute"), least


def kind(tactic: str) -> str:
    """Returns the template of a tactic."""
    return tactic.partition(":")[0]


@dataclass(frozen=True)
class Axis:
    """A logarithmic axis: values from `minimum` to `maximum` on pixels from `start` to `end`."""

    minimum: float
    maximum: float
    start: float
    end: float

    def at(self, value: float) -> float:
        return self.start + (self.end - self.start) * math.log(value / self.minimum) / math.log(
            self.maximum / self.minimum
        )

    def ticks(self) -> list[float]:
        """Returns 1, 2 and 5 of every power of ten, or the powers alone if there are many."""
        steps = (1, 2, 5) if self.maximum / self.minimum < 1e5 else (1,)
        powers = range(math.floor(math.log10(self.minimum)), math.ceil(math.log10(self.maximum)) + 1)
        return [
            m * 10.0**p for p in powers for m in steps if self.minimum * 0.999 <= m * 10.0**p <= self.maximum * 1.001
        ]


def _axes(roof: Roof, drawn: Sequence[Mapping[str, Any]]) -> tuple[Axis, Axis]:
    """Returns the axes of operations per byte and of GFLOP/s, with room for steps, ridge point, and a margin."""
    ridge = roof.gflops / roof.gbytes
    intensities = [s["flops"] / s["bytes"] for s in drawn] + [ridge / 8, ridge * 8]
    speeds = [s["gflops"] for s in drawn] + [roof.gflops, roof.gflops / 50]
    return Axis(min(intensities) / 1.6, max(intensities) * 1.6, LEFT, RIGHT), Axis(
        min(speeds) / 1.6, max(speeds) * 1.8, BOTTOM, TOP
    )


def picture(roof: Roof, steps: Sequence[Mapping[str, Any]], title: str, subtitle: str = "") -> str:
    """Draws the SVG. steps: those of `bench --layers`; steps without operations are left out."""
    # small dots over large ones
    drawn = sorted((s for s in steps if s["flops"] > 0 and s["bytes"] > 0), key=lambda s: -s["share"])
    x, y = _axes(roof, drawn)
    shares: dict[str, float] = {}
    for s in drawn:
        shares[kind(s["tactic"])] = shares.get(kind(s["tactic"]), 0) + s["share"]
    kinds = sorted(shares, key=lambda k: -shares[k])
    colours = {k: COLOURS[i] if i < len(COLOURS) - 1 else OTHERS for i, k in enumerate(kinds)}
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
            'font-family="Helvetica, Arial, sans-serif" font-size="12" fill="#333">'
        ),
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fcfcfb"/>',
        _words(LEFT, 28, title, 'font-size="17" fill="#111"'),
        _words(LEFT, 47, subtitle, QUIET),
        *_grid(x, y),
        *_roof(roof, x, y),
        '<g id="steps" fill-opacity="0.6" stroke="#fff" stroke-width="0.8">',
        *(_dot(s, x, y, colours[kind(s["tactic"])]) for s in drawn),
        "</g>",
        *_legend(kinds, shares, colours),
    ]
    if left := len(steps) - len(drawn):
        parts.append(
            _words(
                LEFT,
                HEIGHT - 10,
                f"without {text.count(left, 'step')} that no operations are counted of, such as copies and host steps: "
                f"{100 * (1 - sum(shares.values())):.1f} % of the time",
                QUIET,
            )
        )
    return "\n".join((*parts, "</svg>\n"))


def _words(x: float, y: float, said: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{escape(said)}</text>'


def _line(start: tuple[float, float], end: tuple[float, float], colour: str, width: float = 1) -> str:
    return (
        f'<line x1="{start[0]:.2f}" y1="{start[1]:.2f}" x2="{end[0]:.2f}" y2="{end[1]:.2f}" stroke="{colour}"'
        f' stroke-width="{width}"/>'
    )


def _grid(x: Axis, y: Axis) -> list[str]:
    elements = []
    for value in x.ticks():
        elements += [
            _line((x.at(value), TOP), (x.at(value), BOTTOM), _shade(value)),
            _words(x.at(value), BOTTOM + 17, f"{value:g}", MIDDLE),
        ]
    for value in y.ticks():
        elements += [
            _line((LEFT, y.at(value)), (RIGHT, y.at(value)), _shade(value)),
            _words(LEFT - 7, y.at(value) + 4, f"{value:g}", END),
        ]
    return [
        *elements,
        _words((LEFT + RIGHT) / 2, BOTTOM + 36, "operations per byte read or written", MIDDLE),
        _words(-(TOP + BOTTOM) / 2, 22, "GFLOP/s", f'{MIDDLE} transform="rotate(-90)"'),
    ]


def _shade(value: float) -> str:
    """Returns a shade, darker for powers of ten."""
    return "#d4d4d0" if math.isclose(math.log10(value), round(math.log10(value)), abs_tol=1e-9) else "#ebebe8"


def _roof(roof: Roof, x: Axis, y: Axis) -> list[str]:
    """Draws the two lines, and the measured figures beside them."""
    start = max(x.minimum, y.minimum / roof.gbytes)
    low, corner, end = ((x.at(i), y.at(roof.at(i))) for i in (start, roof.gflops / roof.gbytes, x.maximum))
    mx, my = (low[0] + corner[0]) / 2, (low[1] + corner[1]) / 2 - 7
    steep = math.degrees(math.atan2(corner[1] - low[1], corner[0] - low[0]))
    return [
        _line(low, corner, "#222", 1.6),
        _line(corner, end, "#222", 1.6),
        _words(
            mx, my, f"{roof.gbytes:.1f} GB/s measured", f'{MIDDLE} transform="rotate({steep:.1f} {mx:.1f} {my:.1f})"'
        ),
        _words(corner[0] - 6, corner[1] - 4, f"{roof.gflops:.0f} GFLOP/s measured", END),
    ]


def _dot(s: Mapping[str, Any], x: Axis, y: Axis, colour: str) -> str:
    intensity = s["flops"] / s["bytes"]
    radius = max(SMALLEST, math.sqrt(s["share"] * AREA / math.pi))
    lines = [
        s["name"] or s["op"],
        s["tactic"].partition("@")[0],
        f"{text.duration(s['ns'])}, {100 * s['share']:.1f} % of the time",
        f"{s['gflops']:.1f} GFLOP/s, {intensity:.2g} operations per byte, {s['gbytes']:.1f} GB/s",
    ]
    if s["bound"]:
        lines.append(f"bound by {s['bound']}, {100 * s['reached']:.0f} % of that reached")
    return (
        f'<circle cx="{x.at(intensity):.2f}" cy="{y.at(s["gflops"]):.2f}" r="{radius:.2f}" fill="{colour}">'
        f"<title>{escape(chr(10).join(lines))}</title></circle>"
    )


def _legend(kinds: Sequence[str], shares: Mapping[str, float], colours: Mapping[str, str]) -> list[str]:
    left, at = RIGHT + 24, TOP + 8
    elements = [_words(left, at, "kernel, share of the time", QUIET)]
    for k in kinds:
        at += 21
        elements += [
            f'<rect x="{left}" y="{at - 10}" width="12" height="12" rx="6" fill="{colours[k]}" fill-opacity="0.8"/>',
            _words(left + 20, at, k),
            _words(WIDTH - 16, at, f"{100 * shares[k]:.1f} %", END),
        ]
    return [*elements, _words(left, at + 30, "a dot's area is its time", QUIET)]
