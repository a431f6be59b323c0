"""Trtexec's reports of runs, profiles, layers and outputs, in the forms that scripts parse."""

from __future__ import annotations

import itertools
import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pelton.engine.plan import EnginePlan, Step
from pelton.engine.sizes import at, optimum_sizes

if TYPE_CHECKING:
    from pelton.runtime import Engine

Print = Callable[[str], None]
SHOWN = 200  # lines of averages at the begin, and as many at the end
UNSTABLE = 2.5  # percent of variation above which times count as unstable
AROUND = ("if", "loop", "scan")  # steps of scripts whose times include those of others
EXPLANATIONS = """
=== Explanations of the performance metrics ===
Total Host Walltime: from when the first query after the warm-up begins to when the last one is over.
GPU Compute Time: what a query takes, on whatever device the engine is for; on a GPU with its transfers.
Total GPU Compute Time: the sum of this over all queries; with several streams it may exceed the walltime.
Throughput: the number of queries by the Total Host Walltime.
Enqueue Time: how long the host is busy with starting a query; with one stream, until it is over.
H2D Latency, D2H Latency: 0; what a GPU takes for transfers is part of GPU Compute Time.
Latency: the sum of H2D Latency, GPU Compute Time and D2H Latency."""
# names of element types that tools for TensorRT know
TYPES = {"f64": "Double", "f32": "Float", "f16": "Half", "bf16": "BFloat16", "bool": "Bool", "f8e4m3fn": "FP8"}
TYPES |= {f"{k}{bits}": f"{'U' if k == 'u' else ''}Int{bits}" for k in "iu" for bits in (4, 8, 16, 32, 64)}
COLUMNS = ("   Time(ms)", "     Avg.(ms)", "   Median(ms)", "   Time(%)", "   Layer")


class Log:
    """Lines in the form of trtexec's logger: information on stdout, warnings and errors on stderr."""

    def __init__(self, verbose: bool, quiet: bool):
        self.verbosely, self.quietly = verbose, quiet

    def info(self, lines: str = "") -> None:
        self._write("I", lines)

    def verbose(self, lines: str) -> None:
        if self.verbosely:
            self._write("V", lines)

    def warning(self, lines: str) -> None:
        if not self.quietly:
            self._write("W", lines)

    def error(self, lines: str) -> None:
        self._write("E", lines)

    def _write(self, kind: str, lines: str) -> None:
        now, stream = time.strftime("%m/%d/%Y-%H:%M:%S"), sys.stderr if kind in "WE" else sys.stdout
        sys.stdout.flush()  # keeps both in order if they go to one file
        for line in lines.split("\n"):
            print(f"[{now}] [{kind}] {line}", file=stream)


# ---- runs


class Runs:
    """Begin and end of the counted runs, in milliseconds.

    spans: float64[runs, 4]: begin and end of the call that started each, begin and end of the run itself.
    warmups: number of runs before them, over `warmup` milliseconds.
    """

    def __init__(self, spans: np.ndarray, warmups: int, warmup: float):
        self.spans, self.warmups, self.warmup = spans, warmups, warmup

    @property
    def enqueue(self) -> np.ndarray:
        return self.spans[:, 1] - self.spans[:, 0]

    @property
    def compute(self) -> np.ndarray:
        return self.spans[:, 3] - self.spans[:, 2]

    @property
    def walltime(self) -> float:
        return float(self.spans[:, 3].max() - self.spans[0, 2])

    def averages(self, of: int) -> Iterator[str]:
        """Yields a line for each `of` consecutive runs."""
        whole = len(self.spans) // of
        lines = whole if whole <= 2 * SHOWN else SHOWN
        for i in (*range(lines), *range(max(lines, whole - SHOWN), whole)):
            if i == whole - SHOWN and whole > 2 * SHOWN:
                yield f"... Omitting {whole - 2 * SHOWN} lines"
            compute, enqueue = (float(ms[i * of : (i + 1) * of].mean()) for ms in (self.compute, self.enqueue))
            yield (
                f"Average on {of} runs - GPU latency: {compute:g} ms - Host latency: {compute:g} ms"
                f" (enqueue {enqueue:g} ms)"
            )

    def report(self, log: Log, average: int, percentiles: Sequence[float], streams: int) -> None:
        """Prints the trace, the summary, and doubts about it."""
        runs, compute = len(self.spans), self.compute
        log.info(f"Warmup completed {self.warmups} queries over {self.warmup:g} ms")
        log.info(f"Timing trace has {runs} queries over {self.walltime / 1e3:g} s")
        log.info("\n=== Trace details ===")
        log.info(f"Trace averages of {average} runs:")
        for line in self.averages(average):
            log.info(line)
        none = np.zeros(runs)
        log.info("\n=== Performance summary ===")
        log.info(f"Throughput: {runs / self.walltime * 1e3:g} qps")
        for name, ms in (
            ("Latency", compute),
            ("Enqueue Time", self.enqueue),
            ("H2D Latency", none),
            ("GPU Compute Time", compute),
            ("D2H Latency", none),
        ):
            log.info(f"{name}: {summary(ms, percentiles)}")
        log.info(f"Total Host Walltime: {self.walltime / 1e3:g} s")
        log.info(f"Total GPU Compute Time: {compute.sum() / 1e3:g} s")
        variation = float(compute.std() / compute.mean()) * 100
        if variation > UNSTABLE:
            log.warning(f"* GPU compute time is unstable, with coefficient of variance = {variation:g}%.")
            log.warning("  Others may be using the machine, or its clock changes.")
        if streams > 1:
            log.warning(
                "* Multiple inference streams are used. Latencies include that runs hold each other up; throughput is"
                " what counts."
            )
        log.info("Explanations of the performance metrics are printed in the verbose logs.")
        log.verbose(EXPLANATIONS)
        log.info()

    def times(self) -> list[dict[str, float]]:
        """Returns the content of --exportTimes: times since the first run of the warm-up. Nothing is transferred before
        or after a run."""
        return [
            {
                "startEnqMs": enqueue,
                "endEnqMs": enqueued,
                "startH2dMs": begin,
                "endH2dMs": begin,
                "startComputeMs": begin,
                "endComputeMs": end,
                "startD2hMs": end,
                "endD2hMs": end,
                "h2dMs": 0.0,
                "computeMs": end - begin,
                "d2hMs": 0.0,
                "latencyMs": end - begin,
            }
            for enqueue, enqueued, begin, end in self.spans.tolist()
        ]


