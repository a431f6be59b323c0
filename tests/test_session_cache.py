"""The engine cache of sessions: hits, damage, eviction, and engines of other processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import pelton
import pelton as ort
from pelton import plugins
from pelton.compat.session.engine_cache import EngineCache
from pelton.system.cache import Cache
from test_session import RNG, W, builds, cache, close, network  # noqa: F401  (fixtures)


def engines(cache: Path) -> list[Path]:
    return sorted((cache / "sessions").glob("*.pelton"))


def run(model, x) -> list[np.ndarray]:
    return ort.InferenceSession(model).run(None, {"x": x})


def test_an_engine_is_found_again_by_the_model_and_its_constants(tmp_path, cache, builds):
    x = RNG.standard_normal((2, 4)).astype(np.float32)
    path = tmp_path / "net.onnx"
    onnx.save(network(2), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    os.utime(path, (1, 1))
    for _ in range(2):
        assert close(run(path, x), x)
    assert len(builds) == len(engines(cache)) == 1
    (tmp_path / "weights.bin").write_bytes((2 * W).tobytes())  # the model's own bytes are the same
    assert close(run(path, x), 2 * x) and len(builds) == 2
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    ort.InferenceSession(path, options)
    assert len(builds) == 3


def test_what_is_damaged_is_built_again(cache, builds, caplog):
    x, model = RNG.standard_normal((2, 4)).astype(np.float32), network(2).SerializeToString()
    run(model, x)
    (kept,) = engines(cache)
    whole = kept.read_bytes()
    for damaged in (whole[:1000], whole[:100] + b"!" + whole[101:], b""):
        kept.write_bytes(damaged)
        for other in (cache / "sessions").glob("*.json"):
            other.write_bytes(b'{"inputs": 3}')
        caplog.clear()
        assert close(run(model, x), x) and "built again" in caplog.text
        assert kept.read_bytes() == whole
    assert len(builds) == 4


def test_what_nobody_asks_for_is_forgotten(cache, builds):
    ort.InferenceSession(network(2).SerializeToString())
    (old,) = engines(cache)
    os.utime(old, (1, 1))
    ort.InferenceSession(network(2).SerializeToString())  # asked for again
    ort.InferenceSession(network(3).SerializeToString())
    assert len(engines(cache)) == 2 and len(builds) == 2
    os.utime(old, (1, 1))
    (cache / "size.txt").write_text("0 0")  # a day passes
    ort.InferenceSession(network(4).SerializeToString())
    assert len(engines(cache)) == 2 and old not in engines(cache)


def test_a_folder_that_others_can_write_to_is_not_used(cache, builds, caplog):
    (cache / "sessions").mkdir(parents=True)
    (cache / "sessions").chmod(0o777)
    for _ in range(2):
        ort.InferenceSession(network(2).SerializeToString())
    assert len(builds) == 2 and not engines(cache) and "others can write to it" in caplog.text


SCRIPT = """
import sys, numpy as np
{before}
import pelton as ort
session = ort.InferenceSession(sys.argv[1])
x = np.ones((2, 4), np.float32)
print(session.run(None, {{"x": x}})[0].sum())
"""


def spawn(path: Path, before: str = "") -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(before=before), str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_two_processes_build_one_engine_and_the_next_needs_no_compiler(tmp_path, cache):
    path = tmp_path / "net.onnx"
    onnx.save(network(), path)
    os.utime(path, (1, 1))
    both = [spawn(path), spawn(path)]
    for process in both:
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0 and float(out) == pytest.approx(2), err
    assert len(engines(cache)) == 1 and not list(cache.rglob("*.part"))
    later = spawn(
        path,
        "\n".join(
            f"sys.modules[{name!r}] = None"
            for name in ("onnx", "ml_dtypes", "ziglang", "rich", "pelton.build", "pelton.ops")
        ),
    )
    out, err = later.communicate(timeout=60)
    assert later.returncode == 0 and float(out) == pytest.approx(2) and not err, err


SHIFT = """import sys

import numpy as np
import pelton

@pelton.register
class Shift(pelton.Plugin):
    onnx = ("com.example", "Shift")

    def scalar(self, x):
        return x + {}

if __name__ == "__main__":
    session = pelton.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
    print(session.run(None, dict(x=np.zeros(3, np.float32)))[0][0])
"""


def test_engines_of_plugins_that_have_changed_are_built_again(tmp_path, cache):
    shifted = helper.make_node("Shift", ["x"], ["y"], domain="com.example")
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in "xy"]
    graph = helper.make_graph([shifted], "shifts", ports[:1], ports[1:])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.example", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), tmp_path / "model.onnx")

    def said(shift: float) -> tuple[float, int]:
        """What the session gave, and which file its engine is in."""
        (tmp_path / "shift.py").write_text(SHIFT.format(shift))
        done = subprocess.run([sys.executable, "shift.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
        (built,) = engines(cache)
        return float(done.stdout), built.stat().st_ino

    (first, built), (again, kept), (changed, _) = said(1.5), said(1.5), said(-2.5)
    assert (first, again, changed) == (1.5, 1.5, -2.5) and built == kept


COPIES = """import numpy as np
import pelton

@pelton.register
class Copies(pelton.Plugin):
    onnx = ("com.example", "Copies")

    def infer(self, x):
        return x.with_shape(({count}, *x.shape))

    def reference(self, x):
        return np.stack([x] * {count})

if __name__ == "__main__":
    session = pelton.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
    print(session.get_outputs()[0].shape)
"""


def test_signatures_of_plugins_that_have_changed_are_read_again(tmp_path, cache):
    copies = helper.make_node("Copies", ["x"], ["y"], domain="com.example")
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", [3]), ("y", None))]
    graph = helper.make_graph([copies], "copied", ports[:1], ports[1:])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.example", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), tmp_path / "model.onnx")
    for count in (2, 2, 5):
        (tmp_path / "copies.py").write_text(COPIES.format(count=count))
        done = subprocess.run([sys.executable, "copies.py"], cwd=tmp_path, capture_output=True, text=True)
        assert done.stdout == f"[{count}, 3]\n", done.stderr


def test_engines_run_where_their_plugins_are_not_installed(cache, own_plugins, monkeypatch):
    @pelton.register
    class Shift(pelton.Plugin):
        def scalar(self, x):
            return x + 1.5

    net = pelton.Network("shifts")
    net.output(net.shift(net.input("x", "f32[3]")), "y")
    kept = EngineCache(Cache(cache))
    kept.put("key", pelton.build(net, level=0))
    assert kept.engine("key") is not None
    monkeypatch.setattr(plugins, "fingerprint", lambda name: "another")
    assert kept.engine("key") is None
    monkeypatch.setattr(plugins, "registered", dict)
    assert kept.engine("key") is not None
