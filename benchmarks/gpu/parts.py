"""The parts of the benchmark: each takes minutes in its own processes and contributes to the results."""

from __future__ import annotations

import math
import re
import shutil
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pelton.engine.library import LIBRARIES

from . import suite
from ..child import Child, Failed

MOST_SECONDS = 470  # of a part
PASSES, ROUNDS, TRAIN = 2, 5, 0.4  # all is timed twice, in so many rounds of trains of so many seconds
# seconds of a part that are left for it, whatever a runtime takes to get ready
FOR_TIMING = 90
ALONE = 200  # runs that are waited for one by one
CHUNK = 40  # cases whose kernels are compiled together
CASE = 40  # seconds of a case, for some kernel may wait for ever
# processes that may be lost with a case; then it is no fault of cases any more
MOST_LOST = 15
SANITIZED = 2  # cases of each template of Pelton's own that run under the sanitizer
ENDING = 60  # seconds that it may take to sum up
# the driver is asked for a parameter too many on purpose
TOOLS = {"memcheck": ("--report-api-errors", "no"), "racecheck": ()}
# Lanes that hold the same sum, in which the last bit may differ, store it to the same place.
RACE = re.compile(r"Race reported between (\w+ access at \S+)\n=+ +and (\w+ access at \S+)")
SANITIZERS = ("/usr/local/cuda/bin/compute-sanitizer", "/opt/nvidia/compute-sanitizer/compute-sanitizer")
BUDGET = 120.0  # seconds that Pelton may time tactics for
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "torch": ("Torch", {}),
    "jax": ("Jax", {}),
    "torch.compile": ("Compiled", {}),
}
# JAX takes three quarters of the GPU's memory otherwise; the tests' harness would ask the native library, which need
# not be built, for the CPU's level
ENVIRONMENT = {
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "PYTHONUNBUFFERED": "1",
    "PYTHONFAULTHANDLER": "1",
    "PELTON_TEST_CPU": "x86_64_v3",
}


@dataclass
class Run:
    """What parts share: where files go, the seed of this run, the level of builds, the part at work and when it has to
    be done. `log` is called with what is being done. `peers`: those that models are timed beside, None for all that
    they name. `warm`: builds that are timed take kernels from the room that were compiled before."""

    room: Path
    seed: int
    log: Callable[[str], None] = print
    end: float = math.inf
    level: int = 3
    part: str = "part"
    peers: tuple[str, ...] | None = None
    warm: bool = False

    @property
    def models(self) -> Path:
        return self.room / "models"

    @property
    def cubins(self) -> str:
        return str(self.room / "cache")

    def left(self, kept: float = 0.0) -> float:
        """Seconds of this part, without those that are kept for what comes later; Failed where there are none."""
        left = self.end - kept - time.monotonic()
        if left <= 0:
            raise Failed("its time is over")
        return left

    def child(self, module: str, kind: str, arguments: Mapping[str, Any], before: tuple[str, ...] = ()) -> Child:
        own = {"TORCHINDUCTOR_CACHE_DIR": str(self.room / "inductor"), "TRITON_CACHE_DIR": str(self.room / "triton")}
        said = self.room / "said" / f"{self.part}-{kind}.txt"
        said.parent.mkdir(parents=True, exist_ok=True)
        return Child(
            f"benchmarks.gpu.{module}", kind, arguments, before=before, environment={**ENVIRONMENT, **own}, said=said
        )


# ---- checks


def templates(run: Run, found: dict[str, Any]) -> None:
    """Every case of every template on the GPU. A case that ends its process, or loses it the GPU, is wrong; the next
    begins in a new one."""
    found |= {"seed": run.seed, "cases": 0, "kernels": 0, "compiled": 0, "compile_s": 0.0, "wrong": {}}
    child, lost = templates_child(run), 0
    try:
        names = child.ask("names", run.left())
        for start in range(0, len(names), CHUNK):
            run.log(f"templates: {start} of {len(names)} cases, {len(found['wrong'])} wrong")
            chunk = list(range(start, min(start + CHUNK, len(names))))
            made = child.ask("compile", run.left(), cases=chunk)
            found["compiled"] += made["kernels"]
            found["compile_s"] += made["seconds"]
            found["wrong"].update({symbol: why[:400] for symbol, why in made["failed"].items()})
            for i in chunk:
                seconds = run.left()
                try:
                    said = child.ask("check", min(CASE, seconds), i=i)
                except Failed as e:
                    said = {"launched": 0, "wrong": str(e), "lost": True}
                found["cases"] += 1
                found["kernels"] += said["launched"]
                if "wrong" in said:
                    found["wrong"][names[i]] = said["wrong"][:400]
                if said.get("lost"):
                    lost += 1
                    if lost == MOST_LOST:
                        raise Failed(
                            f"{lost} cases ended their processes or lost them the GPU, the last: {said['wrong']}"
                        )
                    child.end()
                    child = templates_child(run)
                    child.ask("compile", run.left(), cases=chunk)
    finally:
        child.end()


