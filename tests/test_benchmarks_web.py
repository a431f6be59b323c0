"""The networks of `make bench-web`, their programs for TF.js, and the page of its figures."""

import dataclasses
import math
import os

import numpy as np
import onnx
import pytest
from onnx import helper

import pelton
from benchmarks.web import kernels, results, tfjs
from benchmarks.web.networks import NETWORKS

WRITTEN = [name for name in NETWORKS if name != "silero"]  # its file comes from a wheel


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name in WRITTEN:
        NETWORKS[name].write(folder / f"{name}.onnx", folder)
    return folder


@pytest.mark.parametrize("name", WRITTEN)
def test_sizes_are_known(models, name):
    model = onnx.load(models / f"{name}.onnx")
    for port in (*model.graph.input, *model.graph.output):
        assert all(d.dim_value > 0 for d in port.type.tensor_type.shape.dim)


def test_detector_does_not_amplify_rounding_errors(models):
    """Else a difference between runtimes would say nothing about their kernels."""
    engine = pelton.build(models / "detector.onnx", level=0, threads=1)
    x = np.random.default_rng(1).standard_normal((1, 3, 320, 320), np.float32)
    outputs, near = engine(x), engine(np.nextafter(x, np.float32(np.inf)))
    for a, b in zip(outputs, near, strict=True):
        assert 0 < np.abs(a - b).max() < 0.2 * results.TOLERANCE * np.abs(a).max()


@pytest.mark.parametrize("name", [name for name in WRITTEN if NETWORKS[name].images])
def test_programs_read_what_is_computed_and_not_freed(models, name):
    program = tfjs.Program(onnx.load(models / f"{name}.onnx"))
    made = program.as_json()
    alive = set(made["inputs"])
    for call in made["calls"]:
        assert {x["value"] for x in call["operands"] if "value" in x} <= alive
        alive = (alive | {call["result"]}) - set(call["frees"])
    assert alive == set(made["outputs"].values())
    convolutions = [c for c in made["calls"] if c["op"] in ("convolution", "depthwise")]
    assert len(convolutions) == sum(n.op_type == "Conv" for n in program.nodes)
    end = max(c["filters"]["at"] + 4 * math.prod(c["filters"]["shape"]) for c in convolutions)
    assert end <= len(program.weights)


def test_operators_that_programs_lack_are_named():
    ports = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (1, 8)) for name in "xy"]
    node = helper.make_node("Softmax", ["x"], ["y"], "last")
    model = helper.make_model(helper.make_graph([node], "g", ports[:1], ports[1:]))
    with pytest.raises(tfjs.TfjsError, match="'last': no operator of TF.js is known for Softmax"):
        tfjs.Program(model)


def figures(**changes):
    def rounds(ms):
        return {"ms": ms, "rounds": [ms, 2 * ms]}

    size = {kind: {"raw": 2000, "gzip": 1000} for kind in ("wasm", "scripts")}
    f = results.NetworkFigures(
        "net",
        "Net",
        off={"pelton": 1e-6, "onnxruntime": 0, "tfjs": 2e-6, "2 threads": 1e-6},
        times={"pelton": rounds(2.0), "onnxruntime": rounds(8.0), "tfjs": rounds(6.0)},
        threads={"1": rounds(2.0), "2": rounds(1.0)},
        load={"pelton": [10, 30, 20], "onnxruntime": [90], "tfjs": [80]},
        code=dict.fromkeys(results.RUNTIMES, size),
        chromium="1.2.3",
    )
    return dataclasses.replace(f, **changes)


def test_page_has_ratios_to_the_better_peer():
    faster = figures(times={r: {"ms": ms, "rounds": [ms]} for r, ms in (("pelton", 1.0), ("onnxruntime", 12.0))})
    page = results.page([figures(), faster], {"onnxruntime-web": "1.30"}, rounds=5, level=2)
    assert "| Net | 2.00 | 8.00 | 6.00 | 3.00 | 2.00 | 2.0e-06 |" in page
    assert "| Net | 1.00 | 12.0 |  | 12.00 | 1.00 | 2.0e-06 |" in page
    assert "Pelton's: **6.00**" in page and "onnxruntime-web 1.30" in page and "Chromium 1.2.3" in page
    assert "| Net | 20 | 90 | 80 |" in page


@pytest.mark.parametrize("off", [2e-4, "NaN"])
def test_wrong_outputs_are_reported(off):
    assert not [*results.wrong(figures())]
    (line,) = results.wrong(figures(off={"pelton": off}))
    assert line.startswith("net: outputs of Pelton differ")


JUNIT = """<testsuites><testsuite>
<testcase classname="tests.test_kernels_pool" name="test_pool[a]"/>
<testcase classname="tests.test_kernels_pool" name="test_pool[b]"><skipped message="wasm32_simd has none"/></testcase>
<testcase classname="tests.test_kernels_pool" name="test_pool[c]"><failure message="y is off&#10;by 3"/></testcase>
</testsuite></testsuites>"""


def test_page_of_kernels_counts_each_case_once(tmp_path, capsys):
    """The latest file counts, where several have a case."""
    level = tmp_path / "results" / "wasm32_simd"
    level.mkdir(parents=True)
    assert kernels.main([str(tmp_path / "results")]) == 1 and "has no results" in capsys.readouterr().err
    (level / "all.xml").write_text(JUNIT)
    page = tmp_path / "kernels.md"
    assert kernels.main([str(tmp_path / "results"), "--page", str(page)]) == 1
    assert "| `test_kernels_pool` | 1 | 1 | 1 |" in page.read_text()
    assert "- wasm32_simd, `test_kernels_pool.test_pool[c]`: y is off\n" in page.read_text()
    again = '<testsuite><testcase classname="tests.test_kernels_pool" name="test_pool[c]"/></testsuite>'
    (level / "again.xml").write_text(again)
    os.utime(level / "all.xml", (0, 0))
    assert kernels.main([str(tmp_path / "results"), "--page", str(page)]) == 0
    assert "| **all** | 2 | 1 | 0 |" in page.read_text() and "| the level has none | 1 |" in page.read_text()
    assert "Failed" not in page.read_text()
