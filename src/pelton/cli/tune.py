"""`pelton tune`: times the kernels of an engine for GPUs on the GPU of this machine."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from pelton import progress

from . import arguments, arrays, text

if TYPE_CHECKING:
    from pelton.runtime import Engine

EXAMPLES = """examples:
  pelton tune resnet50.pelton                           times its kernels on the GPU here and overwrites the engine
  pelton tune resnet50.pelton -o resnet50_h200.pelton   writes another file

An engine that was built without a GPU has a few alternatives for each step (`pelton build --level` says how many) and
uses the one that a cost model ranks first. Neither the model nor a compiler is needed. Engines for CPUs are timed when
they are built."""


def add(commands) -> argparse.ArgumentParser:
    command = commands.add_parser(
        "tune",
        help="time the kernels of an engine for GPUs on the GPU here, and keep the fastest",
        epilog=EXAMPLES,
        description="Times the kernels that an engine for GPUs carries, and writes it again with the fastest in place.",
    )
    command.add_argument("engine", help="an engine file, built with --target cuda")
    command.add_argument("-o", "--output", metavar="FILE", help="where to write (the same file, if not given)")
    command.add_argument(
        "--device",
        type=arguments.int_in_range(0, 255, "the number of a GPU"),
        default=0,
        metavar="N",
        help="which GPU (0 if not given)",
    )
    command.add_argument(
        "--budget", type=arguments.seconds, metavar="S", help="seconds for timing; then steps stay as they are"
    )
    return command


def main(args: argparse.Namespace) -> None:
    import pelton

    target = args.output or args.engine
    arrays.check_target(target)
    engine = pelton.load(args.engine, device=None)
    with progress.show_progress(not args.quiet) as tell:
        tuned = pelton.tune(engine, args.device, budget=args.budget, progress=tell)
    tuned.save(target)
    if not args.quiet:
        print(f"{target}: {text.size(os.path.getsize(target))}\n" + "\n".join(summary(engine, tuned)))


def summary(before: Engine, after: Engine) -> list[str]:
    """What timing changed, and what that saves by the times taken."""
    lines, was, now, timed = list[str](), 0, 0, 0
    for old, new in zip((s for p in before.parts for s in p.steps), (s for p in after.parts for s in p.steps)):
        times = new.info.get("times_ns") or {}
        if not times:
            continue
        timed += 1
        was, now = was + times.get(old.info["tactic"], 0), now + times.get(new.info["tactic"], 0)
        if old.symbol != new.symbol:
            gain = (
                f"{text.duration(times.get(old.info['tactic'], 0))} → {text.duration(times.get(new.info['tactic'], 0))}"
            )
            lines.append(f"  {text.shortened(new.name, 44)}: {gain}, {new.info['tactic'].partition('@')[0]}")
    head = (
        f"  {text.count(timed, 'step')} timed on {after.meta.get('gpu') or after.parts[0].meta.get('gpu')},"
        f" {len(lines)} changed"
    )
    return [head + (f"; all of them together {text.duration(was)} → {text.duration(now)}" if timed else ""), *lines]
