#!/usr/bin/env python3
"""Measures rows a second of an engine alone, in ray.data and in Spark, and writes a table.

    python -m benchmarks.serve.cluster [--rounds 3] [--page docs/scaling.md]

All on this machine of two CPUs: the engine alone in two threads of this process; Ray with two actors on two nodes;
Spark with two workers of one core. In turns, medians. The first turn starts workers and is not counted; actors of Ray
are started for each dataset, which counts. Needs the extras ray and spark (`make test-cluster` installs both).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import pelton
from pelton.compat.rows import RowRunner

from .page import replace_part

ROOT = Path(__file__).parents[2]
BEGIN, END = "<!-- cluster: begin -->", "<!-- cluster: end -->"
BATCH = 256
BLOCKS = 16
MODES = ("engine alone", "Ray", "Spark")


def mlp(path: Path) -> None:
    """Builds an MLP of 84 million weights: more than a millisecond a row on one thread."""
    rng = np.random.default_rng(0)
    network = pelton.Network("mlp")
    y = network.input("x", "f32[batch=1..32..64, 1024]")
    for shape in ((8192, 1024), (8192, 8192)):
        y = network.relu(network.linear(y, rng.standard_normal(shape).astype(np.float32) / 64))
    network.output(network.linear(y, rng.standard_normal((1024, 8192)).astype(np.float32) / 64), "y")
    pelton.build(network, level=1, threads=1).save(path)


def resnet20(path: Path) -> None:
    """Builds the network of the demo for 1 to 32 images."""
    model = Path(pelton.__file__).parent / "data" / "resnet20_cifar10.onnx"
    pelton.build(model, {"image": "1..8..32x3x32x32"}, level=1, threads=1).save(path)


MODELS: dict[str, tuple[Callable[[Path], None], int]] = {"MLP": (mlp, 12288), "ResNet-20": (resnet20, 16384)}


def seconds(work: Callable[[], int], rows: int) -> float:
    """Returns the time of a pass over the table. Raises RuntimeError if it lost or doubled rows."""
    start = time.perf_counter()
    count = work()
    elapsed = time.perf_counter() - start
    if count != rows:
        raise RuntimeError(f"{count} rows came back of {rows}")
    return elapsed


def passes(path: Path, rows: int, folder: Path, session: Any) -> dict[str, Callable[[], int]]:
    """Returns the ways to run the engine over a table; each returns the rows of its results."""
    import pyarrow
    import pyarrow.parquet
    import ray

    runners = [RowRunner(path) for _ in range(2)]
    runner = runners[0]
    port, output = runner.inputs[0], runner.outputs[0]
    table = np.random.default_rng(1).standard_normal((rows, int(np.prod(port.shape[1:])))).astype(np.float32)
    parts = np.array_split(table, rows // BATCH)
    dataset = ray.data.from_numpy([np.ascontiguousarray(p) for p in np.array_split(table, BLOCKS)])
    dataset = dataset.rename_columns({"data": port.name}).materialize()
    file = folder / f"{path.stem}.parquet"
    columns = pyarrow.table({port.name: list(table)})
    pyarrow.parquet.write_table(columns, file, row_group_size=rows // BLOCKS)
    frame = session.read.parquet(str(file)).repartition(BLOCKS).cache()
    frame.count()
    options = {"fn_constructor_kwargs": {"path": str(path)}, "batch_size": BATCH, "concurrency": 2, "num_cpus": 1}
    mapped = frame.mapInPandas(pelton.spark.map_in_pandas(path), f"{output} array<float>")

    def alone() -> int:
        def half(which: int) -> int:
            return sum(len(runners[which].run({port.name: part})[output]) for part in parts[which::2])

        with ThreadPoolExecutor(2) as pool:
            return sum(pool.map(half, range(2)))

    def in_spark() -> int:
        from pyspark.sql.functions import size, sum

        width = int(np.prod([n for p in runner.shared.engine.outputs for n in p.shape[1:]]))
        return int(mapped.agg(sum(size(output))).collect()[0][0]) // width

    return {
        "engine alone": alone,
        "Ray": lambda: dataset.map_batches(pelton.ray.Predictor, **options).materialize().count(),
        "Spark": in_spark,
    }


def measure(rounds: int) -> list[str]:
    """Returns the lines of the table."""
    sys.path.insert(0, str(ROOT / "tests"))
    from clusters import ray_cluster, spark_cluster

    lines = [
        "| network | rows | alone, ms of both CPUs a row | rows a second: alone | Ray, 2 actors | Spark, 2 workers |"
    ]
    lines.append("|---|--:|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as name, ray_cluster(), spark_cluster(Path(name)) as (session, _):
        for model, (build, rows) in MODELS.items():
            path = Path(name) / f"{model}.pelton"
            build(path)
            works = passes(path, rows, Path(name), session)
            times: dict[str, list[float]] = {mode: [] for mode in MODES}
            for turn in range(rounds + 1):
                for mode in MODES:
                    took = seconds(works[mode], rows)
                    print(f"{model}, {mode}: {rows / took:.0f} rows a second", flush=True)
                    if turn:
                        times[mode].append(took)
            alone, ray, spark = (float(np.median(times[mode])) for mode in MODES)
            cells = [f"{rows / alone:,.0f}", *(f"{rows / t:,.0f} ({alone / t:.2f} ×)" for t in (ray, spark))]
            lines.append(f"| {model} | {rows:,} | {alone / rows * 1e3:.2f} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--page", type=Path, help="write the table between the marks of this page")
    args = parser.parse_args()
    lines = measure(args.rounds)
    print("\n".join(lines))
    if args.page:
        replace_part(args.page, BEGIN, END, ["", *lines, ""])


if __name__ == "__main__":
    main()
