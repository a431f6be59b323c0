"""Kernels that read weights in half precision, the weights that they may round, and the builds' use of them."""

from __future__ import annotations

from pathlib import Path

import machines
import numpy as np
import pytest
from kernel_harness import CASES, TARGET, Case, check, compiler, laid, region_of, target_for, declare, program, walk
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx_models import model

import pelton
from pelton.backends.cpu import describe
from pelton.codegen.template import TEMPLATES
from pelton.codegen.c.halves import exact_type, loss, rejection
from pelton.ir.types import BF16, F16
from pelton.targets import fits
from pelton.tuning.timing_cache import TimingCache

SHARED = Path(__file__).resolve().parents[2] / "shared/data"
BF16_LEVEL = "x86_64_v4_vnni_bf16"
DTYPES = {"fp16": F16, "bf16": BF16}


def normal(*shape, scale=1.0, seed=1):
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def halves(*shape):
    """Weights that f16 holds as they are."""
    return normal(*shape).astype(np.float16).astype(np.float32)


def brains(*shape):
    """Weights that bf16 holds as they are, and f16 does not."""
    return normal(*shape, scale=2.0**20).astype(BF16.numpy).astype(np.float32)


def pointwise(bias, *then):
    return [("s", "add", f"y {bias}"), ("out", *then)]


CONV = dict(strides=(1, 1), pads=(0,) * 4, dilations=(1, 1), group=1)
declare(
    "gemm_half",
    Case(
        "row",
        program(
            ("y", "matmul", "a b"), *pointwise("c", "tanh", "s"), a="f32[1, 131]", b=halves(131, 127), c="f32[127]"
        ),
    ),
    Case("bf16", program(("y", "matmul", "a b"), a="f32[3, 7, 500]", b=brains(500, 37))),
    Case("stacked", program(("y", "matmul", "a b"), a="f32[3, 5, 74]", b=halves(3, 74, 75))),
    Case("long", program(("y", "matmul", "a b"), a="f32[61, 1030]", b=halves(1030, 83))),
    Case(
        "pixels",
        program(
            ("y", "convolution", "x w b", CONV),
            *pointwise("z", "relu", "s"),
            x="f32[2, 131, 3, 5]",
            w=halves(127, 131, 1, 1),
            b=normal(127),
            z="f32[2, 127, 3, 5]",
        ),
        dict(x=(0, 2, 3, 1), z=(0, 2, 3, 1)),
    ),
)


def transformed(n, c, h, w, oc, tail):
    """A case in bf16. Filters are whole quarters, which F(2×2) transforms to sixteenths of at most eight bits."""
    filters = np.random.default_rng(0).integers(-7, 8, (oc, c, 3, 3)).astype(np.float32) / 4
    attrs = {**CONV, "pads": (1, 1, 1, 1)}
    graph = program(("y", "convolution", "x w b", attrs), *tail, x=f"f32[{n}, {c}, {h}, {w}]", w=filters, b=normal(oc))
    return Case(f"{n}x{c}x{h}x{w}-{oc}", graph, dict(x=(0, 2, 3, 1)), half=BF16)


def cut(*ends):
    """Slices of y along channels, side by side."""
    return [
        (f"out{e}", "slice", "y", dict(starts=(s,), ends=(e,), axes=(1,), steps=(1,))) for s, e in zip((0, *ends), ends)
    ]


declare(
    "winograd_half",
    transformed(1, 13, 14, 15, 19, [("out", "relu", "y")]),
    transformed(2, 40, 7, 7, 35, cut(5, 8, 35)),
    transformed(1, 300, 3, 5, 40, []),
)


def dots(name, a, b, *tail, order=(), **more):
    """A case of factors that bf16 holds, of at most eight bits; rows are whole eighths."""
    rows = np.random.default_rng(2).integers(-15, 16, a) / 8
    op = ("y", "matmul", "a b") if len(b) == 2 else ("y", "convolution", "a b bias", CONV)
    if len(b) > 2:
        more["bias"] = normal(b[0])
    weights = np.random.default_rng(3).integers(-15, 16, b).astype(np.float32) / 16
    graph = program(op, *tail, a=f"f32{list(a)}", b=weights, **more)
    orders = dict(a=order) if order else {}
    return Case(name, graph, orders, dict(a=rows), half=BF16, level=BF16_LEVEL)


