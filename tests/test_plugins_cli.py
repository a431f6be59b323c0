"""Plugins of packages on the command line: models name them, and engines run without them."""

import os
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import helper
from plugin_examples import ROW_SUMS, normal

from pelton.importers.onnx.plugins import DOMAIN

PACKAGE = f"""
import numpy as np
import pelton
from pelton.plugins import CKernel, scalar as sc

SOURCE = {ROW_SUMS!r}


class RowSums(pelton.Plugin):
    onnx = ("com.example", "RowSums")
    scale: float = 1.0

    def configure(self, x):
        return [np.float32([1, self.scale, 3])]

    def infer(self, x, table):
        return x.with_shape(x.shape[:1])

    def reference(self, x, table):
        return x.sum(1) * self.scale + table[1]


class RowSumsInC(RowSums):
    onnx = ("com.example", "RowSumsInC")
    kernels = (CKernel(SOURCE, lambda inputs, outputs, ROWS: -(-inputs[0].shape[0] // ROWS), ({{"ROWS": 4}},)),)


class Halved(pelton.Plugin):
    def layers(self, net, x):
        return net.relu(x) / 2
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A folder with an installed package, as pip leaves it."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "shapes.py").write_text(PACKAGE)
    info = folder / "shapes-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shapes\nVersion: 1.0\n")
    names = {"rows": "RowSums", "rows_in_c": "RowSumsInC", "halved": "Halved"}
    lines = "".join(f"{name} = shapes:{cls}\n" for name, cls in names.items())
    (info / "entry_points.txt").write_text(f"[pelton.plugins]\n{lines}")
    return folder


def pelton_command(*args, path=""):
    """Runs a command in a process that has these folders, besides Pelton."""
    before = [p for p in sys.path if p.endswith("src")]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(path), *before] if path else before)}
    return subprocess.run([sys.executable, "-m", "pelton", *map(str, args)], capture_output=True, text=True, env=env)


def model(operator, folder):
    """halved(x), the plugin's own name, then an operator of its domain: a file."""
    nodes = [
        helper.make_node("halved", ["x"], ["h"], "half", domain=DOMAIN),
        helper.make_node(operator, ["h"], ["y"], "sums", domain="com.example", scale=3.0),
    ]
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 7])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n"])
    opsets = [helper.make_opsetid(d, v) for d, v in (("", 17), (DOMAIN, 1), ("com.example", 1))]
    path = folder / f"{operator}.onnx"
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=opsets), path)
    return path


@pytest.mark.parametrize("operator", ["RowSumsInC", "RowSums"])
def test_from_a_model_to_an_engine_where_the_package_is_absent(operator, package, tmp_path):
    path, engine = model(operator, tmp_path), tmp_path / "model.pelton"
    alone = pelton_command("build", path, "-o", engine, "--level", "0", "--cache-dir", tmp_path)
    assert alone.returncode == 2 and "there is no operator halved in domain 'pelton.plugins'" in alone.stderr
    built = pelton_command(
        "build",
        path,
        "-o",
        engine,
        "--level",
        "0",
        "--check",
        "--shapes",
        "x=5x7",
        "--cache-dir",
        tmp_path,
        path=package,
    )
    assert built.returncode == 0, built.stderr
    a = normal(5, 7)
    np.save(tmp_path / "x.npy", a)
    for where in (package, ""):
        ran = pelton_command("run", engine, "--input", tmp_path / "x.npy", "--output", tmp_path / "y.npy", path=where)
        if operator == "RowSums" and not where:
            assert ran.returncode and "row_sums" in ran.stderr and "must be registered first" in ran.stderr
            assert "if that is no plugin, it is damaged" in ran.stderr
        else:
            assert ran.returncode == 0, ran.stderr
            want = 3 * np.maximum(a.astype(np.float64), 0).sum(1) / 2 + 3
            np.testing.assert_allclose(np.load(tmp_path / "y.npy"), want, rtol=1e-5, atol=1e-5)
            (tmp_path / "y.npy").unlink()
