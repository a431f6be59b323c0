"""Every function of vec.h against numpy in float64, at several vector widths and with and without FMA."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from vec_library import BUILDS, FLOAT_BINARY, FLOAT_UNARY, FLOATS, INTEGER_BINARY, INTEGER_UNARY, INTEGERS
from vec_library import MEMORY, NUMBERS, PLAIN, PRELUDE, REDUCTIONS
from vec_library import Library, accesses, build_library, clang, functions, samples, is_predicate

from pelton.codegen.template import SOURCES
from pelton.ir.scalar import PRIMITIVES, cast
from pelton.ir.types import BF16, BOOL, F16, F32, F64, DType

# Largest relative errors allowed, in float32 and float64; functions not named here are exact up to the last rounding.
LIMITS = {
    "exp": (1.9e-7, 4e-16),
    "log": (1.9e-7, 4e-16),
    "erf": (4e-7, 4e-16),
    "tanh": (3e-7, 6e-16),
    "sigmoid": (2.6e-7, 6e-16),
    "pow": (6e-8, 1e-14),
    "sin": (1.9e-7, 6e-16),
    "cos": (1.9e-7, 6e-16),
    "tan": (2.6e-7, 7e-16),
    "asin": (2.6e-7, 1e-15),
    "acos": (1.9e-7, 7e-16),
    "atan": (2.2e-7, 4e-16),
    "sinh": (7e-7, 6e-16),
    "cosh": (4e-7, 6e-16),
    "asinh": (2.4e-7, 6e-16),
    "acosh": (2.6e-7, 7e-16),
    "atanh": (2.5e-7, 6e-16),
    "log1p": (2.2e-7, 4e-16),
    "expm1": (8e-7, 5e-16),
}
WITHOUT_FMA = {"pow": 10}  # times as much; 1.5 times for all others
REFERENCES = {**PRIMITIVES, "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "log1p": np.log1p, "expm1": np.expm1}


@pytest.fixture(scope="module", params=BUILDS, ids=lambda b: f"{b[0]}-{b[1]}")
def vec(request, tmp_path_factory) -> Library:
    return build_library(functions(), *request.param, tmp_path_factory.mktemp("vec"))


def pairs(d: DType, count: int = 2000) -> tuple[np.ndarray, np.ndarray]:
    """Two samples that meet in all special values: the head of one is repeated, of the other tiled."""
    a, b = samples(d, count, 2), samples(d, count, 3)
    order = np.random.default_rng(4).permutation(a.size)
    head = a[:220] if d.is_float else np.unique(a)[:: max(1, np.unique(a).size // 100)]
    return np.concatenate([a, np.repeat(head, head.size)]), np.concatenate([b[order], np.tile(head, head.size)])


def error(got: np.ndarray, want: np.ndarray, d: DType) -> float:
    """The largest relative error, infinite where NaNs or infinities differ. Results near underflow may be zero."""
    info = np.finfo(d.numpy)
    with np.errstate(all="ignore"):
        expected = want.astype(d.numpy)
        near_overflow = np.abs(want) > float(info.max) * (1 - 1e-6)
        same = (
            (np.isnan(got) & np.isnan(expected))
            | (got == expected)
            | ((np.abs(want) < 2 * float(info.tiny)) & (got == 0))
        )
        same |= near_overflow & (np.abs(got) > float(info.max) * (1 - 1e-6)) & (np.sign(got) == np.sign(expected))
        off = np.abs(got.astype(np.float64) - want) / np.maximum(np.abs(want), float(info.tiny))
    off = np.where(same, 0.0, np.where(np.isfinite(off), off, math.inf))
    return float(off.max())


def limit(vec: Library, name: str, d: DType) -> float:
    allowed = LIMITS[name][d is F64] if name in LIMITS else float(np.finfo(d.numpy).eps)
    return allowed if vec.march != PLAIN else allowed * WITHOUT_FMA.get(name, 1.5)


def reference(name: str, *inputs: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.asarray(REFERENCES[name](*(x.astype(np.float64) if x.dtype.kind == "f" else x for x in inputs)))


@pytest.mark.parametrize("d", FLOATS, ids=lambda d: d.value)
@pytest.mark.parametrize("name", FLOAT_UNARY)
def test_float_functions(vec, d, name):
    x = samples(d, 20000 if vec.lanes == 8 else 2000)
    if name == "log" and d is F32 or name == "log1p":
        subnormal = (np.abs(x) < np.finfo(d.numpy).tiny) & (x != 0)  # which count as zero
        x = np.where(subnormal, d.numpy.type(1), x)
    if name == "expm1":
        x = x[~(np.abs(x) > 80)]  # the range that its callers use
    got, want = vec.map(f"t_{d.value}_{name}", BOOL if is_predicate(name) else d, x), reference(name, x)
    if is_predicate(name):
        assert np.array_equal(got, want)
    else:
        assert error(got, want, d) <= limit(vec, name, d)


@pytest.mark.parametrize("d", FLOATS, ids=lambda d: d.value)
@pytest.mark.parametrize("name", FLOAT_BINARY)
def test_float_functions_of_two(vec, d, name):
    a, b = pairs(d)
    got, want = vec.map(f"t_{d.value}_{name}", BOOL if is_predicate(name) else d, a, b), reference(name, a, b)
    if is_predicate(name):
        assert np.array_equal(got, want)
    else:
        assert error(got, want, d) <= limit(vec, name, d)


@pytest.mark.parametrize("d", INTEGERS, ids=lambda d: d.value)
@pytest.mark.parametrize("name", (*INTEGER_UNARY, *INTEGER_BINARY))
def test_integer_functions(vec, d, name):
    a, b = pairs(d)
    if name in ("shl", "shr", "pow"):
        b = np.where(b < 0, 0, b % 100).astype(d.numpy)
    inputs = (a,) if name in INTEGER_UNARY else (a, b)
    want = reference(name, *inputs)
    if name in ("div", "mod", "fmod"):
        want = np.where(b == 0, 0, want)
    assert np.array_equal(vec.map(f"t_{d.value}_{name}", BOOL if is_predicate(name) else d, *inputs), want)


@pytest.mark.parametrize("d", NUMBERS, ids=lambda d: d.value)
def test_extremes_with_a_constant(vec, d):
    x = samples(d)
    for name in ("minimum", "maximum"):
        for place in ("first", "second"):
            np.testing.assert_array_equal(
                vec.map(f"t_{d.value}_{name}_{place}", d, x), reference(name, x, np.ones_like(x))
            )


@pytest.mark.parametrize("d", NUMBERS, ids=lambda d: d.value)
def test_selection_and_reductions(vec, d):
    a, b = pairs(d)
    mask = np.random.default_rng(5).integers(0, 2, a.size).astype(bool)
    np.testing.assert_array_equal(vec.map(f"t_{d.value}_select", d, mask, a, b), np.where(mask, a, b))
    if d.is_float:
        a = np.random.default_rng(6).normal(size=(50, vec.lanes)).astype(d.numpy)
        tolerance = 1e-5 if d is F32 else 1e-13
    else:
        a, tolerance = a[: 50 * vec.lanes].reshape(50, vec.lanes), 0
    for name, fn in REDUCTIONS.items():
        got = np.zeros(50, d.numpy)
        vec(f"t_{d.value}_h{name}", got, np.ascontiguousarray(a), n=a.size)
        wraps = {"dtype": d.numpy} if name in ("sum", "prod") and not d.is_float else {}
        with np.errstate(all="ignore"):
            want = fn(a.astype(np.float64) if d.is_float else a, axis=1, **wraps)
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


def test_reductions_keep_nan(vec):
    x = np.ones((vec.lanes, vec.lanes), np.float32)
    np.fill_diagonal(x, np.nan)
    for name in ("hmax", "hmin", "hsum"):
        got = np.zeros(vec.lanes, np.float32)
        vec(f"t_f32_{name}", got, x, n=x.size)
        assert np.isnan(got).all()


def test_masks(vec):
    a, b, c = (samples(BOOL, seed=s) for s in (1, 2, 3))
    for name, fn in {
        "and": np.logical_and,
        "or": np.logical_or,
        "xor": np.logical_xor,
        "eq": np.equal,
        "ne": np.not_equal,
    }.items():
        assert np.array_equal(vec.map(f"t_bool_{name}", BOOL, a, b), fn(a, b))
    assert np.array_equal(vec.map("t_bool_not", BOOL, a), ~a)
    assert np.array_equal(vec.map("t_bool_select", BOOL, a, b, c), np.where(a, b, c))
    for i in range(vec.lanes):
        one = np.arange(vec.lanes) == i
        assert vec("t_any", one) == 1 and vec("t_any", ~one) == 1
    assert vec("t_any", np.zeros(vec.lanes, bool)) == 0 and vec("t_any", np.ones(vec.lanes, bool)) == 3


@pytest.mark.parametrize("to", MEMORY, ids=lambda d: d.value)
@pytest.mark.parametrize("d", MEMORY, ids=lambda d: d.value)
def test_casts(vec, d, to):
    x = samples(d)
    got, want = vec.map(f"t_cast_{d.value}_{to.value}", to, x), cast(x, to)
    if to in (F16, BF16):
        got, want = got.astype(np.float32), want.astype(np.float32)
    np.testing.assert_array_equal(got, want)


def test_transpose(vec):
    x = np.arange(vec.lanes**2, dtype=np.float32).reshape(vec.lanes, vec.lanes)
    got = np.zeros_like(x)
    vec("t_transpose", got, x)
    assert np.array_equal(got, x.T)


TARGETS = {
    "aarch64": ["-target", "aarch64-linux-gnu"],
    "wasm": ["-target", "wasm32-freestanding", "-msimd128"],
    "avx512": ["-target", "x86_64-linux-gnu", "-march=x86-64-v4"],
    "avx2": ["-target", "x86_64-linux-gnu", "-march=x86-64-v3"],
}


@pytest.mark.parametrize("target", [t for t in TARGETS if t != "avx2"])
def test_other_targets_need_no_library(target, tmp_path):
    """Every function compiles without warnings, and nothing is called that the file does not define."""
    assembly = clang(
        [*TARGETS[target], "-S"],
        PRELUDE + functions() + accesses(16 if target == "avx512" else 4),
        tmp_path / "test.s",
        tmp_path,
    )
    called = set(re.findall(r"^\s+(?:callq?|bl|b|jmp)\s+([A-Za-z_]\w*)", assembly, re.MULTILINE))
    defined = set(re.findall(r"^(\w+):", assembly, re.MULTILINE))
    assert called - defined <= {"memcpy", "memset", "memmove"}


@pytest.mark.parametrize(
    "expression, max_count",
    {
        "f32_exp(x)": 14,
        "f32_erf(x)": 17,
        "f32_tanh(x)": 15,
        "f32_sigmoid(x)": 17,
        "f32_log(x)": 26,
        "x * 0.5f * (1 + f32_erf(x * 0.70710678f))": 21,
        "f32_maximum(x, bc_f32(0))": 1,
    }.items(),
)
def test_instructions(expression, max_count, tmp_path):
    """Functions of epilogues stay in registers and within a count of instructions, moves and constants aside."""
    text = f'#include "vec.h"\nvoid f(f32 *p) {{ vf32 x = ld_f32(p); st_f32(p, {expression}); }}\n'
    assembly = clang([*TARGETS["avx2"], "-S"], text, tmp_path / "test.s", tmp_path)
    function = assembly[assembly.index("f:") : assembly.index(".Lfunc_end")]
    body = re.findall(r"^\t([a-z]\w+)(.*)$", function, re.MULTILINE)
    assert not [line for _, line in body if "%rsp" in line] and "vmaskmov" not in assembly
    others = ("vmov", "vbroadcast", "vzeroupper", "ret", "vxorps")
    assert len([op for op, _ in body if not op.startswith(others)]) <= max_count


def test_intrinsics_have_a_portable_form_beside_them():
    sources = {p.name: p.read_text() for p in SOURCES.glob("*.[ch]")}
    with_intrinsics = {name for name, text in sources.items() if re.search(r"\b_mm\d*_|__builtin_ia32", text)}
    assert with_intrinsics == {"vec_cast.h", "dot.h", "gemm_bf16.c"}
    assert all("#else" in sources[name] for name in with_intrinsics)