declare(
    "gemm_bf16",
    dots("row", (1, 131), (131, 27)),
    dots("batches", (2, 3, 29, 37), (37, 70), *pointwise("c", "relu", "s"), c=normal(70)),
    dots(
        "long",
        (33, 771),
        (771, 35),
        *((f"out{e}", "slice", "y", dict(starts=(s,), ends=(e,), axes=(1,), steps=(1,))) for s, e in ((0, 3), (3, 35))),
    ),
    dots("one-column", (13, 1), (1, 1)),
    dots("pixels", (2, 21, 5, 7), (50, 21, 1, 1), ("out", "relu", "y"), order=(0, 2, 3, 1)),
)


@pytest.mark.parametrize("template, case", walk("gemm_half", "gemm_bf16", "winograd_half"))
def test_against_the_reference(template, case):
    check(template, case)


@pytest.mark.parametrize(
    "array, dtype",
    [
        (halves(70, 1001), F16),
        (brains(70, 1001), BF16),
        (normal(70, 1001), None),
        (np.float32([0, -0.0, 65504, 2.0**-24, -3 * 2.0**-24, 2.0**-14]), F16),
        (np.float32([2.0**-25]), BF16),
        (np.float32([65536]), BF16),
        (np.float32([65505]), None),
        (np.float32([1.5 * 2.0**-24 + 1]), None),
        (np.where(np.arange(70_000) == 69_999, np.float32(1.0001), np.float32(1)), None),
    ],
)
def test_the_type_that_holds_weights_as_they_are(array, dtype):
    assert exact_type(array) is dtype
    if dtype is not None:
        np.testing.assert_array_equal(array.astype(dtype.numpy).astype(np.float32), array)


@pytest.mark.parametrize("axis", [0, -1])
def test_the_loss_of_rounding(axis):
    """Of each output: one whose weights are all subnormal halves is off, one that is nothing beside others is not."""
    w = normal(301, 97)
    assert 2.0**-14 < loss(w, axis, F16) < 2.0**-11 < loss(w, axis, BF16) < 2.0**-8
    assert rejection(w, axis, F16) is None and rejection(w, axis, BF16) is None
    rows = np.moveaxis(w, axis, 0)
    rows[5] *= 2.0**-16
    assert "too small for f16" in rejection(w.copy(), axis, F16) and rejection(w.copy(), axis, BF16) is None
    rows[5] *= 2.0**-20
    assert rejection(w.copy(), axis, F16) is None
    rows[3, 4] = 70_000
    assert "exceed f16" in rejection(w.copy(), axis, F16) and rejection(w.copy(), axis, BF16) is None


def test_winograd_with_rounded_filters(tmp_path):
    """F(2×2) and F(4×4) are off by as much as their comment says."""
    filters, bias = normal(40, 64, 3, 3, scale=0.06), normal(40)
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"], "conv", pads=[1] * 4)
    x = normal(1, 64, 13, 14, seed=5)
    want = ReferenceEvaluator(
        model([node], {"x": "f64[1, 64, 13, 14]"}, ["y"], dict(w=filters.astype(float), b=bias.astype(float)))
    ).run(None, {"x": x.astype(float)})[0]
    m = model([node], {"x": "f32[1, 64, 13, 14]"}, ["y"], dict(w=filters, b=bias))
    for precision, most in (("fp16", 1.5e-3), ("bf16", 5e-3)):
        engine = pelton.build(m, precision=precision, precision_of={"conv": precision}, level=0, cache_dir=tmp_path)
        assert any("winograd_half" in s.info["tactic"] for s in engine.steps)
        off = np.sqrt(np.square(engine.run({"x": x})["y"] - want).mean() / np.square(want).mean())
        assert 1e-4 < off < most


def layers(*weights, rows=3):
    """Products one after the other, of a few rows."""
    nodes = [
        helper.make_node("MatMul", [f"x{k}" if k else "x", f"w{k}"], [f"x{k + 1}"], f"fc{k}")
        for k in range(len(weights))
    ]
    given = {f"w{k}": w for k, w in enumerate(weights)}
    return model(nodes, {"x": f"f32[{rows}, {len(weights[0])}]"}, [f"x{len(weights)}"], given)