def templates_child(run: Run, before: tuple[str, ...] = ()) -> Child:
    return run.child("checks", "Templates", {"cache": run.cubins, "seed": run.seed}, before)


def sanitizer(run: Run, found: dict[str, Any]) -> None:
    """Some cases of every template with NVIDIA's checker of memory and of races looking on; `absent` where there is
    none."""
    tool = shutil.which("compute-sanitizer") or next((p for p in SANITIZERS if Path(p).exists()), None)
    if tool is None:
        found["absent"] = True
        return
    # compiles, so that nothing but kernels runs under the tool
    with templates_child(run) as child:
        names = child.ask("names", run.left())
        of: dict[str, list[int]] = {}
        for i, template in enumerate(name.split()[0] for name in names):
            if template not in LIBRARIES:
                of.setdefault(template, []).append(i)
        cases = [i for numbers in of.values() for i in numbers[:SANITIZED]]
        child.ask("compile", run.left(), cases=cases)
    found |= {"tool": tool, "cases": len(cases), "wrong": {}}
    for left, (kind, more) in zip(range(len(TOOLS), 0, -1), TOOLS.items()):
        run.log(f"sanitizer: {kind}, {len(cases)} cases")
        log = run.room / f"{kind}.txt"
        log.unlink(missing_ok=True)
        begun, seconds, done = time.monotonic(), run.left(ENDING * left) / left, 0
        with templates_child(
            run, (tool, "--tool", kind, *more, "--log-file", str(log), "--target-processes", "application-only")
        ) as child:
            try:
                child.ask("compile", seconds, cases=cases)
                for i in cases:
                    said = child.ask("check", begun + seconds + ENDING - time.monotonic(), i=i)
                    done += 1
                    if "wrong" in said:
                        found["wrong"][f"{kind}: {names[i]}"] = said["wrong"][:400]
                    if said.get("lost") or time.monotonic() > begun + seconds:
                        break
            except Failed as e:
                found["wrong"][f"{kind} after {done} cases"] = str(e)
            child.end(ENDING)
        text = log.read_text(errors="replace").strip() if log.exists() else "it wrote no log"
        summary = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (.*)", text) or [
            f"no summary: {text[-400:].splitlines()[-1] if text else ''}"
        ]
        found[kind] = f"{summary[-1]} in {done} cases"
        races = RACE.findall(text)
        if races and all(one == other for one, other in races):
            found[kind] += ", each of one instruction with itself"
        elif not re.match(r"0 (?:errors|hazards)", found[kind]):
            found["wrong"][kind] = found[kind]


def network(model: str, run: Run, found: dict[str, Any]) -> None:
    """A model of the suite in every precision against float64."""
    path = suite.generated(suite.ENTRIES[model], run.models)
    found |= {"seed": run.seed, "wrong": {}}
    with run.child("checks", "Networks", {"path": str(path), "cache": run.cubins, "seed": run.seed}) as child:
        for precision, tolerance in suite.TOLERANCE.items():
            said = child.ask("check", run.left(), precision=precision)
            found[precision] = said
            if "wrong" in said or not said["off"] <= tolerance:
                found["wrong"][f"{model} {precision}"] = (
                    said.get("wrong") or f"off by {said['off']:.1e} of the largest output, {tolerance:g} is allowed"
                )
            elif not said["follows"] >= suite.FOLLOWS:
                found["wrong"][f"{model} {precision}"] = (
                    f"another input changes something else than it should (correlation {said['follows']:.2f})"
                )
            run.log(f"{model} {precision}: {found['wrong'].get(f'{model} {precision}', 'right')}")


# ---- figures


def ceilings(run: Run, found: dict[str, Any]) -> None:
    with run.child("ceilings", "Ceilings", {}) as child:
        found["copy"] = child.ask("copy", run.left())
        for kind in ("f16", "bf16", "tf32"):
            found[kind] = child.ask("product", run.left(), kind=kind)
        found["starts"] = child.ask("starts", run.left())


