"""`pelton inspect`: shows the content of an engine file."""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pelton.engine import signature
from pelton.engine.constants import length
from pelton.engine.plan import Step
from pelton.engine.library import LIBRARIES, spoken, work
from pelton.engine.sizes import at, optimum_sizes

from . import arguments, build, output, text

if TYPE_CHECKING:
    from pelton.runtime import Engine

EXAMPLES = """examples:
  pelton inspect model.pelton                inputs, outputs, steps with their tactics, memory, rejected fusions and why
  pelton inspect model.pelton --verify       also reads all weights and checks them
  pelton inspect model.pelton --json | jq .steps[0]"""
SHOWN = 6  # names in a line


def add(commands) -> argparse.ArgumentParser:
    command = commands.add_parser(
        "inspect",
        help="show the contents of an engine file",
        description="Shows the contents of an engine file.",
        epilog=EXAMPLES,
    )
    command.add_argument("engine", help="an engine file")
    output.add_json(command)
    arguments.add_trust(command)
    command.add_argument(
        "--verify", action="store_true", help="also verify the weights (code and plan are always verified)"
    )
    return command


def main(args: argparse.Namespace) -> None:
    import pelton

    engine = pelton.load(args.engine, verify=args.verify, device=None, trust=args.trust)
    signed_by = signature.signers(args.engine)
    if args.json:
        output.emit(args, {**facts(engine), "signers": signed_by})
        return
    print(
        f"{args.engine}: engine {engine.name!r}, {text.size(os.path.getsize(args.engine))}"
        + (", verified: header, plan, code and weights are as they were written" if args.verify else "")
    )
    print(build.table(_described(engine, signed_by, args)))
    print("\n" + _steps(engine))
    meta = engine.meta
    for title, lines in (
        ("copies because of layouts", meta.get("copies")),
        ("layouts that templates disagree on", text.layouts(meta.get("layouts") or ())),
        ("layers of the INT8 build", _precisions(meta.get("int8") or {})),
        ("layers that may have weights in half precision", _halves(meta.get("half") or ())),
        ("fusions rejected", meta.get("fusion_refusals")),
        ("constants that cannot be refitted", _refusals(engine.refit_refusals)),
    ):
        if lines:
            print(f"\n{title}:\n" + "\n".join(f"  {text.printable(line)}" for line in lines))


def _described(engine: Engine, signed_by: Sequence[str], args: argparse.Namespace) -> list[tuple[str, str]]:
    """Describes an engine as a whole."""
    plain, meta, parts = engine.plain, engine.meta, [part.plain for part in engine.parts]
    held = length(plain.constants)  # of a script with those of its engines
    alternatives = sum(len(s.alternatives) for p in parts for s in p.steps)
    return [
        *build.described(engine, every=args.verbose > 0),
        *_provenance(engine.provenance),
        ("signed by", _signers(signed_by, args.trust)),
        (
            "constants",
            f"{text.size(held)} in memory, weights are not in the file"
            if any(p.absent for p in parts)
            else f"{text.size(held)} in the file, weights included",
        ),
        (
            "code",
            text.size(sum(len(p.code) for p in parts))
            + (f", and {text.count(alternatives, 'kernel')} for `pelton tune` to choose from" if alternatives else ""),
        ),
        *_libraries([s for p in parts for s in p.steps]),
        ("sizes", ", ".join(f"{s.name}: {s.range()}, tuned for {s.optimum}" for s in plain.symbols) or "all fixed"),
        (
            "memory",
            f"{text.size(sum(p.arena for p in parts))} for each context"
            + (" at the optimum sizes" if any(p.symbols for p in parts) else ""),
        ),
        ("pictures", meta.get("image") or "the engine has no preprocessing"),
        ("labels", text.shortened(", ".join(meta["labels"]), 80) if meta.get("labels") else "none"),
    ]


