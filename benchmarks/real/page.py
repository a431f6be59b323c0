"""The page of tables: the outcome of every file, and the gates."""

from __future__ import annotations

import datetime
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pelton.backends.cpu import describe
from pelton.cli.text import count, shortened, size

from .measure import MINIMUM, REPEATS, said
from .packages import Package

TOLERANCE = 2e-3  # of the largest value of an output
# ONNX Runtime without its optimizations this far from float64: one of the two reads the model wrongly
ODD = 5e-2
SHARE = 0.95  # of the files that were unknown before
MEAN, SECOND = 2.0, 1.7  # ratios, by their geometric mean: all, and second shapes
SHOWN = 4  # operators by name


@dataclass(frozen=True)
class File:
    """A file of a package, what is known of it, and what Pelton did with it."""

    package: Package
    name: str
    facts: dict[str, Any]
    result: dict[str, Any]

    @property
    def counts(self) -> bool:
        """Whether ONNX Runtime loads it."""
        return "unread" not in self.facts

    @property
    def rows(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        return list(zip(self.facts["cases"], self.result.get("cases", ())))

    @property
    def right(self) -> bool:
        return bool(self.rows) and all(not problem(self, c, r) for c, r in self.rows)


def problem(file: File, case: dict[str, Any], row: dict[str, Any]) -> str:
    """What is wrong with a run, in a few words; nothing where it is right."""
    if row.get("failed"):
        return " ".join(row["failed"].split())
    others = (case["plain_off"], case["rounded_off"]) if file.facts["quantized"] else ()
    allowed = TOLERANCE + max((x for x in others if x < math.inf), default=0.0)
    if not row["off"] <= allowed:
        return f"off by {row['off']:.1e}"
    if not file.facts["quantized"] and row["apart"] > ODD:
        return f"as in float64, but ONNX Runtime is off by {row['apart']:.1e} from that"
    return ""


def page(files: Sequence[File], absent: dict[str, str]) -> str:
    """Markdown."""
    counted = [f for f in files if f.counts]
    timed = [(f, k, r["ratio"]) for f in counted for k, (_, r) in enumerate(f.rows) if "ratio" in r]
    first = next((f.result for f in counted if f.result), {})
    wrong = [(f, c, problem(f, c, r)) for f in counted for c, r in f.rows if problem(f, c, r)]
    lines = [
        "# Models that packages ship",
        "",
        *gates(counted, timed),
        "",
        (
            f"{origin(counted)}, {count(first.get('threads', 0), 'thread')}, level {first.get('level')}, Pelton"
            f" {first.get('version')}, ONNX Runtime {first.get('onnxruntime')}, {datetime.date.today().isoformat()}."
            " Every .onnx file of the packages below that ONNX Runtime loads runs through both `InferenceSession`s, on"
            " random inputs, and on two shapes if sizes are open."
        ),
        "",
        (
            "An error is the largest difference from an evaluation in float64, relative to the largest value of the"
            " output; (*) from ONNX Runtime without its optimizations, if the data determines the program or float64"
            " would take too long. Ratios above 1 mean that Pelton is faster; they are medians of alternating rounds. A"
            f" ratio under {MINIMUM:g} is the median of {REPEATS} such measurements. Sums include quantized models,"
            " whose errors may reach the tolerance plus the larger of two errors: of ONNX Runtime without its"
            " optimizations, and of an evaluation in the model's own types. Host steps run in numpy. Second shapes are"
            " timed after the session's background tuning, if it tunes (`pelton.retune`, [tuning](tuning.md)); † marks"
            " those for which it kept another engine."
        ),
        "",
    ]
    for known, heading in ((True, "Met before"), (False, "Not met before")):
        lines += [
            f"## {heading}",
            "",
            "| file | operators | inputs | error | ONNX Runtime's | ms | ONNX Runtime's | ratio | host steps |",
            "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        ]
        lines += [line for f in counted if f.package.known == known for line in rows_of(f)] + [""]
    if wrong:
        lines += [
            "## Not right",
            "",
            *(
                f"- {f.package.name}, {f.name} ({shortened(said(c), 100)}): {shortened(text, 300)}"
                for f, c, text in wrong
            ),
            "",
        ]
    unfed = [f for f in counted if not f.facts["cases"]]
    if unfed:
        lines += [
            "## Without inputs that ONNX Runtime runs",
            "",
            *(f"- {f.package.name}, {f.name}: {shortened(f.facts['refused'], 200)}" for f in unfed),
            "",
        ]
    other = [f for f in files if not f.counts]
    if other or absent:
        lines += [
            "## Not counted",
            "",
            *(f"- {f.package.name}, {f.name}: {shortened(' '.join(f.facts['unread'].split()), 200)}" for f in other),
            *(f"- {name}: {why}" for name, why in absent.items()),
            "",
        ]
    lines += ["## Where from", "", "| package | version | registry | what for |", "| --- | --- | --- | --- |"]
    lines += [
        f"| {p.name} | {p.version} | {p.registry} | {p.purpose} |" for p in dict.fromkeys(f.package for f in files)
    ]
    return "\n".join([*lines, "", "`make real` writes this page; do not edit it.", ""])


def origin(files: Sequence[File]) -> str:
    """The machine and the commit; all of them, in bold, where results have several."""
    made = list(dict.fromkeys(tuple(f.result["made"].values()) for f in files if "made" in f.result))
    if not made:
        return str(describe()["model"])
    text = "; ".join(f"{machine}, commit {commit}" for machine, commit in made)
    if len(made) > 1:
        return f"**Not of one run: {text}**"
    return f"Made by one command on one machine at one commit: {text}"


def gates(files: Sequence[File], timed: Sequence[tuple[File, int, float]]) -> Iterator[str]:
    for known, what in ((True, "files met before"), (False, "files not met before")):
        some = [f for f in files if f.package.known == known]
        if some:
            right = sum(f.right for f in some)
            good = right >= (len(some) if known else SHARE * len(some))
            yield (
                f"- {right} of {count(len(some), what.split()[0][:-1], 'files')} {' '.join(what.split()[1:])} are right"
                f" ({right / len(some):.1%}): {'as' if good else 'not what is'} asked for"
                f" ({'all' if known else f'{SHARE:.0%}'})"
            )
    for what, asked, runs in (
        ("all shapes", MEAN, timed),
        ("first shapes", None, [t for t in timed if t[1] == 0]),
        ("second shapes", SECOND, [t for t in timed if t[1] > 0]),
    ):
        if runs:
            mean = math.exp(statistics.mean(math.log(r) for _, _, r in runs))
            f, _, least = min(runs, key=lambda t: t[2])
            yield (
                f"- {what}: {mean:.2f} times as fast as ONNX Runtime, by the geometric mean of"
                f" {count(len(runs), 'run')}{f' (asked for: {asked:g})' if asked else ''};"
                f" {sum(r < MINIMUM for _, _, r in runs)} under {MINIMUM:g} (asked for: none); the least is"
                f" {least:.2f} ({f.package.name} {f.name})"
            )


def rows_of(file: File) -> Iterator[str]:
    kinds = sorted(file.facts["kinds"].items(), key=lambda kv: -kv[1])
    named = ", ".join(k for k, _ in kinds[:SHOWN]) + (f" and {len(kinds) - SHOWN} more" if len(kinds) > SHOWN else "")
    steps = file.result.get("steps", {})
    hosted = f"{steps['hosted']} of {steps['steps']}" if steps else "–"
    hosted += " (script)" if steps and steps["scripts"] else ""
    about = f"{sum(n for _, n in kinds)}: {named}{', quantized' if file.facts['quantized'] else ''}"
    label = f"{file.package.name}: {file.name}, {size(file.facts['bytes'])}"
    for k, (case, row) in enumerate(file.rows):
        star = "" if case["judge"] == "truth" else "*"
        error = "failed" if row.get("failed") else f"{row['off']:.0e}{star}"
        if problem(file, case, row):
            error = f"**{error}**"
        mark = "†" if any(t["outcome"] == "kept" for t in row.get("tunings", ())) else ""
        cells = [
            label if k == 0 else "",
            about if k == 0 else "",
            shortened(said(case), 90),
            error,
            f"{case['ort_off']:.0e}{star}",
            f"{row['ms']:.4g}" if "ms" in row else "–",
            f"{row['ort_ms']:.4g}" if "ms" in row else "–",
            f"{row['ratio']:.2f}{mark}" if "ms" in row else "–",
            hosted if k == 0 else "",
        ]
        yield f"| {' | '.join(c.replace('|', '/') for c in cells)} |"