@pytest.fixture
def timed(monkeypatch):
    """Times by the name of a template: tactics of gemm take 100, those of halves what is asked for."""
    put = TimingCache.put

    def pretend(half):
        price = {"gemm": 100, "gemm_half": half}
        monkeypatch.setattr(
            TimingCache,
            "put",
            lambda self, d, times: put(self, d, {n: price.get(n.partition(":")[0], ns) for n, ns in times.items()}),
        )

    return pretend


def run(engine, seed=0):
    x = normal(*engine.shapes()["x"], seed=seed)
    return x, next(iter(engine.run({"x": x}).values()))


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_weights_are_rounded_where_it_was_timed_faster(precision, timed, tmp_path):
    timed(97)
    w, dtype = normal(151, 137, scale=0.1), DTYPES[precision]
    options = dict(level=1, threads=1, cache_dir=tmp_path)
    engine = pelton.build(layers(w), precision=precision, **options)
    (row,) = engine.meta["half"]
    assert (row["layer"], row["weights"], row["reason"]) == ("fc0", dtype.value, "faster")
    x, y = run(engine)
    rounded = w.astype(dtype.numpy).astype(np.float64)
    np.testing.assert_allclose(y, x.astype(np.float64) @ rounded, rtol=0, atol=1e-5)
    assert np.abs(y - x.astype(np.float64) @ w).max() > 1e-5
    timed(99)
    for more in (dict(precision=precision, timing_cache=tmp_path / "other.json"), dict(precision="fp32")):
        engine = pelton.build(layers(w), **{**options, **more})
        x, y = run(engine)
        np.testing.assert_allclose(y, x.astype(np.float64) @ w, rtol=0, atol=1e-5)
        assert [row["reason"] for row in engine.meta["half"]] == (["not faster"] if "timing_cache" in more else [])


@pytest.mark.skipif(not fits(BF16_LEVEL, describe()), reason="this CPU has no AVX512_BF16")
def test_factors_are_rounded_to_bf16_and_sums_are_not(tmp_path):
    w = normal(1031, 151)
    options = dict(precision="bf16", precision_of={"fc0": "bf16"}, level=0, cache_dir=tmp_path)
    engine = pelton.build(layers(w, rows=67), **options, check=True)
    (step,) = engine.steps
    assert step.info["tactic"].startswith("gemm_bf16:") and engine.plain.target["isa"] == BF16_LEVEL
    x, y = run(engine)
    factors = [a.astype(BF16.numpy).astype(np.float64) for a in (x, w)]
    np.testing.assert_allclose(y, factors[0] @ factors[1], rtol=0, atol=1e-6 * np.abs(y).max() * 4)
    assert pelton.build(layers(w, rows=67), level=0, cache_dir=tmp_path).plain.target["isa"] != BF16_LEVEL


def test_the_instruction_is_in_the_code():
    template, case = TEMPLATES["gemm_bf16"], CASES["gemm_bf16"][0]
    region, target = region_of(case.graph), target_for(case, TARGET)
    lay = laid(template, region, case, 0)
    kernel = template.emit(region, lay, next(iter(template.tactics(region, lay, target))), target)
    clang = compiler(BF16_LEVEL, machines.Exact)
    code = clang.link(clang.objects({kernel.symbol: kernel.source}))
    # EVEX.F3.0F38.W0 52 /r is vdpbf16ps, 72 /r vcvtneps2bf16 (Intel's manual, volume 2)
    evex = [code[i : i + 5] for i in range(len(code) - 5) if code[i] == 0x62]
    assert {0x52, 0x72} <= {c[4] for c in evex if c[1] & 7 == 2 and c[2] & 0x83 == 0x02}


