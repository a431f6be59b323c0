"""Shared fixtures: the emulated CPU, also in child processes; a cache of kernels; for commands, small model files,
engines of them, and a folder in which a refused command must leave nothing; for GPU kernels, an interpreting process.
"""

import os
import re

import imitate_cpu  # noqa: F401  # before Pelton: it changes modules as they are imported
import machines
import pytest
from models import model, small_cnn
from onnx import TensorProto, helper

from pelton.backends.cpu import machine
from pelton.cli import main
from pelton.codegen.c.templates.plugin import PluginTemplate
from pelton.codegen.template import GPU_TEMPLATES, TEMPLATES
from pelton.compiler import plugin_kernels
from pelton.ir.op import REGISTRY
from pelton.plugins import registry


@pytest.fixture
def cpu_of(monkeypatch):
    """Takes this CPU for one of a level, in this process: what that level asks for, and nothing more."""
    return lambda level: monkeypatch.setattr(machine, "identity", machines.of_level(level))


@pytest.fixture
def own_plugins():
    """Plugins that a test registers are gone after it, their kernels, too."""
    tables = (REGISTRY, registry._BY_OP, registry._BY_FORMAT, plugin_kernels._DECLARED)
    before = [dict(table) for table in tables]
    yield
    for table, entries in zip(tables, before):
        table.clear()
        table.update(entries)
    for templates in (TEMPLATES, GPU_TEMPLATES):
        for name in [n for n, t in templates.items() if isinstance(t, PluginTemplate)]:
            del templates[name]


@pytest.fixture(scope="session")
def kernel_cache(tmp_path_factory):
    """A cache directory for all tests of this run, whichever process runs them: what one compiles serves the others.
    Times are in it, too; tests that measure some give a timing cache of their own."""
    directory = tmp_path_factory.getbasetemp()
    return (directory.parent if "PYTEST_XDIST_WORKER" in os.environ else directory) / "kernels"


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cli")


@pytest.fixture(scope="session")
def cache(folder):
    return ["--cache-dir", str(folder / "cache")]


@pytest.fixture(scope="session")
def cnn(folder):
    path = folder / "cnn.onnx"
    path.write_bytes(small_cnn(size=12).SerializeToString())
    return str(path)


@pytest.fixture(scope="session")
def pair(folder):
    """Two inputs, two outputs, one of them integers; the batch is open."""
    nodes = [
        helper.make_node("Add", ["a", "b"], ["sum"], name="plus"),
        helper.make_node("Shape", ["sum"], ["sizes"], name="measure"),
    ]
    path = folder / "pair.onnx"
    path.write_bytes(
        model(
            nodes, {"a": ("N", 4), "b": ("N", 4)}, {"sum": ("N", 4), "sizes": ((2,), TensorProto.INT64)}, {}
        ).SerializeToString()
    )
    return str(path)


@pytest.fixture(scope="session")
def engines(folder, cache, cnn, pair):
    """The paths of an engine of each model, and of one that knows pictures and labels."""
    labels = folder / "labels.txt"
    labels.write_text("\n".join(f"thing {i}" for i in range(10)))
    made = {}
    for name, source, more in (
        ("cnn", cnn, []),
        ("pair", pair, ["--shapes", "a=2x4,b=2x4"]),
        ("seeing", cnn, ["--image", "12x12 rgb", "--labels", str(labels)]),
    ):
        made[name] = str(folder / f"{name}.pelton")
        assert main(["build", source, "-o", made[name], "--level", "0", "-q", *cache, *more]) == 0
    return made


@pytest.fixture(scope="module")
def apart():
    """A process in which all of Triton is interpreted."""
    pytest.importorskip("triton", reason="Triton is not installed (make test-gpu)")
    import triton_interpreter

    with triton_interpreter.apart() as pool:
        yield pool


@pytest.fixture
def refused(capsys, tmp_path, monkeypatch):
    """Runs a command that must be refused, in an empty folder that has to stay so; gives what it says."""
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)

    def go(*args: str) -> str:
        try:
            status = main([*args])
        except SystemExit as e:
            status = e.code
        out, err = capsys.readouterr()
        assert status == 2 and out == "", (status, out, err)
        assert len(re.findall("^error: ", err, re.M)) == 1 and "Traceback" not in err
        assert os.listdir(empty) == []
        return err

    return go
