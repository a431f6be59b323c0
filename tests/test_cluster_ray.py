"""Engines in a Ray cluster of three nodes on this machine: equal results, lost workers, Ray Serve."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import signal
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest

import pelton

if "PELTON_TEST_CLUSTER" not in os.environ:
    pytest.skip("starts a Ray cluster: make test-cluster", allow_module_level=True)

import cluster_rows  # noqa: E402
from clusters import ray_cluster  # noqa: E402  # before Ray: it sets variables that Ray reads at its import

ray = pytest.importorskip("ray")
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers do not have the tests


@pytest.fixture(scope="module")
def cluster():
    with ray_cluster() as running:
        yield running


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return cluster_rows.save_engine(tmp_path_factory.mktemp("engines"))


@pytest.fixture(scope="module")
def images():
    return cluster_rows.draw_images()


def dataset(images, blocks):
    parts = np.array_split(np.arange(len(images)), blocks)
    return ray.data.from_blocks([_table({"image": images[part], "id": part}) for part in parts])


def _table(columns):
    from ray.data.block import BlockAccessor

    return BlockAccessor.batch_to_block(columns)


class SlowPredictor(pelton.ray.Predictor):
    """Notes its process in a file, and takes its time."""

    def __init__(self, folder, **options):
        super().__init__(**options)
        (Path(folder) / f"{os.getpid()}").write_text(ray.get_runtime_context().get_node_id())

    def __call__(self, batch):
        time.sleep(0.3)
        return super().__call__(batch)


def check(batches, path, images):
    ids, logits = (np.concatenate([b[name] for b in batches]) for name in ("id", "logits"))
    cluster_rows.check(ids, logits, path, images)


def slow(images, path, folder):
    """Returns a dataset of logits whose workers note their processes in a folder."""
    return dataset(images, 16).map_batches(
        SlowPredictor,
        fn_constructor_kwargs={"folder": str(folder), "path": str(path), "keep": "id"},
        batch_size=32,
        concurrency=2,
        num_cpus=1,
        max_restarts=-1,
        max_task_retries=-1,
    )


def test_map_batches(cluster, path, images):
    options = {"path": str(path), "keep": "id"}
    made = dataset(images, 8).map_batches(
        pelton.ray.Predictor, fn_constructor_kwargs=options, batch_size=50, concurrency=2, num_cpus=1
    )
    check(list(made.iter_batches(batch_size=None)), path, images)


def test_a_killed_worker_loses_no_rows(cluster, path, images, tmp_path):
    made = slow(images, path, tmp_path)
    batches, killed = [], None
    for batch in made.iter_batches(batch_size=None, prefetch_batches=0):
        batches.append(batch)
        if killed is None:
            killed = int(sorted(os.listdir(tmp_path))[0])
            os.kill(killed, signal.SIGKILL)
    check(batches, path, images)
    assert killed is not None and len(os.listdir(tmp_path)) > 2  # another process took its place


def test_engines_are_sent_by_path(cluster, path, images):
    engine = pelton.load(path)
    assert len(pickle.dumps(engine)) < 1000

    @ray.remote(num_cpus=1)
    def run(engine, x):
        return engine.run({"image": x})["logits"], engine.source

    got, source = ray.get(run.remote(ray.put(engine), images[:8]), timeout=120)
    assert np.array_equal(got, engine.run({"image": images[:8]})["logits"]) and source == engine.source


def test_a_lost_node_loses_no_rows(cluster, path, images, tmp_path):
    """Runs last of those that need both nodes."""
    made = slow(images, path, tmp_path)
    nodes = list(cluster.worker_nodes)
    batches, removed = [], None
    for batch in made.iter_batches(batch_size=None, prefetch_batches=0):
        batches.append(batch)
        if removed is None:
            used = {p.read_text() for p in tmp_path.iterdir()}
            removed = next(node for node in nodes if node.node_id in used)
            cluster.remove_node(removed, allow_graceful=False)
    check(batches, path, images)
    assert removed is not None


def test_a_deployment(cluster, path, images):
    from ray import serve

    engine = pelton.load(path)
    serve.start(http_options={"host": "127.0.0.1", "port": 18123})
    try:
        app = pelton.ray.deployment(path, max_batch=8, num_replicas=2, outputs="logits")
        handle = serve.run(app, route_prefix="/resnet20")

        async def ask():
            return await asyncio.gather(*(_answer(handle, images[i : i + 1]) for i in range(32)))

        results = asyncio.run(ask())
        np.testing.assert_allclose(
            np.concatenate(results), engine.run({"image": images[:32]})["logits"], rtol=1e-4, atol=1e-5
        )
        body = json.dumps({"inputs": {"image": images[:2].reshape(2, -1).tolist()}}).encode()
        with urllib.request.urlopen("http://127.0.0.1:18123/resnet20", body, timeout=60) as answer:
            got = np.float32(json.loads(answer.read())["outputs"]["logits"])
        np.testing.assert_allclose(got, engine.run({"image": images[:2]})["logits"], rtol=1e-4, atol=1e-5)
        with pytest.raises(urllib.error.HTTPError) as e:
            urllib.request.urlopen("http://127.0.0.1:18123/resnet20", b'{"inputs": {"x": [1]}}', timeout=60)
        assert e.value.code == 400 and "needs the column image" in json.loads(e.value.read())["error"]
    finally:
        serve.shutdown()


async def _answer(handle, x):
    return (await handle.run.remote({"image": x}))["logits"]
