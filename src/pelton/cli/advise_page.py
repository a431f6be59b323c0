"""The page of `pelton advise --html`: price against performance for one model as SVG, and the table."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from pelton import html

from . import text
from .roofline import COLOURS, END, MIDDLE, QUIET, Axis

if TYPE_CHECKING:
    from pelton.advise.advice import ModelAdvice
    from pelton.advise.predict import Prediction

WIDTH, HEIGHT = 1000, 600
LEFT, RIGHT, TOP, BOTTOM = 80, 960, 60, 540
RADIUS = 5
NAMED = 40  # devices up to which every one is named in the chart
STYLE = """body{font:14px Helvetica,Arial,sans-serif;margin:2em;color:#222;max-width:1100px}
table{border-collapse:collapse;font-size:13px}td,th{padding:3px 10px 3px 0;text-align:left;border-bottom:1px solid #ddd}
.mark{color:#666}"""


def page(advice: ModelAdvice, model: str, more: Sequence[str] = ()) -> str:
    """Returns the page; it loads nothing from elsewhere. more: sentences on the machine around."""
    from pelton.advise.advice import notes

    figures = ("latency, predicted", "interval of 90 %", "inputs/s, predicted", "price, quoted", "roof")
    rows, said = [], dict[str, int]()
    for p in advice.predictions:
        marks = ", ".join(str(said.setdefault(note, len(said) + 1)) for note in notes(p))
        price = p.device.price
        rows.append(
            (
                p.device.name,
                str(p.work.batch),
                text.duration(p.seconds * 1e9),
                f"{text.duration(p.low * 1e9)} to {text.duration(p.high * 1e9)}",
                f"{p.throughput:.4g}",
                "–" if price is None else f"{price.amount:g} {price.currency}, {price.kind}, {price.date}",
                p.device.roof,
                marks,
            )
        )
    title = html.text(f"Which machine for {model}")
    listed = (f"{number}: {note}" for note, number in said.items())
    items = "".join(f"<li>{html.text(s)}</li>" for s in (*advice.sentences(), *more, *listed, *advice.left))
    said_first = "Throughput is predicted from the plan, nothing of the model was run; prices are quoted."
    parts = [
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>',
        f"<style>{STYLE}</style></head><body><h1>{title}</h1><p>{advice.precision}. {said_first}</p>",
        chart(advice),
        html.table(("device", "batch", *figures, "notes"), rows),
        f"<ul>{items}</ul></body></html>\n",
    ]
    return "".join(parts)


def chart(advice: ModelAdvice) -> str:
    """Returns the SVG: price of a device against inputs per second, with the interval as a line; both logarithmic.
    Devices without a price stand at the left edge."""
    points = advice.predictions
    priced = [p.device.price.amount for p in points if p.device.price]
    x = Axis(min(priced, default=100) / 1.6, max(priced, default=1000) * 1.6, LEFT + 90, RIGHT)
    speeds = [p.work.batch / s for p in points for s in (p.low, p.high)]
    y = Axis(min(speeds) / 1.3, max(speeds) * 1.3, BOTTOM, TOP)
    batches = sorted({p.work.batch for p in points})
    colours = {b: COLOURS[i % len(COLOURS)] for i, b in enumerate(batches)}
    named = len({p.device.name for p in points}) <= NAMED
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
        ' font-family="Helvetica, Arial, sans-serif" font-size="12" fill="#333">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fcfcfb"/>',
        *grid(x, y),
        *(mark(p, x, y, colours[p.work.batch], named) for p in points),
        *legend(colours),
        "</svg>",
    ]
    return "\n".join(parts)


def label(x: float, y: float, words: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{escape(words)}</text>'


def grid(x: Axis, y: Axis) -> list[str]:
    """Returns lines and numbers of both axes."""
    parts = []
    for value in x.ticks():
        at = x.at(value)
        parts.append(f'<path d="M{at:.1f} {TOP}V{BOTTOM}" stroke="#e6e6e6"/>')
        parts.append(label(at, BOTTOM + 17, f"{value:g}", MIDDLE))
    for value in y.ticks():
        at = y.at(value)
        parts.append(f'<path d="M{LEFT} {at:.1f}H{RIGHT}" stroke="#e6e6e6"/>')
        parts.append(label(LEFT - 6, at + 4, f"{value:g}", END))
    return [
        *parts,
        label((LEFT + RIGHT) / 2, BOTTOM + 38, "price of the device, US dollars (quoted)", MIDDLE),
        label(LEFT + 2, BOTTOM + 17, "no price", QUIET),
        label(18, (TOP + BOTTOM) / 2, "inputs per second (predicted)", f'{MIDDLE} transform="rotate(-90 18 300)"'),
    ]


def mark(p: Prediction, x: Axis, y: Axis, colour: str, named: bool) -> str:
    """Returns the mark of a prediction: full for a measured roof, hollow for a quoted one; its interval as a line."""
    price = p.device.price
    at, top, low = x.at(price.amount) if price else LEFT + 30, y.at(p.work.batch / p.low), y.at(p.work.batch / p.high)
    fill = colour if p.device.roof == "measured" else "#fff"
    middle = y.at(p.throughput)
    words = f"{p.device.name}, batch {p.work.batch}: {p.throughput:.4g} inputs/s predicted, roof {p.device.roof}"
    return (
        f'<g class="device"><title>{escape(words)}</title>'
        f'<path d="M{at:.1f} {top:.1f}V{low:.1f}" stroke="{colour}" stroke-opacity="0.35" stroke-width="2"/>'
        f'<circle cx="{at:.1f}" cy="{middle:.1f}" r="{RADIUS}" fill="{fill}" stroke="{colour}" stroke-width="2"/>'
        + (label(at + 8, middle + 4, p.device.name, 'font-size="10"') if named else "")
        + "</g>"
    )


def legend(colours: dict[int, str]) -> Sequence[str]:
    """Returns the colours of batches, and the meaning of marks."""
    parts = []
    for i, (batch, colour) in enumerate(colours.items()):
        parts.append(f'<circle cx="{LEFT + 6 + 100 * i}" cy="24" r="5" fill="{colour}"/>')
        parts.append(label(LEFT + 16 + 100 * i, 28, f"batch {batch}"))
    return [*parts, label(RIGHT, 28, "full: roof measured; hollow: roof quoted; line: interval of 90 %", END)]
