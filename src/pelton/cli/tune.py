"""`pelton tune`: times the kernels that an engine carries on this machine."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pelton import progress

from . import arguments, arrays, output, parsers, text

if TYPE_CHECKING:
    from pelton.runtime import Engine

EXAMPLES = """examples:
  pelton tune resnet50.pelton                           times its kernels here and overwrites the engine
  pelton tune resnet50.pelton -o resnet50_h200.pelton   writes another file

An engine built without its GPU or CPU carries a few kernels for each step (more at higher levels), and uses the one
that a cost model ranks first. Tuning needs neither the model nor a compiler. Engines for the CPU that built them were
tuned then."""


def add(commands) -> argparse.ArgumentParser:
    command = commands.add_parser(
        "tune",
        help="choose an engine's fastest kernels on this machine",
        epilog=EXAMPLES,
        description="Times the alternative kernels of an engine on this machine, and selects the fastest ones.",
    )
    command.add_argument("engine", help="an engine file, built with --target cuda or for another CPU")
    arguments.add_overwriting(command)
    command.add_argument(
        "--device",
        type=parsers.int_in_range(0, 255, "the number of a GPU"),
        default=0,
        metavar="N",
        help="number of the GPU (default 0)",
    )
    command.add_argument(
        "--budget",
        type=parsers.seconds,
        metavar="S",
        help="seconds for timing; the remaining steps keep their kernels",
    )
    output.add_json(command)
    return command


def main(args: argparse.Namespace) -> None:
    import pelton

    target = args.output or args.engine
    arrays.check_target(target)
    engine = pelton.load(args.engine, device=None)
    with progress.show_progress(not args.quiet) as tell:
        tuned = pelton.tune(engine, args.device, budget=args.budget, progress=tell)
    tuned.save(target)
    report = {"file": target, "bytes": os.path.getsize(target), **facts(engine, tuned)}
    if args.json:
        output.emit(args, report)
    elif not args.quiet:
        print(f"{target}: {text.size(report['bytes'])}\n" + "\n".join(summary(report)))


def facts(before: Engine, after: Engine) -> dict[str, Any]:
    """Returns the changes by timing, and the nanoseconds of all timed steps together before and after."""
    changed, was, now, timed = list[dict[str, Any]](), 0, 0, 0
    for old, new in zip((s for p in before.parts for s in p.steps), (s for p in after.parts for s in p.steps)):
        times = new.info.get("times_ns") or {}
        if not times:
            continue
        timed += 1
        old_ns, new_ns = times.get(old.info["tactic"], 0), times.get(new.info["tactic"], 0)
        was, now = was + old_ns, now + new_ns
        if old.symbol != new.symbol:
            changed.append(
                {
                    "step": new.name,
                    "tactic": new.info["tactic"],
                    "was": old.info["tactic"],
                    "ns": new_ns,
                    "was_ns": old_ns,
                }
            )
    gpu, cpu = after.meta.get("gpu") or after.parts[0].meta.get("gpu"), after.parts[0].plain.target.get("cpu")
    return {"gpu": gpu, "cpu": cpu, "timed": timed, "changed": changed, "ns": now, "was_ns": was}


def summary(found: Mapping[str, Any]) -> list[str]:
    """Formats the same for people."""
    lines = [
        f"  {text.shortened(c['step'], 44)}: {text.duration(c['was_ns'])} → {text.duration(c['ns'])},"
        f" {c['tactic'].partition('@')[0]}"
        for c in found["changed"]
    ]
    head = f"  {text.count(found['timed'], 'step')} timed on {found['gpu'] or found['cpu']}, {len(lines)} changed"
    if found["timed"]:
        head += f"; all of them together {text.duration(found['was_ns'])} → {text.duration(found['ns'])}"
    return [head, *lines]
