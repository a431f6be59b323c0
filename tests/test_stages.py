"""The stages of the compiler: their order, partial walks, output, and the passes that decide element types."""

import re
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from models import small_cnn
from onnx import helper
from onnx_models import model, one_node

import pelton
from pelton.compiler import stages, targets
from pelton.compiler.compilation import Compilation
from pelton.compiler.stages import STAGES, run_stages, start
from pelton.diagnose.compare import compare
from pelton.diagnose.explain import explain
from pelton.diagnose.support import diagnose
from pelton.ir.text import to_text
from pelton.options import Options
from pelton.passes import pipeline, precision

NAMES = [s.name for s in STAGES]
ROOT = Path(__file__).parents[1]


def test_the_documents_list_the_stages():
    page = (ROOT / "docs" / "architecture.md").read_text()
    opening = page.partition("## Rooms")[0]
    assert re.findall(r"^\| `(\w+)` \| (.*) \|$", opening, re.M) == [(s.name, s.what) for s in STAGES]
    assert re.findall(r"─(\w+)→", opening) == [*NAMES, "file"]


def test_every_field_is_filled_by_a_stage():
    filled = {f.name: f.metadata["stage"] for f in fields(Compilation) if "stage" in f.metadata}
    assert set(filled.values()) <= set(NAMES)
    c = Compilation(Options(), small_cnn())
    for name in NAMES[: NAMES.index("lower")]:
        before, c = c, run_stages(c, name)
        assert c.done == name
        for field, stage in filled.items():
            assert (getattr(before, field) is None) <= (stage in NAMES[NAMES.index(name) :] or field == "target"), field
            assert (getattr(c, field) is not None) >= (stage in NAMES[: NAMES.index(name) + 1]), field


@pytest.fixture
def walked(monkeypatch):
    """The names of the stages that run, in order."""
    names = []

    def noted(stage):
        def run(c):
            names.append(stage.name)
            return stage.run(c)

        return replace(stage, run=run)

    monkeypatch.setattr(stages, "STAGES", tuple(map(noted, STAGES)))
    return names


def test_all_walk_the_same_list(walked, tmp_path):
    m = small_cnn()
    engine = pelton.build(m, level=0, cache_dir=tmp_path)
    assert walked == NAMES
    for look, those in ((explain, NAMES[:7]), (diagnose, NAMES[1:7]), (lambda m: compare(m, engine), NAMES[:2])):
        walked.clear()
        look(m)
        assert walked == those


def test_a_walk_goes_on_where_it_stopped():
    c = Compilation(Options(), small_cnn())
    stopped = run_stages(run_stages(run_stages(c, "optimize"), "fuse"), "place")
    assert to_text(stopped.graph, data=True) == to_text(run_stages(c, "place").graph, data=True)
    assert run_stages(stopped, "decompose") is stopped
    with pytest.raises(KeyError):
        run_stages(stopped, "nowhere")


def test_every_program_is_shown_by_name():
    seen = []
    run_stages(Compilation(Options(), small_cnn(), observe=lambda name, graph: seen.append(name)), "tune")
    assert seen == [
        "import",
        "integers",
        "computed",
        "quantized",
        "halves",
        *(name for name, _ in pipeline.PIPELINE),
        "optimize",
        "widen",
        "precision",
        "decompose",
        "widen parts",
        "decompose",
    ]
    with pytest.raises(
        pelton.InputError,
        match="changes no program; the stages are import, integers, computed, quantized, halves, dead",
    ):
        explain(small_cnn()).stage("tune")


@pytest.mark.parametrize(
    "options, first, names",
    [
        (Options(), ["integers", "computed", "quantized", "halves"], ["widen"]),
        (Options(strict=True), ["integers", "computed", "quantized"], ["widen"]),
        (Options(target="cuda:sm_90"), ["integers", "bytes", "float8", "quantized"], ["recurrent", "widen"]),
        (
            Options(target="cuda:sm_90", precision="fp16"),
            ["integers", "bytes", "float8", "quantized"],
            ["fp16", "recurrent", "widen"],
        ),
        (
            Options(target="cuda:sm_90", precision="bf16"),
            ["integers", "bytes", "float8", "quantized"],
            ["bf16", "recurrent", "widen"],
        ),
        (
            Options(target="cuda:sm_80,sm_90", precision="tf32"),
            ["integers", "bytes", "quantized"],
            ["recurrent", "tf32", "widen"],
        ),
    ],
)
def test_targets_name_the_passes_that_decide_element_types(options, first, names):
    wanted = targets.target_kind(options).precision(options)
    assert [name for name, _ in precision.FIRST if name in wanted] == first
    assert [name for name, _ in precision.PASSES if name in wanted] == names
    assert wanted <= {"fp32", *dict(precision.FIRST), *dict(precision.PASSES)}


def weights(*shape: int, dtype=np.float32) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


PRODUCT = model(
    [helper.make_node("MatMul", ["x", "w"], ["y"], "product")],
    {"x": "f16[4, 8]"},
    ["y"],
    {"w": weights(8, 3, dtype=np.float16)},
)
LSTM = one_node("LSTM", "f32[5, 2, 6]", weights(1, 16, 6), weights(1, 16, 4), hidden_size=4, outputs=3)


@pytest.mark.parametrize("m, rule, reported", [(PRODUCT, "halves", ["product"]), (LSTM, "decompose", None)])
def test_what_they_did_is_reported_but_is_no_rule_of_the_engine(m, rule, reported, tmp_path):
    fired = run_stages(Compilation(Options(), m), "decompose").report.fired()
    assert fired[rule] == reported or reported is None and fired[rule]
    assert explain(m).why_not(rule).applied == tuple(fired[rule])
    assert rule not in pelton.build(m, level=0, cache_dir=tmp_path).meta["report"]["fired"]


def test_a_program_may_begin_later():
    imported = run_stages(Compilation(Options(), small_cnn()), "import").imported
    raw = run_stages(start(imported, Options(), done="optimize"), "decompose")
    assert [p.name for p in raw.report.passes] == ["widen", "decompose", "widen parts"]
