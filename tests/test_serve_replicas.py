"""Replicas on several devices, of a kind of device that has two: the reference, whose runs note where they are."""

import dataclasses
import gc
import threading
import time
import weakref

import numpy as np
import pytest
from serve_rest import half_plus_two, save, serving

import pelton
from pelton.backends.reference import backend as reference
from pelton.builder.build import build_detailed
from pelton.compiler.targets.reference import by_reference
from pelton.options import Options
from pelton.errors import InputError
from pelton.serve.requests import InferRequest

X = np.float32([[1, 2], [-3, 0.5]])


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    made = build_detailed(half_plus_two(), Options(level=0, cache_dir=tmp_path_factory.mktemp("cache")))
    return pelton.Engine(by_reference(made.engine.plain, made.placed, made.scheduled))


class Devices:
    """Two devices. loads: their numbers, as engines came. runs: as runs did; `together` runs wait for each other."""

    def __init__(self):
        self.loads, self.runs, self.together = [], [], None

    def load(self, code, device):
        self.loads.append(device)
        return dataclasses.replace(reference.load(code, device), device=device)

    def allocate(self, loaded, threads):
        workspace = reference.ReferenceWorkspace(loaded, threads)
        prepare = workspace.prepare

        def watched(values, outdated):
            ready = prepare(values, outdated)
            run = ready.run

            def noted(inputs, out=None):
                if self.together is not None:
                    self.runs.append(loaded.device)
                    self.together.wait(30)
                return run(inputs, out)

            ready.run = noted
            return ready

        workspace.prepare = watched
        return workspace


@pytest.fixture
def devices(monkeypatch):
    two = Devices()
    kind = dataclasses.replace(reference.BACKEND, load=two.load, allocate=two.allocate, devices=lambda: 2)
    monkeypatch.setattr(reference, "BACKEND", kind)
    return two


@pytest.fixture
def root(tmp_path, engine):
    def write(groups):
        (tmp_path / "half" / "1").mkdir(parents=True, exist_ok=True)
        engine.save(tmp_path / "half" / "1" / "model.pelton")
        (tmp_path / "half" / "config.pbtxt").write_text(f"instance_group [{groups}]")
        return tmp_path

    return write


def answers(server, devices, count):
    """Runs that are all under way at once; returns the devices of them."""
    devices.runs, devices.together = [], threading.Barrier(count)
    started = [server.begin(InferRequest("half", "", {"x": X}), 0) for _ in range(count)]
    for running in started:
        np.testing.assert_array_equal(running.finish(lambda version, outputs: outputs[0][1]), X / 2 + 2)
    devices.together = None
    return sorted(devices.runs)


def test_replicas_on_all_devices_get_work(root, devices):
    with serving(root("{ count: 2 kind: KIND_GPU gpus: [0, 1] }"), batch="off", jobs=None) as client:
        server = client.server
        model = server.model("half")
        assert devices.loads == [0, 1] and not model.inline and model.settings.ignored == ()
        assert [e.device for e in model.queue.engines] == [0, 0, 1, 1] and model.queue.jobs == 4
        assert answers(server, devices, 4) == [0, 0, 1, 1]
        (row,) = client.get("/page.json").json()["models"]
        assert row["how"] == "queue of 4 jobs on devices 0, 1"
        config = client.get("/v2/models/half/config").json()
        assert config["instance_group"][0]["gpus"] == [0, 1]


@pytest.mark.parametrize(
    "groups, expected",
    [
        ("{ kind: KIND_GPU gpus: [1] }", [1]),
        ("{ kind: KIND_GPU }", [0, 1]),  # Triton: all that there are
        ("{ count: 2 gpus: [1] }, { kind: KIND_GPU gpus: [0, 1] }", [1, 1, 1, 0]),
        ("{ count: 2 }", [0, 0]),
        ("{ count: 2 kind: KIND_CPU }", [0, 0]),
        ("{ kind: KIND_MODEL }", [0]),
    ],
)
def test_groups_are_read_as_triton_does(root, devices, groups, expected):
    with serving(root(groups), batch=2, jobs=None) as client:
        queue = client.server.model("half").queue
        assert [e.device for e in queue.engines] == expected and devices.loads == list(dict.fromkeys(expected))
        assert answers(client.server, devices, 1)[0] in expected


