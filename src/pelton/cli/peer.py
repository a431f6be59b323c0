"""One runtime in a process of its own, timed on request: a program by itself, so that it runs where only numpy and that runtime are installed.

    peer.py RUNTIME FILE FEEDS.npz THREADS     a line of JSON on stdout once it is loaded, then one for each line on stdin:
    time SECONDS → {"ns": [...]}               save FILE.npz → {} (the outputs of the last run, in order)
"""
from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Run = Callable[[], Sequence[np.ndarray]]
PACKAGES = {"pelton": "pelton", "onnxruntime": "onnxruntime", "openvino": "openvino"}


def pelton(path: str, feeds: dict[str, np.ndarray], threads: int) -> Run:
    engine = importlib.import_module("pelton").load(path)
    context = engine.context(threads=threads)
    return lambda: list(context.run(feeds).values())


def onnxruntime(path: str, feeds: dict[str, np.ndarray], threads: int) -> Run:
    ort = importlib.import_module("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, feeds)


def openvino(path: str, feeds: dict[str, np.ndarray], threads: int) -> Run:
    ov = importlib.import_module("openvino")
    settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    request = ov.Core().compile_model(path, "CPU", settings).create_infer_request()
    return lambda: list(request.infer(feeds, share_inputs=True, share_outputs=True).values())


def main(runtime: str, path: str, feeds: str, threads: str) -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)                                 # what a runtime prints by itself is no answer

    def answer(found: dict) -> None:
        print(json.dumps(found), file=out, flush=True)

    try:
        version = getattr(importlib.import_module(PACKAGES[runtime]), "__version__", "?")
    except ImportError as e:
        return answer({"missing": str(e)})
    with np.load(feeds) as found:
        run = globals()[runtime](path, dict(found), int(threads))
    result = run()
    answer({"version": version})
    clock = time.perf_counter_ns
    for line in sys.stdin:
        what, _, value = line.strip().partition(" ")
        if what == "save":
            arrays: Any = {f"{i}": np.asarray(x) for i, x in enumerate(result)}
            np.savez(value, **arrays)
            answer({})
            continue
        for _ in range(2):
            run()
        times: list[int] = []
        end = clock() + int(float(value) * 1e9)
        while clock() < end or len(times) < 5:
            start = clock()
            result = run()
            times.append(clock() - start)
        answer({"ns": times})


if __name__ == "__main__":
    main(*sys.argv[1:])
