#!/usr/bin/env python3
"""Checks that engines of two checkouts have bit-equal outputs: the proof of a refactoring.

    python benchmarks/same.py OLD-CHECKOUT NEW-CHECKOUT MODEL_OR_FOLDER … [--tactics FOLDER] [--budget S]
                              [--python PYTHON] [--threads N] [--shapes x=1x3x224x224] [--target cpu:x86_64_v4]

Both checkouts build every model at level 0 and run it on the same seeded inputs. With `--tactics`, both also build from
the tactics in that folder (`NAME.json`), which the old checkout records first, at level 3, if missing. Outputs are
compared bit by bit. Nothing is installed: PYTHON belongs to a venv with the packages for building, and imports Pelton
from each checkout's `src`, which needs its native library. The status is 1 if something differs or fails.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

# What either checkout runs. Only what is public is used.
BUILT = """
import hashlib, json, sys
import numpy as np
import pelton
model, options, shapes = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
engine, r, feeds = pelton.build(model, shapes or None, **options), np.random.default_rng(0), {}
for port in engine.inputs:
    shape = [d if isinstance(d, int) else 2 for d in port.shape]
    drawn = r.standard_normal(shape) if port.numpy_dtype.kind == "f" else r.integers(0, 2, shape)
    feeds[port.name] = drawn.astype(port.numpy_dtype)
out = engine.run(feeds)
tactics = [s.info.get("tactic") for s in engine.steps] if hasattr(engine, "steps") else []
print(json.dumps({"outputs": {k: hashlib.sha256(np.ascontiguousarray(v).tobytes()).hexdigest() for k, v in out.items()},
                  "largest": {k: float(np.abs(v).max()) for k, v in out.items()}, "tactics": tactics}))
"""


class Failed(Exception):
    """A build or run that ended with another status than 0; says the last line that it said."""


def built(checkout: Path, model: Path, options: dict, a: argparse.Namespace) -> dict:
    """What a checkout's engine gives."""
    command = [
        a.python,
        "-c",
        BUILT,
        str(model),
        json.dumps({"threads": a.threads, "target": a.target, **options}),
        json.dumps(dict(s.split("=", 1) for s in a.shapes)),
    ]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(checkout.resolve() / "src")}, capture_output=True, text=True
    )
    if done.returncode:
        raise Failed((done.stderr.strip().splitlines() or ["it says nothing"])[-1])
    return json.loads(done.stdout.splitlines()[-1])


def compare(model: Path, a: argparse.Namespace) -> bool:
    """Prints a line for each build of a model; whether all of them agree."""
    builds: dict[str, dict] = {"level 0": {"level": 0}}
    if a.tactics:
        tactics = a.tactics / f"{model.stem}.json"
        if not tactics.exists():
            built(a.old, model, {"level": 3, "budget": a.budget, "save_tactics": str(tactics)}, a)
        builds["replay"] = {"level": 3, "load_tactics": str(tactics)}
    same = True
    for build, options in builds.items():
        try:
            old, new = (built(c, model, options, a) for c in (a.old, a.new))
        except Failed as e:
            print(f"{model.stem}, {build}: {e}", flush=True)
            same = False
            continue
        differ = [k for k in old["outputs"] if old["outputs"][k] != new["outputs"].get(k)]
        same &= not differ
        steps = ""
        if old["tactics"] != new["tactics"]:
            steps = f", tactics differ ({len(old['tactics'])} and {len(new['tactics'])} steps)"
        outputs = f"differs in {', '.join(differ)}" if differ else "equal bits"
        print(f"{model.stem}, {build}: {outputs}{steps}", flush=True)
    return same


def main() -> int:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("old", type=Path, metavar="OLD-CHECKOUT")
    ask.add_argument("new", type=Path, metavar="NEW-CHECKOUT")
    ask.add_argument("models", nargs="+", type=Path, metavar="MODEL_OR_FOLDER")
    ask.add_argument("--tactics", type=Path, help="folder of recorded tactics")
    ask.add_argument(
        "--budget", type=float, help="seconds of timing when tactics are recorded (all that it takes, if not given)"
    )
    ask.add_argument("--python", default=sys.executable)
    ask.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    ask.add_argument("--target", default="cpu", help="what engines are for: that of the recorded tactics")
    ask.add_argument("--shapes", action="append", default=[], metavar="NAME=SIZES")
    a = ask.parse_args()
    if a.tactics:
        a.tactics.mkdir(parents=True, exist_ok=True)
    models = [m.resolve() for given in a.models for m in (sorted(given.glob("*.onnx")) if given.is_dir() else [given])]
    return int(not all([compare(model, a) for model in models]))


if __name__ == "__main__":
    sys.exit(main())