def percentile(ms: np.ndarray, percent: float) -> float:
    """Returns the largest time among this percentage of the fastest, counted in float32 as trtexec does."""
    beyond = int((np.float32(1) - np.float32(percent) / np.float32(100)) * np.float32(len(ms)))
    return float(np.sort(ms)[max(len(ms) - 1 - beyond, 0)])


def summary(ms: np.ndarray, percentiles: Sequence[float]) -> str:
    statistics = {"min": ms.min(), "max": ms.max(), "mean": ms.mean(), "median": np.median(ms)}
    statistics |= {f"percentile({p:g}%)": percentile(ms, p) for p in percentiles}
    return ", ".join(f"{name} = {value:g} ms" for name, value in statistics.items())


# ---- steps


def apart(engine: Engine) -> list[int]:
    """Returns the numbers of steps whose times exclude those of others."""
    own = sum(len(part.steps) for part in engine.parts)
    return [i for i, step in enumerate(engine.steps) if i < own or step.host not in AROUND]


def resolved(engine: Engine) -> Iterator[tuple[EnginePlan | None, Step]]:
    """Yields the same steps, each with its plan at the optimum sizes, None for those of scripts between engines."""
    plans = [at(part.plain, optimum_sizes(part.plain)) for part in engine.parts]
    pairs: list[tuple[EnginePlan | None, Step]] = [(plan, step) for plan in plans for step in plan.steps]
    pairs += [(None, step) for step in engine.steps[len(pairs) :]]
    return (pairs[i] for i in apart(engine))


def names(engine: Engine) -> list[str]:
    """Returns the distinct names of the same steps, by which tools join profiles and layers: repeated names get a
    number, as in `copy (2)`."""
    result = dict[str, None]()
    for i in apart(engine):
        name = engine.steps[i].name
        numbered = itertools.chain([name], (f"{name} ({n})" for n in itertools.count(2)))
        result[next(each for each in numbered if each not in result)] = None
    return list(result)


class StepTimes:
    """Milliseconds of each step in each run. times: float64[runs, steps]."""

    def __init__(self, names: Sequence[str], times: np.ndarray):
        self.names, self.times = names, times
        self.total = float(times.sum()) or 1.0

    def json(self) -> list[dict[str, Any]]:
        """Returns the content of --exportProfile."""
        layers = [
            {
                "name": name,
                "timeMs": float(ms.sum()),
                "averageMs": float(ms.mean()),
                "medianMs": float(np.median(ms)),
                "percentage": float(ms.sum()) / self.total * 100,
            }
            for name, ms in zip(self.names, self.times.T)
        ]
        return [{"count": len(self.times)}, *layers]

    def report(self, log: Log) -> None:
        log.info(f"\n=== Profile ({len(self.times)} iterations ) ===")
        log.info("".join(COLUMNS))
        for name, ms in (*zip(self.names, self.times.T), ("Total", self.times.sum(axis=1))):
            if not ms.any():  # it never ran
                continue
            figures = (
                f"{ms.sum():.2f}",
                f"{ms.mean():.4f}",
                f"{np.median(ms):.4f}",
                f"{ms.sum() / self.total * 100:.1f}",
            )
            log.info("".join(f.rjust(len(c)) for f, c in zip(figures, COLUMNS)) + f"   {name}")
        log.info()