@pytest.mark.parametrize("strict", [False, True])
def test_models_in_half_precision_keep_their_weights(strict, timed, tmp_path):
    """Those of f16 are widened, so that a product of few rows reads them as they were; in strict builds it rounds."""
    timed(50)
    w = halves(130, 130).astype(np.float16)
    m = model([helper.make_node("MatMul", ["x", "w"], ["y"], "fc")], {"x": "f16[3, 130]"}, ["y"], {"w": w})
    engine = pelton.build(m, level=1, threads=1, strict=strict, cache_dir=tmp_path)
    (row,) = engine.meta["half"]
    assert (row["weights"], row["reason"]) == ("f16", "exact")
    x = normal(3, 130, seed=4).astype(np.float16)
    want = x.astype(np.float64) @ w.astype(np.float64)
    found = engine.run({"x": x})["y"]
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, want, rtol=2.0**-10, atol=1e-5 * np.abs(want).max())


def test_each_of_two_equal_layers_has_the_weights_that_it_can(timed, tmp_path):
    """The first does not fit f16; the second is exact, also for fp32."""
    timed(50)
    first, second = normal(130, 130, scale=1e-6), halves(130, 130)
    first[7, 7] = 70_000
    found = {}
    for precision in ("fp16", "fp32"):
        engine = pelton.build(layers(first, second), precision=precision, level=1, threads=1, cache_dir=tmp_path)
        x, y = run(engine)
        want = x.astype(np.float64) @ first @ second
        np.testing.assert_allclose(y, want, rtol=0, atol=1e-6 * np.abs(want).max())
        found[precision] = [(row["layer"], row["weights"], row["reason"]) for row in engine.meta["half"]]
    assert found["fp16"] == [("fc0", "f32", "weights up to 7e+04 exceed f16"), ("fc1", "f16", "exact")]
    assert found["fp32"] == [("fc1", "f16", "exact")]


def test_layers_by_name(timed, tmp_path):
    timed(150)
    w = [normal(130, 130, scale=0.1, seed=k) for k in range(3)]
    given = {"fc*": "fp16", "fc1": "fp32"}
    options = dict(precision="fp16", level=1, threads=1, cache_dir=tmp_path)
    engine = pelton.build(layers(*w), precision_of=given, **options)
    assert [(row["weights"], row["reason"]) for row in engine.meta["half"]] == [
        (kind, "as asked for") for kind in ("f16", "f32", "f16")
    ]
    with pytest.raises(
        pelton.InputError, match="precision_of matches no layer with a kernel: 'head'.* include fc0, fc1, fc2"
    ):
        pelton.build(layers(*w), precision_of={"head": "fp32"}, **options)


@pytest.mark.parametrize("name, most", [("resnet20", 10), pytest.param("mobile", 5, marks=pytest.mark.slow)])
@pytest.mark.skipif(not SHARED.exists(), reason="the CIFAR-10 sample lies beside the repository, not in it")
def test_trained_networks_answer_the_same(name, most, tmp_path):
    """With every layer in halves that can be, whatever its time, 99.9 % of the answers are those of FP32."""
    source, pictures = SHARED / f"{name}_cifar10.onnx", np.load(SHARED / "cifar10_test.npz")["x"]
    said = []
    for options in (dict(precision="fp32"), dict(precision="fp16", precision_of={"*": "fp16"})):
        engine = pelton.build(source, level=0, cache_dir=tmp_path, **options)
        context = engine.context()
        x = pictures.transpose(0, 3, 1, 2).astype(np.float32)
        said.append([context.run({"image": one[None]})["logits"].argmax() for one in x])
    assert sum(row["weights"] == "f16" for row in engine.meta["half"]) >= most
    assert np.mean(np.equal(*said)) >= 0.999


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(precision_of={"x": "bf16"}), "precision_of maps patterns of layer names to 'fp32' or 'fp16'"),
        (dict(precision="fp32", precision_of={"x": "fp32"}), "precision_of is of use for precision 'int8'"),
        (dict(target="cuda:sm_90", precision_of={"x": "fp32"}), "precision_of is of use for precision"),
        (dict(precision_of={"x": "fp32"}, save_tactics="t.json"), "recorded tactics do not distinguish layers"),
        (dict(strict=True), "strict keeps the model's arithmetic"),
        (dict(metric=len), "metric is of use for precision 'int8' and"),
    ],
)
def test_options_that_make_no_sense(options, message):
    with pytest.raises(pelton.InputError, match=message):
        pelton.Options(**{"precision": "fp16", **options})
