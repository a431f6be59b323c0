"""Engines in a Spark cluster of a master and two workers on this machine: equal results, lost workers."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import pelton

if "PELTON_TEST_CLUSTER" not in os.environ:
    pytest.skip("starts a Spark cluster: make test-cluster", allow_module_level=True)

pytest.importorskip("pyspark")

import cluster_rows  # noqa: E402
from clusters import children, command, spark_cluster, wait_for  # noqa: E402

BATCH = 50


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with spark_cluster(tmp_path_factory.mktemp("spark")) as running:
        yield running


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return cluster_rows.save_engine(tmp_path_factory.mktemp("engines"))


@pytest.fixture(scope="module")
def images():
    return cluster_rows.draw_images()


@pytest.fixture(scope="module")
def table(cluster, images, tmp_path_factory):
    import pyarrow
    import pyarrow.parquet

    path = tmp_path_factory.mktemp("tables") / "images.parquet"
    columns = {"id": np.arange(len(images)), "image": list(images.reshape(len(images), -1))}
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return cluster[0].read.parquet(str(path)).repartition(8)


def check(rows, path, images):
    logits = np.array([row.logits for row in rows], np.float32)
    cluster_rows.check(np.array([row.id for row in rows]), logits, path, images)


def test_predict_batch_udf(table, path, images):
    from pyspark.ml.functions import predict_batch_udf
    from pyspark.sql.types import ArrayType, FloatType

    logits = predict_batch_udf(
        pelton.spark.predictor(path),
        return_type=ArrayType(FloatType()),
        batch_size=BATCH,
        input_tensor_shapes=[[3072]],
    )
    check(table.select("id", logits("image").alias("logits")).collect(), path, images)


def test_map_in_pandas(table, path, images):
    made = table.mapInPandas(pelton.spark.map_in_pandas(path, keep="id"), "id long, logits array<float>")
    check(made.collect(), path, images)


def test_errors_of_tasks_name_the_column(table, path):
    made = table.withColumnRenamed("image", "picture").mapInPandas(
        pelton.spark.map_in_pandas(path, keep="id"), "id long, logits array<float>"
    )
    with pytest.raises(Exception, match="needs the column image; the table has id, picture"):
        made.collect()


def slow(path, folder):
    """Returns the function of `map_in_pandas`, which notes its process and takes its time."""
    run = pelton.spark.map_in_pandas(path, keep="id")

    def work(frames):
        for frame in frames:
            (Path(folder) / str(os.getpid())).touch()
            for start in range(0, len(frame), 16):
                time.sleep(0.3)
                yield from run(iter([frame[start : start + 16]]))

    return work


@pytest.mark.parametrize("victim", ["executor", "worker"])
def test_a_lost_process_loses_no_rows(victim, cluster, table, path, images, tmp_path):
    _, workers = cluster
    alive = [w for w in workers if w.poll() is None]
    made = table.mapInPandas(slow(str(path), str(tmp_path)), "id long, logits array<float>")
    rows: list = []
    failed: list = []

    def collect():
        try:
            rows.extend(made.collect())
        except Exception as e:
            failed.append(e)

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    wait_for(lambda: len(os.listdir(tmp_path)) >= 2, "the start of tasks on both workers", 100)
    before = set(os.listdir(tmp_path))
    executors = [p for p in children(alive[0].pid) if "CoarseGrainedExecutorBackend" in command(p)]
    assert executors, "the worker has no executor"
    for pid in executors if victim == "executor" else (alive[0].pid, *executors):
        os.kill(pid, signal.SIGKILL)
    thread.join(150)
    assert not thread.is_alive() and not failed, failed
    check(rows, path, images)
    assert victim == "worker" or set(os.listdir(tmp_path)) > before  # a new process took its place
