"""One runtime in its own process, timed on request; a program that needs only numpy and that runtime.

    peer.py RUNTIME FILE FEEDS.npz SPLITS OUTPUTS      a line of JSON on stdout once it is loaded, then one for each
    line on stdin:
    time SECONDS → {"spans": [[begin, end], ...], "start": the begin, "end": when no more runs begin}, in ns
    save FILE.npz → {} (the outputs, in order)
    run FEEDS.npz → {} (other values of the same sizes; pelton and onnxruntime only)

SPLITS is a JSON list of [streams, threads of each]. [[1, 2]] is one run after the other, for callers that wait for
outputs. Of several splits, or with more streams, the split with the most runs is timed, each stream in a thread with a
session of its own; OpenVINO, which has streams, chooses their number by itself. OUTPUTS is the JSON list of the model's
outputs. Converted models are written beside FEEDS.npz.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

Feeds = dict[str, np.ndarray]
Run = Callable[[], Sequence[np.ndarray]]
Span = tuple[int, int]  # begin and end of a run in nanoseconds
# seconds → runs of that duration, in sequence in each stream: (their start, the end of the starts, their spans)
Keep = Callable[[float], tuple[int, int, list[Span]]]
# Packages that a runtime needs; its version is that of the first.
PACKAGES = {
    "pelton": ("pelton",),
    "onnxruntime": ("onnxruntime",),
    "openvino": ("openvino",),
    "mnn": ("MNN",),
    "ncnn": ("ncnn", "pnnx"),
}
# Other settings of a runtime → the runtime.
VARIANTS = {"onnxruntime_unoptimized": "onnxruntime"}
PATIENCE = 900  # seconds for a conversion
TRIAL = 0.5  # seconds per split


def pelton(path: str, feeds: Feeds, threads: int, outputs: list[str], folder: Path) -> Run:
    engine = importlib.import_module("pelton").load(path)
    context = engine.context(threads=threads)
    return lambda: list(context.run(feeds).values())


def onnxruntime(path: str, feeds: Feeds, threads: int, outputs: list[str], folder: Path, optimized: bool = True) -> Run:
    ort = importlib.import_module("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    if not optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, feeds)


def onnxruntime_unoptimized(path: str, feeds: Feeds, threads: int, outputs: list[str], folder: Path) -> Run:
    """Runs node by node, in the order of the file."""
    return onnxruntime(path, feeds, threads, outputs, folder, optimized=False)


def openvino(path: str, feeds: Feeds, threads: int, outputs: list[str], folder: Path) -> Run:
    ov = importlib.import_module("openvino")
    settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    request = ov.Core().compile_model(path, "CPU", settings).create_infer_request()
    return lambda: list(request.infer(feeds, share_inputs=True, share_outputs=True).values())


def mnn(path: str, feeds: Feeds, threads: int, outputs: list[str], folder: Path) -> Run:
    mnn = importlib.import_module("MNN")
    # Its own command, MNN.tools.mnnconvert, would install a package and report to its makers.
    made = _converted(
        "import MNN, _tools, sys; _tools.mnnconvert(sys.argv)",
        ["-f", "ONNX", "--modelFile", os.path.abspath(path), "--MNNModel", "model.mnn", "--bizCode", "pelton"],
        folder,
        "model.mnn",
    )
    net = mnn.Interpreter(str(made[0]))
    session = net.createSession({"backend": "CPU", "numThread": threads, "precision": "high"})
    places = net.getSessionInputAll(session)
    results = net.getSessionOutputAll(session)
    inputs = {name: x if x.dtype == np.float32 else x.astype(np.int32) for name, x in feeds.items()}

    def tensor(x: np.ndarray) -> Any:
        kind = mnn.Halide_Type_Float if x.dtype == np.float32 else mnn.Halide_Type_Int
        return mnn.Tensor(x.shape, kind, x, mnn.Tensor_DimensionType_Caffe)

    def run() -> list[np.ndarray]:
        for name, x in inputs.items():
            places[name].copyFrom(tensor(x))
        if code := net.runSession(session):
            raise RuntimeError(f"MNN does not compute the model: status {code}")
        arrays = []
        for name in outputs:
            out = results[name]
            array = np.empty(out.getShape(), np.float32 if out.getDataType() == mnn.Halide_Type_Float else np.int32)
            host = tensor(array)  # its memory is its own
            out.copyToHostTensor(host)
            arrays.append(np.array(host.getNumpyData()))
        return arrays

    return run


def ncnn(path: str, feeds: Feeds, threads: int, outputs: list[str], folder: Path) -> Run:
    nn = importlib.import_module("ncnn")
    (folder / "model.onnx").symlink_to(os.path.abspath(path))  # pnnx writes beside its input
    shapes = ",".join(f"[{','.join(map(str, x.shape))}]{x.dtype.kind}{8 * x.dtype.itemsize}" for x in feeds.values())
    param, weights, example = _converted(
        "import pnnx; pnnx.pnnx()",
        ["model.onnx", f"inputshape={shapes}", "fp16=0"],
        folder,
        "model.ncnn.param",
        "model.ncnn.bin",
        "model_ncnn.py",
    )
    net = nn.Net()
    net.opt.num_threads = threads
    net.opt.use_fp16_packed = net.opt.use_fp16_storage = net.opt.use_fp16_arithmetic = False
    if net.load_param(str(param)) or net.load_model(str(weights)):
        left = sorted({line.split()[0] for line in param.read_text().splitlines() if "." in line.partition(" ")[0]})
        raise RuntimeError(
            f"ncnn cannot load the result of pnnx, which left layers unconverted: {', '.join(left) or 'none'}"
        )
    # Tensors of ncnn have no batch axis or keep it apart; the example that pnnx writes names the axis.
    code = example.read_text()
    squeezed = {name: int(axis) for name, axis in re.findall(r"Mat\((in\d+)\.squeeze\((\d+)\)", code)}
    apart = {name: int(axis) for name, axis in re.findall(r"\b(\w+)\.numpy\((?:\), )?batch_index=(\d+)", code)}
    inputs = []
    for i, x in enumerate(feeds.values()):
        name = f"in{i}"
        x = x.astype(np.int32) if x.dtype.kind in "iub" else x
        inputs.append(
            (
                name,
                x.squeeze(squeezed[name]) if name in squeezed else x,
                {"batch_index": apart[name]} if name in apart else {},
            )
        )

    def run() -> list[np.ndarray]:
        extractor = net.create_extractor()
        for name, x, more in inputs:
            extractor.input(name, nn.Mat(x, **more))
        arrays = []
        for i in range(len(outputs)):
            name = f"out{i}"
            status, out = extractor.extract(name)
            if status:
                raise RuntimeError(f"ncnn does not compute {outputs[i]}: status {status}")
            arrays.append(np.array(out.numpy(batch_index=apart[name]) if name in apart else out))
        return arrays

    return run


def _converted(program: str, arguments: Sequence[str], folder: Path, *files: str) -> list[Path]:
    """Runs a converter in a folder and returns the files that it wrote. Raises RuntimeError with its last output line
    if a file is missing."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=PATIENCE,
    )
    made = [folder / name for name in files]
    if not all(f.exists() for f in made):
        lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
        raise RuntimeError(
            f"it cannot be converted (status {done.returncode}): {lines[-1] if lines else 'no reason given'}"
        )
    return made