def model(name: str, run: Run, found: dict[str, Any]) -> None:
    """Pelton and its peers on a model: made ready one after the other, then timed in turns."""
    entry = suite.ENTRIES[name]
    path = suite.generated(entry, run.models)
    given = {"path": str(path), "seed": run.seed}
    outputs = run.room / "outputs"
    outputs.mkdir(parents=True, exist_ok=True)
    with run.child("runtimes", "Reference", given) as child:
        flops = child.ask("flops", run.left())
        child.ask("save", run.left(), file=str(outputs / "reference.npz"))
    want = loaded(outputs / "reference.npz")
    # what may take too long to get ready comes last
    ours = {"folder": str(run.room), "precision": "fp16", "level": run.level, "budget": BUDGET}
    ours |= {"cache": run.cubins} if run.warm else {}
    peers = [p for p in KINDS if p in entry.peers and (run.peers is None or p in run.peers)]
    kinds = {"pelton": ("Pelton", ours), **{p: KINDS[p] for p in peers}}
    found |= {"seed": run.seed, "level": run.level, "flops": flops, "batch": entry.batch, "runtimes": {}, "wrong": {}}
    children: dict[str, Child] = {}

    def asked(name: str, what: str, **more: Any) -> Any:
        """An answer; None where that runtime fails, which ends its part in this."""
        try:
            return children[name].ask(what, run.left(FOR_TIMING if what in ("prepare", "save") else 0.0), **more)
        except Failed as e:
            found["runtimes"][name]["failed"] = str(e)
            found["wrong"].update({f"{entry.name}: {name}": str(e)} if name == "pelton" else {})
            children.pop(name).end()
            return None

    try:
        for name, (kind, more) in kinds.items():
            run.log(f"{entry.name}: {name} is being made ready")
            result: dict[str, Any] = {"passes": []}
            found["runtimes"][name] = result
            children[name] = run.child(
                "runtimes", kind, {**given, **more, **({"model": entry.model} if name == "jax" else {})}
            )
            if (ready := asked(name, "prepare")) is not None:
                result.update(ready)
                asked(name, "save", file=str(outputs / f"{name}.npz"))
                if name in children:
                    result["off"] = suite.finite(suite.off(loaded(outputs / f"{name}.npz"), want))
                    if name == "pelton" and not result["off"] <= suite.TOLERANCE["fp16"]:
                        found["wrong"][f"{entry.name}: fp16"] = f"off by {result['off']:.1e} of the largest output"
        run.log(f"{entry.name}: timing {', '.join(children)}")
        for _ in range(PASSES):
            rounds: dict[str, list[dict[str, float]]] = {name: [] for name in children}
            for turn in range(ROUNDS):
                order = list(children)
                first = turn % max(1, len(order))
                for name in order[first:] + order[:first]:
                    if (took := asked(name, "time", seconds=TRAIN)) is not None:
                        rounds[name].append(took)
            for name in list(children):
                found["runtimes"][name]["passes"].append(summary(rounds[name]))
        for name in list(children):
            if (alone := asked(name, "alone", runs=ALONE)) is not None:
                found["runtimes"][name]["alone_ms"] = alone
    finally:
        for child in children.values():
            child.end()


def summary(rounds: list[dict[str, float]]) -> dict[str, float]:
    """The median of the rounds, and their spread: the slowest by the fastest."""
    times = [r["ms"] for r in rounds]
    return {
        "ms": statistics.median(times),
        "spread": max(times) / min(times),
        "host_ms": statistics.median(r["host_ms"] for r in rounds),
    }


def loaded(file: Path) -> dict[str, np.ndarray]:
    with np.load(file) as found:
        return dict(found)


# fills in what it finds, so that what it had found is there when it fails
Part = Callable[[Run, dict[str, Any]], None]
CHECKS: dict[str, Part] = {
    "templates": templates,
    **{f"networks-{m}": partial(network, m) for m in suite.MODELS},
    "sanitizer": sanitizer,
}
FIGURES: dict[str, Part] = {"ceilings": ceilings, **{name: partial(model, name) for name in suite.ENTRIES}}
PARTS = {**CHECKS, **FIGURES}
GROUPS = {"checks": tuple(CHECKS), "models": tuple(suite.ENTRIES)}
