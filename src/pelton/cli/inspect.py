"""`pelton inspect`: what is in an engine file."""
from __future__ import annotations

import argparse
import dataclasses
import json
import os
from typing import TYPE_CHECKING, Any

from pelton.engine.sizes import at, usual

from . import build, text

if TYPE_CHECKING:
    from pelton.runtime import Engine

EXAMPLES = """examples:
  pelton inspect model.pelton                inputs, outputs, steps with their tactics, memory, what was refused and why
  pelton inspect model.pelton --verify       also reads all weights and checks them
  pelton inspect model.pelton --json | jq .steps[0]"""


def add(commands) -> argparse.ArgumentParser:
    command = commands.add_parser("inspect", help="say what is in an engine file", description="Says what is in an engine file.", epilog=EXAMPLES)
    command.add_argument("engine", help="an engine file")
    command.add_argument("--json", action="store_true", help="everything as JSON")
    command.add_argument("--verify", action="store_true", help="check the weights, too (code and plan always are)")
    return command


def main(args: argparse.Namespace) -> None:
    import pelton

    engine = pelton.load(args.engine, verify=args.verify)
    if args.json:
        print(json.dumps(facts(engine), indent=1))
        return
    print(f"{args.engine}: engine {engine.name!r}, {text.size(os.path.getsize(args.engine))}"
          + (", verified: header, plan, code and weights are as they were written" if args.verify else ""))
    print(build.summary(engine))
    plain, meta = engine.plain, engine.meta
    print(text.table([("  weights:", text.size(memoryview(plain.constants).nbytes)), ("  code:", text.size(len(plain.code))),
                      ("  sizes:", ", ".join(f"{s.name}: {s.range()}, tuned for {s.usual}" for s in plain.symbols) or "all fixed"),
                      ("  memory:", f"{text.size(plain.arena)} for each context" + (" at the usual sizes" if plain.symbols else "")),
                      ("  pictures:", meta.get("image") or "the engine does not say how they become inputs"),
                      ("  labels:", text.shortened(", ".join(meta["labels"]), 80) if meta.get("labels") else "none")], "ll"))
    print("\n" + text.table([("step", "does", "tactic", "GFLOP", "layers"), *map(_row, range(len(engine.steps)), at(plain, usual(plain)).steps)], "rllrl"))
    for title, found in (("copies because of layouts", meta.get("copies")), ("layouts that templates disagree on", text.layouts(meta.get("layouts") or ())),
                         ("fusions refused", meta.get("fusion_refusals"))):
        if found:
            print(f"\n{title}:\n" + "\n".join(f"  {line}" for line in found))


def _row(i: int, step) -> tuple[str, ...]:
    info = step.info
    flops = info.get("flops", 0)
    return (f"{i}", text.shortened(info.get("op", ""), 44), "host" if step.host else text.shortened(info.get("tactic", ""), 56),
            f"{flops / 1e9:.4f}" if flops else "", text.shortened(", ".join(info.get("layers") or (step.name,)), 80))


def facts(engine: Engine) -> dict[str, Any]:
    """All but the weights and the code, for programs."""
    plain = engine.plain
    return {"name": engine.name, "target": dict(plain.target), "meta": dict(plain.meta), "arena": plain.arena, "code": len(plain.code),
            "constants": memoryview(plain.constants).nbytes, "inputs": [dataclasses.asdict(p) for p in engine.inputs],
            "outputs": [dataclasses.asdict(p) for p in engine.outputs], "symbols": [dataclasses.asdict(s) for s in plain.symbols],
            "sizes": dict(plain.sizes), "buffers": [dataclasses.asdict(b) for b in plain.buffers],
            "steps": [dataclasses.asdict(dataclasses.replace(s, info=dict(s.info))) for s in engine.steps]}