def _installed(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "?"


def openvino_streams(path: str, feeds: Feeds, streams: int, threads: int) -> tuple[Run, Keep, list[int]]:
    """Loads as `load`, with the runtime's own streams and this many threads in total; 0 streams: its choice."""
    ov = importlib.import_module("openvino")
    settings = {"PERFORMANCE_HINT": "THROUGHPUT", "INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    if streams:
        settings["NUM_STREAMS"] = streams
    compiled = ov.Core().compile_model(path, "CPU", settings)
    streams = int(compiled.get_property("NUM_STREAMS"))
    # with more requests than streams, no stream waits for this thread to pass the next inputs
    queue = ov.AsyncInferQueue(compiled, 2 * int(compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")))
    spans: list[Span] = []
    queue.set_callback(lambda request, began: spans.append((began, time.perf_counter_ns())))

    def keep(seconds: float) -> tuple[int, int, list[Span]]:
        spans.clear()
        start = time.perf_counter_ns()
        end = start + int(seconds * 1e9)
        while time.perf_counter_ns() < end:
            queue.start_async(feeds, time.perf_counter_ns(), share_inputs=True)
        queue.wait_all()
        return start, end, list(spans)

    request = compiled.create_infer_request()
    return lambda: list(request.infer(feeds).values()), keep, [streams, max(1, threads // streams)]


def keep_busy(runs: Sequence[Run]) -> Keep:
    """Repeats each of these runs, in a thread of its own if there are several."""

    def repeat(run: Run, end: int, spans: list[Span]) -> None:
        while (began := time.perf_counter_ns()) < end or len(spans) < 5:
            run()
            spans.append((began, time.perf_counter_ns()))

    def keep(seconds: float) -> tuple[int, int, list[Span]]:
        spans: list[Span] = []
        start = time.perf_counter_ns()
        end = start + int(seconds * 1e9)
        if len(runs) == 1:
            repeat(runs[0], end, spans)
        else:
            threads = [threading.Thread(target=repeat, args=(run, end, spans)) for run in runs]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        return start, end, spans

    return keep


def load(
    runtime: str, path: str, feeds: Feeds, splits: list[list[int]], outputs: list[str], folder: Path
) -> tuple[Run, Keep, list[int]]:
    """Returns a run that returns the outputs, the runs to time, and the split with the most of these."""
    if runtime == "openvino" and (len(splits) > 1 or splits[0][0] > 1):
        return openvino_streams(path, feeds, splits[0][0] if len(splits) == 1 else 0, max(s * t for s, t in splits))

    def sessions(split: list[int]) -> list[Run]:
        streams, threads = split
        made = [Path(tempfile.mkdtemp(dir=folder)) for _ in range(streams)]
        return [globals()[runtime](path, feeds, threads, outputs, place) for place in made]

    def rate(split: list[int]) -> float:
        keep = keep_busy(sessions(split))
        keep(TRIAL / 4)
        start, end, spans = keep(TRIAL)
        return len(spans) / (max(e for _, e in spans) - start)

    best = max(splits, key=rate) if len(splits) > 1 else splits[0]
    runs = sessions(best)
    return runs[0], keep_busy(runs), best


def main(runtime: str, path: str, feeds: str, splits: str, outputs: str) -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a runtime's own output is not an answer

    def answer(found: dict) -> None:
        print(json.dumps(found), file=out, flush=True)

    packages = PACKAGES[VARIANTS.get(runtime, runtime)]
    try:
        module = importlib.import_module(packages[0])
        missing = [p for p in packages[1:] if importlib.util.find_spec(p) is None]
        if missing:
            raise ImportError(f"no module named {missing[0]!r}")
    except ImportError as e:
        return answer({"missing": str(e)})
    with np.load(feeds) as found:
        inputs = dict(found)
    folder = tempfile.mkdtemp(prefix=runtime, dir=os.path.dirname(feeds))
    run, keep, split = load(runtime, path, inputs, json.loads(splits), json.loads(outputs), Path(folder))
    run()
    answer({"version": getattr(module, "__version__", "") or _installed(packages[0]), "split": split})
    for line in sys.stdin:
        what, _, value = line.strip().partition(" ")
        if what == "save":
            arrays: Any = {f"{i}": np.asarray(x) for i, x in enumerate(run())}
            np.savez(value, **arrays)
            answer({})
        elif what == "run":
            with np.load(value) as found:
                inputs.update(found)
            answer({})
        else:
            for _ in range(2):
                run()
            start, end, spans = keep(float(value))
            answer({"start": start, "end": end, "spans": spans})


if __name__ == "__main__":
    main(*sys.argv[1:])