class Tensors:
    """The content of each buffer of a plan, from the steps examined so far."""

    def __init__(self, plan: EnginePlan):
        self.of: dict[int, list[dict[str, Any]]] = {}
        self.outputs = {i: plan.outputs[b.offset].name for i, b in enumerate(plan.buffers) if b.kind == "output"}
        for i, buffer in enumerate(plan.buffers):
            if buffer.kind == "input":
                port = plan.inputs[buffer.offset]
                self.of[i] = [_tensor(port.name, port)]

    def read_by(self, step: Step) -> list[dict[str, Any]]:
        """Returns the tensors that a step reads; constants are left out."""
        wrote = {t.slice.buffer for t in step.outputs}
        read = dict.fromkeys(s.buffer for s in (*step.args, *(t.slice for t in step.inputs)))
        return [tensor for buffer in read if buffer not in wrote for tensor in self.of.get(buffer, ())]

    def written_by(self, step: Step) -> list[dict[str, Any]]:
        """Returns the tensors that a step writes, for later ones."""
        names = (*(step.info.get("writes") or ()), *(step.name for _ in step.outputs))
        tensors = list[dict[str, Any]]()
        for name, tensor in zip(names, step.outputs):
            buffer = tensor.slice.buffer
            tensors.append(_tensor(self.outputs.get(buffer, name), tensor))
            self.of.setdefault(buffer, []).append(tensors[-1])
        return tensors


def layers(engine: Engine, verbosity: str) -> dict[str, list[Any]]:
    """Returns the content of --exportLayerInfo: steps and ports, by their names or in detail."""
    known: dict[int, Tensors] = {}
    entries: list[Any] = []
    steps = zip(resolved(engine), names(engine)) if verbosity != "none" else ()
    for (plan, step), name in steps:
        tensors = known.setdefault(id(plan), Tensors(plan)) if plan is not None else None
        detail = {
            "Name": name,
            "LayerType": step.info.get("op", ""),
            "Inputs": tensors.read_by(step) if tensors else [],
            "Outputs": tensors.written_by(step) if tensors else [],
            "TacticName": "host" if step.host else step.info.get("tactic", ""),
            "StreamId": 0,
            "Metadata": "\x1e".join(f"[ONNX Layer: {layer}]" for layer in step.info.get("layers") or ()),
        }
        entries.append(detail if verbosity == "detailed" else name)
    return {"Layers": entries, "Bindings": [p.name for p in (*engine.inputs, *engine.outputs)]}


def _tensor(name: str, of: Any) -> dict[str, Any]:
    return {"Name": name, "Dimensions": list(of.shape), "Format/Datatype": TYPES.get(of.dtype, of.dtype)}


def layer_lines(found: Mapping[str, list[Any]]) -> Iterator[str]:
    """Yields the same for --dumpLayerInfo, a line for each."""

    def side(tensors: Sequence[Mapping[str, Any]]) -> str:
        return ", ".join(f"{t['Name']} ({t['Format/Datatype']}{t['Dimensions']})" for t in tensors)

    yield "Layers:"
    for layer in found["Layers"]:
        yield (
            layer
            if isinstance(layer, str)
            else f"Layer({layer['LayerType']}): {layer['Name']}, Tactic: {layer['TacticName']},"
            f" {side(layer['Inputs'])} -> {side(layer['Outputs'])}"
        )
    yield "\nBindings:"
    yield from found["Bindings"]


# ---- outputs


def outputs_json(arrays: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """Returns the content of --exportOutput. JSON has no infinities and no NaN: they are null."""
    return [
        {"name": name, "dimensions": "x".join(map(str, a.shape)), "values": [_number(v) for v in a.ravel().tolist()]}
        for name, a in arrays.items()
    ]


def _number(value: Any) -> Any:
    return None if isinstance(value, float) and not np.isfinite(value) else value


def output_lines(arrays: Mapping[str, np.ndarray]) -> Iterator[str]:
    """Yields the same for --dumpOutput."""
    for name, a in arrays.items():
        yield f"{name}: ({'x'.join(map(str, a.shape))})"
        yield " ".join(f"{v:g}" if isinstance(v, float) else str(v) for v in a.ravel().tolist())


def raw_name(name: str, kind: str, array: np.ndarray) -> str:
    """Returns the file of an input or output for --dumpRawBindingsToFile."""
    dims = ".".join(map(str, array.shape))
    return re.sub(r"[^\w.-]", "_", f"{name}.{kind}.{dims}.{array.dtype}.raw")


def as_json(found: Any) -> bytes:
    """Encodes a list with an element a line, or an object of such lists."""
    if isinstance(found, list):
        return b"[\n  " + "\n, ".join(map(json.dumps, found)).encode() + b"\n]\n"
    lists = [json.dumps(name).encode() + b": " + as_json(values) for name, values in found.items()]
    return b"{" + b",".join(lists) + b"}\n"