@pytest.mark.parametrize(
    "groups, message",
    [
        (
            "{ kind: KIND_GPU gpus: [0, 2] }",
            "model 'half': instance_group.gpus is [0, 2], but there is no device 2; choose from 0, 1",
        ),
        ("{ gpus: [-1] }", "there is no device -1; choose from 0, 1"),
        ("{ kind: KIND_CPU gpus: [0] }", "is [0], but the group's kind is KIND_CPU: make it KIND_GPU, or remove gpus"),
        ("{ kind: KIND_MODEL gpus: [0] }", "but the group's kind is KIND_MODEL"),
        ("{ count: -1 }", "model 'half': instance_group.count is 1 or more, got -1"),
        ("{ count: 200 gpus: [0, 1] }", "a queue is of 1 to 256 engines, got 400"),
    ],
)
def test_refusals(root, devices, groups, message):
    with serving(root(groups), batch="off") as client:
        assert message in client.server.reasons["half"]


def test_engines_for_cpus_have_no_devices(tmp_path):
    save(tmp_path, "half", half_plus_two(), config="instance_group { kind: KIND_GPU gpus: [0] }")
    with serving(tmp_path) as client:
        assert "there is no device 0; remove gpus: the engine is for CPUs" in client.server.reasons["half"]
    (tmp_path / "half" / "config.pbtxt").write_text("instance_group { count: 3 kind: KIND_GPU }")
    with serving(tmp_path, batch=2) as client:
        assert client.server.model("half").queue.jobs == 3


def test_a_device_that_fails_is_named(root, devices, monkeypatch):
    def load(code, device):
        if device == 1:
            raise pelton.EngineError("not enough memory")
        return reference.load(code, device)

    monkeypatch.setattr(reference, "BACKEND", dataclasses.replace(reference.BACKEND, load=load))
    with serving(root("{ gpus: [0, 1] }"), batch="off") as client:
        assert client.server.reasons["half"] == "model 'half', instance_group on device 1: not enough memory"


def test_a_new_version_has_its_replicas_and_the_old_one_frees_its_own(root, devices):
    def live():
        gc.collect()
        return [one() for one in engines if one() is not None]

    with serving(root("{ kind: KIND_GPU gpus: [0, 1] }"), batch="off", control="explicit", startup=("*",)) as client:
        server = client.server
        engines = [weakref.ref(e) for e in server.model("half").queue.engines]
        assert len(live()) == 2
        server.load("half")
        assert devices.loads == [0, 1, 0, 1] and answers(server, devices, 2) == [0, 1]
        wait_until(lambda: not live())
        engines = [weakref.ref(e) for e in server.model("half").queue.engines]
        server.unload("half")
        wait_until(lambda: not live())
        assert live() == []


def wait_until(condition):
    end = time.monotonic() + 30
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)


def test_a_queue_of_engines(engine):
    other = pelton.Engine(engine.plain)
    with pelton.AsyncQueue([engine, other, engine], 2, 1) as queue:
        assert queue.engines == [engine] * 2 + [other] * 2 + [engine] * 2 and len(queue) == 6
        np.testing.assert_array_equal(queue.run_async({"x": X}).result()["y"], X / 2 + 2)
    net = pelton.Network("net")
    net.output(net.relu(net.input("x", "f32[batch, 3]")), "y")
    with pytest.raises(InputError, match="the engines of a queue have equal ports, but those of 'net' differ"):
        pelton.AsyncQueue([engine, pelton.build(net, level=0)])
    with pytest.raises(InputError, match="a queue is of 1 to 256 engines, got 0"):
        pelton.AsyncQueue([])
    with pytest.raises(InputError, match="jobs is an integer from 1 to 128, got 129"):
        pelton.AsyncQueue([engine, other], 129)
