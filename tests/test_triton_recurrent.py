"""Recurrent kernels of all forms: one program, programs launched for each phase, programs that exchange states."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from kernel_harness import laid, region_of, settled, symbolic
from onnx import TensorProto

pytest.importorskip("triton", reason="Triton is not installed (make test-gpu)")
import test_triton_networks as networks  # noqa: E402
import triton_harness  # noqa: E402
import triton_interpreter  # noqa: E402
from triton_cases import BOTH, steps  # noqa: E402
from triton.runtime.errors import InterpreterError  # noqa: E402
from triton_harness import TARGET, check, checked  # noqa: E402

from pelton.builder.build import build_detailed  # noqa: E402
from pelton.system.cache import Cache  # noqa: E402
from pelton.ir.graph import Value, optimum_sizes  # noqa: E402
from pelton.ir.types import F32, I32, I64  # noqa: E402
from pelton.codegen.template import Tactic, Target  # noqa: E402
from pelton.codegen.triton.templates import recurrent  # noqa: E402
from pelton.codegen.triton.toolchain import TritonCompiler, compile_source  # noqa: E402
from pelton.codegen.triton.templates.library import GPU_TEMPLATES  # noqa: E402
from pelton.options import Options  # noqa: E402

WIDE = replace(TARGET, threads=132)  # multiprocessors enough for programs that wait for each other
SPILLED = 0


class Formed(type(GPU_TEMPLATES["recurrent"])):  # type: ignore[misc]
    """Recurrent layers by tactics of one form."""

    def __init__(self, phased: int, dot: int):
        self.wanted = phased, dot

    def tactics(self, region, layouts, target):
        return [t for t in super().tactics(region, layouts, target) if (t["PHASED"], t["DOT"]) == self.wanted]


def formed(case, phased: int, dot: int) -> bool:
    """Whether there are tactics of a form for a case."""
    region, template = region_of(case.graph), Formed(phased, dot)
    return bool(template.tactics(region, laid(template, region, case, 0), WIDE))


# by matrix products
TALL = [
    steps("lstm", "bf16", 3, 17, 6, **BOTH),
    steps("gru", "f16", 3, 17, 6, "y"),
    steps("lstm", "f16", 3, 18, 10, round_state=True),
]
SMALL = [
    steps("lstm", "f32", 4, 1, 21, **BOTH),
    steps("lstm", "f16", 3, 3, 9, "h1 c1", direction="reverse"),
    steps("gru", "f32", 3, 2, 9, **BOTH),
    steps("gru", "f16", 3, 3, 18, "h1", linear_before_reset=True),
    steps("rnn", "f16", 4, 3, 20, **BOTH),
    steps("rnn", "f32", 2, 1, 3, "y"),
    steps("gru", "f64", 3, 2, 9, **BOTH),
    settled(steps("lstm", "f32", 4, 2, 21, round_state=True, **BOTH)),
    settled(steps("lstm", "f32", 2, 3, 70, "h1 c1", round_state=True)),
]
LARGE = [
    steps("lstm", "f32", 3, 1, 130, "y", direction="bidirectional"),
    steps("lstm", "bf16", 2, 5, 200),
    steps("gru", "f16", 3, 1, 300, "y"),
    # for which the model has programs wait
    steps("gru", "f32", 2, 1, 250, "h1", linear_before_reset=True),
    steps("rnn", "f16", 4, 2, 500, "y"),
]
CASES = {"recurrent": [*SMALL, *TALL, *LARGE]}  # for GPUs
FORMS = [
    pytest.param(case, phased, dot, id=f"{case.name}-{phased}-{'dot' if dot else 'sum'}")
    for case in [*SMALL, *TALL]
    for phased in (0, 1, 2)
    for dot in (0, 1)
    if formed(case, phased, dot) and (dot or case in SMALL)
]


@pytest.mark.parametrize("case, phased, dot", FORMS)
def test_every_form(case, phased, dot):
    assert all((k.phases > 1) == (phased > 0) for k in check(Formed(phased, dot), case, target=WIDE))


def test_all_forms_are_there():
    forms = {(0, 0), (1, 0), (1, 1), (2, 0), (2, 1)}
    for op in ("lstm", "gru", "rnn"):
        assert {tuple(p.values[1:]) for p in FORMS if p.values[0].name.startswith(op)} == forms


@pytest.mark.parametrize("index, dot", [(0, 0), (1, 1), (2, 0), (4, 1)])
def test_what_may_wait_may_as_well_be_launched_for_each_phase(index, dot):
    """As on GPUs that have not room for all programs at once."""
    check(Formed(2, dot), SMALL[index], target=WIDE, run=partial(triton_interpreter.run, together=False))


def varying(phased: int, case, monkeypatch):
    """One kernel for times and rows that a run decides."""
    monkeypatch.setattr(triton_harness, "TARGET", WIDE)
    template = Formed(phased, 0)
    graph = symbolic(case.graph, template)
    return checked(
        template, replace(case, graph=graph), *({name: more for name in optimum_sizes(graph)} for more in (0, 3))
    )


@pytest.mark.parametrize("phased", [1, 2])
@pytest.mark.parametrize("op", ["lstm", "gru"])
def test_sizes_that_a_run_decides(phased, op, monkeypatch):
    kernel = varying(phased, steps(op, "f32", 3, 2, 9, **BOTH), monkeypatch)
    assert kernel.dims and not isinstance(kernel.phases, int)


def test_rows_without_a_bound_are_not_sent(monkeypatch):
    """Words in which programs send each other states lie in memory of a fixed size."""
    monkeypatch.setattr(recurrent, "MAX_SENT", 100)
    assert "PHASED = tl.constexpr(1)\n" in varying(2, steps("lstm", "f32", 3, 2, 9), monkeypatch).source


@pytest.mark.parametrize("precision, half", [("fp32", False), ("fp16", True), ("bf16", True)])
def test_networks_carry_another_form_for_the_clock(precision, half, tmp_path):
    model = networks.recurrent()
    made = build_detailed(model, Options(target="cuda:sm_90", precision=precision, level=3, cache_dir=tmp_path)).engine
    weights = sum(4 * math.prod(t.dims) for t in model.graph.initializer if t.data_type == TensorProto.FLOAT)
    assert (len(made.constants) < 0.6 * weights) == half  # and no step computes in another precision
    steps = [s for s in made.steps if s.info["tactic"].startswith("recurrent")]
    forms = [{Tactic.parse(k.info["tactic"])["PHASED"] for k in (s, *s.alternatives)} for s in steps]
    assert len(steps) == 2 and all(len(of) == 2 for of in forms)


def test_a_program_that_fails_ends_those_that_wait_for_it():
    """So that a test of kernels whose programs wait fails, and does not hang."""
    kernel = check(Formed(2, 0), SMALL[0], target=WIDE)[0]
    source = kernel.source.replace("    rows, inside = ", "    assert tile != 3\n    rows, inside = ", 1)
    assert source != kernel.source and kernel.tiles > 4
    arrays = [
        (
            np.zeros(1 << 14, np.int64),
            {F32: "float32", I64: "int64", I32: "int32"}[x.type.dtype if isinstance(x, Value) else x.dtype],
            0,
        )
        for x in kernel.operands
    ]
    with pytest.raises(InterpreterError, match="AssertionError"):
        triton_interpreter.run(source, kernel.symbol, arrays, kernel.dims, int(kernel.tiles), int(kernel.phases))


@pytest.mark.parametrize("arch, threads", [(80, 108), (90, 132)])
@pytest.mark.parametrize(
    "op, dtype, batch, hidden, attrs",
    [
        ("lstm", "f16", 1, 512, BOTH),
        ("lstm", "f32", 1, 512, BOTH),
        ("lstm", "f32", 1, 512, dict(round_state=True)),
        ("lstm", "bf16", 8, 512, {}),
        ("gru", "f16", 1, 700, {}),
        ("rnn", "f16", 8, 300, {}),
    ],
)
def test_weights_stay_in_registers(op, dtype, batch, hidden, attrs, arch, threads, tmp_path):
    """No kernel whose programs wait spills, reads its weights again, or takes what others sent from a cache of its
    own."""
    case, template, target = (
        steps(op, dtype, 100, batch, hidden, "y", **attrs),
        GPU_TEMPLATES["recurrent"],
        Target(f"sm_{arch}", lanes=32, threads=threads),
    )
    region = region_of(case.graph)
    layouts = laid(template, region, case, 0)
    tactics = [t for t in template.tactics(region, layouts, target) if t["PHASED"] == 2]
    kernels = [template.emit(region, layouts, t, target) for t in tactics]
    assert kernels and all(k.tiles <= threads for k in kernels)
    for made in TritonCompiler((arch,), Cache(tmp_path)).cubins({k.symbol: k.source for k in kernels}).values():
        assert made.spilled <= SPILLED and made.cubin.phased == 2 and made.registers * 32 * made.cubin.warps <= 1 << 16
    ptx = compile_source(kernels[0].symbol, kernels[0].source, arch).asm["ptx"]
    assert ptx.count("ld.volatile.global") >= 2 and "atom.global.gpu.relaxed.exch.b64" in ptx and "fence" not in ptx


def test_the_model_prefers_programs_that_wait_for_large_layers_and_one_for_small_ones():
    def first(case) -> int:
        template, region = GPU_TEMPLATES["recurrent"], region_of(case.graph)
        return template.tactics(region, laid(template, region, case, 0), WIDE)[0]["PHASED"]

    assert [
        first(steps("lstm", "f16", time, 1, hidden, "y"))
        for time, hidden in ((100, 16), (100, 512), (100, 2048), (1, 512))
    ] == [0, 2, 1, 1]
    assert {first(case) for case in LARGE} == {2}