def _steps(engine: Engine) -> str:
    """Formats a line for each step; those on the host are red."""
    parts = [part.plain for part in engine.parts]
    steps = [step for p in parts for step in at(p, optimum_sizes(p)).steps]
    steps += engine.steps[len(steps) :]  # a script's own, between its engines
    return text.table(
        [("step", "does", "tactic", "GFLOP", "layers"), *map(_row, range(len(steps)), steps)],
        "rllrl",
        styles={i: "red" for i, step in enumerate(steps, 1) if step.host},
    )


def _provenance(of: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Describes the recorded origin of an engine; of engines of other makers, all their entries."""
    if "pelton" not in of:
        return [("built by", "none, as in engines of sessions and of older versions")]
    model, options = of.get("model"), of.get("options")
    lines = [("built by", f"Pelton {of['pelton']}")]
    if isinstance(options, dict):
        lines.append(("options", text.shortened(", ".join(f"{k}={v}" for k, v in options.items()), 200)))
    files = model.get("files", ()) if isinstance(model, dict) else ()
    for entry in files if isinstance(files, list) else ():
        if isinstance(entry, dict):
            lines.append(("model", f"{entry.get('file')}, {_hash_in_words(entry)}"))
    if isinstance(model, dict) and model.get("source") != "files":
        lines.append(("model", f"{model.get('source')}, {_hash_in_words(model)}"))
    refitted = of.get("refitted")
    if isinstance(refitted, dict):
        lines.append(("refitted", f"with {refitted.get('weights')} other weights, {_hash_in_words(refitted)}"))
    lines += _model_metadata(model.get("metadata") if isinstance(model, dict) else None)
    own = of.get("metadata")
    lines += [
        ("metadata", f"{k}: {text.shortened(str(v), 200)}") for k, v in (own.items() if isinstance(own, dict) else ())
    ]
    return [(name if not i or lines[i - 1][0] != name else "", what) for i, (name, what) in enumerate(lines)]


def _model_metadata(of: Any) -> list[tuple[str, str]]:
    """Describes the model by its own metadata, as far as present."""
    metadata = dict(of) if isinstance(of, dict) else {}
    custom = metadata.pop("custom", None)
    rows = [(name.replace("_", " "), value) for name, value in metadata.items() if value]
    rows += [(f"custom {name}", value) for name, value in (custom.items() if isinstance(custom, dict) else ())]
    return [("model says", f"{name}: {text.shortened(' '.join(str(value).split()), 200)}") for name, value in rows]


def _refusals(reasons: Mapping[str, str]) -> list[str]:
    """Returns a line for each reason, with the first of its constants."""
    of: dict[str, list[str]] = {}
    for name, why in reasons.items():
        of.setdefault(why, []).append(name)
    return [
        f"{', '.join(names[:SHOWN])}{f' and {len(names) - SHOWN} more' if len(names) > SHOWN else ''}: {why}"
        for why, names in of.items()
    ]


def _signers(fingerprints: Sequence[str], trust: Sequence[str] | None) -> str:
    """Describes the signers of the engine, and the trust in them."""
    if not fingerprints:
        return "no one"
    return ", ".join(fingerprints) + ("; verified" if trust else "; not verified: --trust KEY does that")


def _hash_in_words(of: Mapping[str, Any]) -> str:
    return f"SHA-256 {of['sha256']}" if of.get("sha256") else "without a SHA-256"


def _precisions(of: Mapping[str, Any]) -> list[str]:
    """Returns a line for each layer of an INT8 build: precision, times in both precisions, reason."""
    rest = of.get("rest", "fp32")
    rows = [("layer", "precision", "MMAC", rest, "int8", "reason")]
    for layer in of.get("layers", ()):
        times = [f"{layer['us'][p]:.0f} µs" if p in layer["us"] else "" for p in (rest, "int8")]
        name = text.shortened(layer["layer"], 60)
        rows.append((name, layer["precision"], f"{layer['macs'] / 1e6:.2f}", *times, layer["reason"]))
    lines = text.table(rows, "llrrrl").splitlines() if len(rows) > 1 else []
    for tried in of.get("tried", ()):
        names = " and ".join(what for name, what in build.REFINED.items() if tried[name]) or "neither"
        lines.append(f"tried on data kept aside: {names}: SQNR {tried['sqnr_db']:.1f} dB")
    return lines


def _halves(layers: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns a line for each layer whose weights may be in half precision: type, times, reason."""
    rows = [("layer", "weights", "fp32", "half", "reason")]
    for layer in layers:
        times = [f"{layer['us'][kind]:.0f} µs" if kind in layer["us"] else "" for kind in ("fp32", "half")]
        rows.append((text.shortened(layer["layer"], 60), layer["weights"], *times, layer["reason"]))
    return text.table(rows, "llrrl").splitlines() if len(rows) > 1 else []


def _libraries(steps: list[Step]) -> list[tuple[str, str]]:
    """Describes the steps that libraries compute, and the installed versions; empty without such steps."""
    lines = list[tuple[str, str]]()
    for symbol in sorted({s.symbol for s in steps if s.symbol in LIBRARIES}):
        from pelton.backends.cuda.libraries import versions  # searches for the libraries

        of_steps, here = [work(symbol, s.dims).version for s in steps if s.symbol == symbol], versions().get(symbol, 0)
        if {here} == set(of_steps):
            status = "which is here"
        elif here:
            status = f"here is {spoken(here)}: the engine's own kernels replace it"
        else:
            status = "not installed: the engine's own kernels replace it"
        needed = ", ".join(map(spoken, sorted(set(of_steps))))
        used = f"{symbol} {needed} for {len(of_steps)} of {text.count(len(steps), 'step')}; {status}"
        lines.append(("" if lines else "libraries", used))
    return lines


def _row(i: int, step) -> tuple[str, ...]:
    info = step.info
    flops = info.get("flops", 0)
    return (
        f"{i}",
        text.shortened(info.get("op", ""), 44),
        "host" if step.host else text.shortened(info.get("tactic", ""), 56),
        f"{flops / 1e9:.4f}" if flops else "",
        text.shortened(", ".join(info.get("layers") or (step.name,)), 80),
    )


def facts(engine: Engine) -> dict[str, Any]:
    """Returns all but the weights and the code, as JSON."""
    plain = engine.plain
    if engine.parts != (engine,):  # a script
        return {
            "name": engine.name,
            "target": dict(plain.target),
            "meta": dict(plain.meta),
            "provenance": engine.provenance,
            "inputs": [dataclasses.asdict(p) for p in engine.inputs],
            "outputs": [dataclasses.asdict(p) for p in engine.outputs],
            "symbols": [dataclasses.asdict(s) for s in plain.symbols],
            "engines": [facts(part) for part in engine.parts],
            "steps": [dataclasses.asdict(dataclasses.replace(s, info=dict(s.info))) for s in engine.steps],
        }
    return {
        "name": engine.name,
        "target": dict(plain.target),
        "meta": dict(plain.meta),
        "provenance": engine.provenance,
        "refittable": {name: dataclasses.asdict(p) for name, p in engine.refittable.items()},
        "refit_refusals": engine.refit_refusals,
        "stripped": bool(plain.absent),
        "arena": plain.arena,
        "code": len(plain.code),
        "constants": length(plain.constants),
        "inputs": [dataclasses.asdict(p) for p in engine.inputs],
        "outputs": [dataclasses.asdict(p) for p in engine.outputs],
        "symbols": [dataclasses.asdict(s) for s in plain.symbols],
        "sizes": dict(plain.sizes),
        "buffers": [dataclasses.asdict(b) for b in plain.buffers],
        "steps": [dataclasses.asdict(dataclasses.replace(s, info=dict(s.info))) for s in engine.steps],
    }
