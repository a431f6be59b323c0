#!/usr/bin/env python3
"""Measures build times at every level with empty caches, and writes the defaults of sessions' time estimates."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from pelton.backends.cpu import default_threads, describe
from pelton.builder.sessions import count_layers

ROOT = Path(__file__).parents[1]
NETWORK = ROOT / "src/pelton/data/resnet20_cifar10.onnx"
BUILD = "import sys, pelton; pelton.build(sys.argv[1], level=int(sys.argv[2]), cache_dir=sys.argv[3])"


def product() -> onnx.ModelProto:
    """One layer."""
    weights = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [8, 64])],
        [numpy_helper.from_array(weights, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def took(model: Path, level: int) -> float:
    """Seconds of a build in a process of its own, without those of starting Python and Pelton."""
    with tempfile.TemporaryDirectory(prefix="pelton-builds-") as cache:
        begin = time.monotonic()
        subprocess.run([sys.executable, "-c", "import pelton; pelton.build"], check=True)
        started = time.monotonic() - begin
        begin = time.monotonic()
        subprocess.run([sys.executable, "-c", BUILD, str(model), str(level), cache], check=True)
        return max(time.monotonic() - begin - started, 0.01)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--levels", default="0,1,2,3,4,5")
    parser.add_argument("--output", type=Path, default=ROOT / "src/pelton/data/builds.json")
    args = parser.parse_args()
    levels: list[dict[str, float]] = json.loads(args.output.read_text())["levels"] if args.output.exists() else []
    count = count_layers(onnx.load(NETWORK))
    with tempfile.TemporaryDirectory(prefix="pelton-builds-") as folder:
        one = Path(folder, "product.onnx")
        onnx.save(product(), one)
        for level in map(int, args.levels.split(",")):
            single, network = took(one, level), took(NETWORK, level)
            levels[level : level + 1] = [
                {"build": round(single, 2), "layer": round(max(network - single, 0.0) / count, 3)}
            ]
            print(f"level {level}: one layer {single:.2f} s, {count} layers {network:.2f} s", flush=True)
    machine = describe()
    args.output.write_text(
        json.dumps(
            {
                "machine": machine["model"],
                "threads": default_threads(),
                "network": NETWORK.name,
                "layers": count,
                "levels": levels,
            },
            indent=1,
        )
        + "\n"
    )


if __name__ == "__main__":
    main()
