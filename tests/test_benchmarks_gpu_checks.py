"""The checks of benchmarks/gpu on interpreted kernels: templates, networks, and detection of damaged kernels."""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import small_cnn

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import interpreted  # noqa: E402
from benchmarks.gpu import suite  # noqa: E402

import pelton  # noqa: E402
from pelton.importers.onnx import load as importer  # noqa: E402
from pelton.ir.evaluate import evaluate  # noqa: E402


# ---- checks of kernels, interpreted


def checked(kind: str, at: int, seed: int) -> dict[str, Any]:
    """In a process where all of Triton is interpreted: one case as `checks.Templates` runs it, by the kernels as they
    are or by damaged ones."""
    import triton_harness
    import triton_interpreter
    from benchmarks.gpu.checks import Templates, found_cases

    from pelton.engine.cubin import Cubin
    from pelton.backends.cuda.null import NullDevice
    from pelton.codegen.template import GPU_TEMPLATES

    checks = object.__new__(Templates)
    checks.harness, checks.templates, checks.seed, checks.target = (
        triton_harness,
        GPU_TEMPLATES,
        seed,
        triton_harness.TARGET,
    )
    name = ("pointwise", "rows")[at % 2]
    checks.cases = [(name, found_cases()[name][0])]
    kernels = {k.symbol: k for k, _, _ in triton_harness.tried(GPU_TEMPLATES[name], checks.cases[0][1], 3)}

    def kernel(symbol: str) -> Any:
        def run(programs: int, words: np.ndarray) -> None:
            if kind == "lazy":
                return
            triton_interpreter.launch(kernels[symbol].source, symbol, words.tolist(), programs)
            if kind == "careless":  # behind the last operand, which is written
                ctypes.c_uint8.from_address(int(words[-1]) + 3500).value = 7

        return run

    checks.device = NullDevice(kernels={s: kernel(s) for s in kernels})
    checks.cubins = {s: Cubin(s, 90, b"none", 0, 4) for s in kernels}
    return checks.check(0)


@pytest.mark.parametrize("at", [0, 1])
def test_templates_are_checked_on_a_device(at, apart):
    said = apart.submit(checked, "right", at, 11).result()
    assert said["launched"] >= 2 and "wrong" not in said
    assert "NaN" in apart.submit(checked, "lazy", at, 11).result()["wrong"]
    assert "beside an array" in apart.submit(checked, "careless", at, 11).result()["wrong"]


def ran(data: bytes, sources: Mapping[str, str], feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """In such a process: what `checks.Networks` makes of an engine."""
    import triton_interpreter
    from benchmarks.gpu.checks import Networks

    from pelton.engine import file

    networks = object.__new__(Networks)
    return networks.run(pelton.Engine(file.read(data)).start(triton_interpreter.device(sources)), feeds)


def test_networks_are_checked_on_a_device(apart, tmp_path):
    import triton_interpreter

    from pelton.builder.build import build_detailed
    from pelton.options import Options

    graph = importer.load(small_cnn(size=12)).graph
    feeds = suite.drawn(suite.ports(graph), 3)
    made = build_detailed(small_cnn(size=12), Options(target="cuda:sm_90", precision="fp16", cache_dir=tmp_path))
    got = apart.submit(ran, made.engine.tobytes(), triton_interpreter.sources(made), feeds).result()
    want = evaluate(graph, feeds, round=False)
    assert suite.off(got, want) <= suite.TOLERANCE["fp16"]
    assert suite.off({"y": got["y"] * np.nan}, want) == suite.off({}, want) == math.inf


def test_engines_are_interpreted_at_full_size(tmp_path, capsys, monkeypatch):
    pytest.importorskip("triton", reason="Triton is not installed (make test-gpu)")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = tmp_path / "small.onnx"
    path.write_bytes(small_cnn(size=12).SerializeToString())
    given = [str(path), "--precision", "fp16", "--target", "cuda:sm_80", "cuda:sm_90", "--jobs", "2"]
    assert interpreted.main(given) == 0
    head, _, *rows = capsys.readouterr().out.splitlines()
    assert len(rows) == 2 and {row.count("|") for row in rows} == {head.count("|")}
    assert all(row.startswith(f"| small | cuda:sm_{arch} | fp16 | ") for row, arch in zip(rows, (80, 90)))
    monkeypatch.setitem(suite.TOLERANCE, "fp16", 1e-6)
    assert interpreted.main(given) == 1


def test_outputs_have_to_follow_the_inputs():
    """Also where rounding is nearly as much as what an input changes."""
    rng = np.random.default_rng(0)
    large, noise = 10 * rng.standard_normal(1000), 0.4 * rng.standard_normal((2, 1000))
    want = [{"y": large + rng.standard_normal(1000)} for _ in range(2)]
    assert suite.follows([{"y": w["y"] + n} for w, n in zip(want, noise)], want) > suite.FOLLOWS
    assert suite.follows(want, want) == pytest.approx(1)
    assert (
        suite.follows([{"y": large + n} for n in noise], want) < 0.2
        and suite.follows(want[:1] * 2, want) == 0
        and suite.follows(want[::-1], want) < 0
    )


def test_cases_are_of_templates():
    pytest.importorskip("triton", reason="Triton is not installed (make test-gpu)")
    from benchmarks.gpu.checks import found_cases
    from kernel_harness import Case

    from pelton.codegen.template import GPU_TEMPLATES

    found = found_cases()
    assert found.keys() <= set(GPU_TEMPLATES)
    assert all(isinstance(case, Case) for cases in found.values() for case in cases)
