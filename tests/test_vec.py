"""Every function of vec.h against numpy in float64, at several vector widths and with and without FMA; loads and stores
touch no byte too many."""

from __future__ import annotations

import ctypes
import itertools
import math
import mmap
import os
import re
import subprocess
from pathlib import Path

import machines
import numpy as np
import pytest

from pelton.ir.types import BF16, BOOL, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64, DType
from pelton.codegen.c.toolchain import FLAGS, zig
from pelton.codegen.template import SOURCES
from pelton.ir.scalar import PRIMITIVES, cast

NATIVE, PLAIN = "x86-64-v3", "x86-64-v2"  # with and without FMA, F16C and masked loads
BUILDS = [(NATIVE, 8), (NATIVE, 16), (PLAIN, 4), *([("x86-64-v4", 16)] if machines.runs("x86_64_v4") else [])]
FLOATS, INTEGERS = (F32, F64), (I64, I32, I16, I8, U64, U32, U16, U8)
NUMBERS = FLOATS + INTEGERS
MEMORY = (*NUMBERS, F16, BF16, BOOL)
# and some of each kind of vec_narrow.h
STORED = (*MEMORY, DType.F8E4M3FN, DType.F8E5M2FNUZ, DType.F8E8M0FNU, DType.F4E2M1FN, DType.I4, DType.U2)
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
FLOAT_BINARY = ("div", "mod", "fmod", "pow", "minimum", "maximum", *COMPARISONS)
INTEGER_BINARY = ("div", "mod", "fmod", "pow", "minimum", "maximum", "shl", "shr", "and", "or", "xor", *COMPARISONS)
REDUCTIONS = {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min}

# Largest errors allowed relative to the wanted value, in float32 and float64; functions not named here are exact up to
# the last rounding.
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
ROUNDING_ONLY = ("abs", "sign", "sqrt", "floor", "ceil", "rint", "trunc")
FLOAT_UNARY = (
    *ROUNDING_ONLY,
    "isnan",
    "isinf",
    "exp",
    "log",
    "erf",
    "tanh",
    "sigmoid",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "asinh",
    "acosh",
    "atanh",
    "log1p",
    "expm1",
)
INTEGER_UNARY = ("abs", "sign", "not")


def to_bool(name: str) -> bool:
    return name in COMPARISONS or name in ("isnan", "isinf")


PRELUDE = '#include "vec_narrow.h"\n'


# ---- one C file with a loop around every function
# --------------------------------------------------------------------------------------


def loop(name: str, call: str, out: DType, *inputs: DType) -> str:
    """`void name(const args *a, idx n)`: a[0] = call(x0, x1, …) for n elements, whole vectors."""
    loads = " ".join(
        f"__typeof__(ld_{d.value}(0)) x{i} = ld_{d.value}((void *)((char *)a[{i + 1}].p + i * {d.size}));"
        for i, d in enumerate(inputs)
    )
    return (
        f"void {name}(const args *a, idx n) {{ rolled for (idx i = 0; i < n; i += VL) {{ {loads} "
        f"st_{out.value}((void *)((char *)a[0].p + i * {out.size}), {call}); }} }}\n"
    )


def functions() -> str:
    """A loop around every function on registers."""
    text = []
    for d in NUMBERS:
        t = d.value
        for name in FLOAT_UNARY if d.is_float else INTEGER_UNARY:
            text.append(loop(f"t_{t}_{name}", f"{t}_{name}(x0)", BOOL if to_bool(name) else d, d))
        for name in FLOAT_BINARY if d.is_float else INTEGER_BINARY:
            text.append(loop(f"t_{t}_{name}", f"{t}_{name}(x0, x1)", BOOL if to_bool(name) else d, d, d))
        for name in ("minimum", "maximum"):
            text.append(loop(f"t_{t}_{name}_first", f"{t}_{name}(bc_{t}(1), x0)", d, d))
            text.append(loop(f"t_{t}_{name}_second", f"{t}_{name}(x0, bc_{t}(1))", d, d))
        text.append(loop(f"t_{t}_select", f"{t}_select(x0, x1, x2)", d, BOOL, d, d))
        for name in REDUCTIONS:
            text.append(
                f"void t_{t}_h{name}(const args *a, idx n) {{ for (idx i = 0; i < n; i += VL) "
                f"(({t} *)a[0].p)[i / VL] = h{name}_{t}(ld_{t}(({t} *)a[1].p + i)); }}\n"
            )
    for name in ("and", "or", "xor", "eq", "ne"):
        text.append(loop(f"t_bool_{name}", f"bool_{name}(x0, x1)", BOOL, BOOL, BOOL))
    text.append(loop("t_bool_not", "bool_not(x0)", BOOL, BOOL))
    text.append(loop("t_bool_select", "bool_select(x0, x1, x2)", BOOL, BOOL, BOOL, BOOL))
    for s, d in itertools.product(MEMORY, MEMORY):
        text.append(loop(f"t_cast_{s.value}_{d.value}", f"cast_{s.value}_{d.value}(x0)", d, s))
    text.append("int t_any(const args *a) { return any(ld_bool(a[0].p)) | all(ld_bool(a[0].p)) << 1; }\n")
    text.append(
        "void t_transpose(const args *a) { vf32 r[VL]; unroll (int i = 0; i < VL; i++) r[i] = ld_f32((f32 *)a[1].p + i"
        " * VL); transpose_f32(r); unroll (int i = 0; i < VL; i++) st_f32((f32 *)a[0].p + i * VL, r[i]); }\n"
    )
    return "".join(text)


def accesses(lanes: int) -> str:
    """Partial and strided loads and stores of every type in memory, n at run time and as a constant."""
    text = []
    for d in STORED:
        t, at = d.value, f"({'f16' if d is F16 else d.value} *)"
        text.append(f"void t_{t}_copy(const args *a, idx n) {{ stn_{t}({at}a[0].p, ldn_{t}({at}a[1].p, n), n); }}\n")
        text.append(f"void t_{t}_fill(const args *a, idx n) {{ st_{t}({at}a[0].p, ldn_{t}({at}a[1].p, n)); }}\n")
        text.append(
            f"void t_{t}_gather(const args *a, idx n, idx s) {{ st_{t}({at}a[0].p, ldg_{t}({at}a[1].p, s, n)); }}\n"
        )
        text.append(
            f"void t_{t}_scatter(const args *a, idx n, idx s) {{ stg_{t}({at}a[0].p, s, ld_{t}({at}a[1].p), n); }}\n"
        )
        text.append(
            f"void t_{t}_piece(const args *a, idx n, idx s) {{ stp_{t}({at}a[0].p, 5, s, ld_{t}({at}a[1].p), n); }}\n"
        )
        text.append(f"void t_{t}_broadcast(const args *a) {{ st_{t}({at}a[0].p, bc_{t}(*{at}a[1].p)); }}\n")
        for n in range(lanes + 1):
            text.append(
                f"void t_{t}_copy_{n}(const args *a) {{ stn_{t}({at}a[0].p, ldn_{t}({at}a[1].p, {n}), {n}); }}\n"
            )
            text.append(f"void t_{t}_fill_{n}(const args *a) {{ st_{t}({at}a[0].p, ldn_{t}({at}a[1].p, {n})); }}\n")
    for name in ("memcpy", "memmove", "memset"):
        source = "(int)(idx)a[1].p" if name == "memset" else "a[1].p"
        text.append(f"void t_{name}(const args *a, idx n) {{ __builtin_{name}(a[0].p, {source}, n); }}\n")
    return "".join(text)


def clang(arguments: list[str], text: str, out: Path, cache: Path) -> str:
    source = out.with_suffix(".c")
    source.write_text(text)
    flags = [f for f in FLAGS if f != "-w"] + ["-Wall", "-Wextra", "-Werror", "-I", str(SOURCES)]
    run([zig(), "clang", *arguments, *flags, "-o", str(out), str(source)], cache)
    return out.read_text() if "-S" in arguments else ""


def run(command: list[str], cache: Path) -> None:
    env = dict(os.environ, ZIG_GLOBAL_CACHE_DIR=str(cache), ZIG_LOCAL_CACHE_DIR=str(cache))
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr[:4000]


class Library:
    """The test functions, loaded; arrays go in by address."""

    def __init__(self, path: Path, march: str, lanes: int):
        self.march, self.lanes = march, lanes
        self._functions = ctypes.CDLL(str(path))

    def __call__(self, name: str, *arrays: np.ndarray | int, n: int = 0, stride: int = 1) -> int:
        table = (ctypes.c_void_p * len(arrays))(*(a if isinstance(a, int) else a.ctypes.data for a in arrays))
        return self._functions[name](table, ctypes.c_int64(n), ctypes.c_int64(stride))

    def map(self, name: str, out: DType, *inputs: np.ndarray) -> np.ndarray:
        count = -(-inputs[0].size // self.lanes) * self.lanes
        padded = [np.ascontiguousarray(np.pad(x, (0, count - x.size), mode="edge")) for x in inputs]
        result = np.zeros(count, np.uint8 if out is BOOL else out.numpy)
        self(name, result, *padded, n=count)
        return (result.view(bool) if out is BOOL else result)[: inputs[0].size]


@pytest.fixture(scope="module", params=BUILDS, ids=lambda b: f"{b[0]}-{b[1]}")
def vec(request, tmp_path_factory) -> Library:
    march, lanes = request.param
    where = tmp_path_factory.mktemp("vec")
    target = ["-target", "x86_64-linux-gnu", f"-march={march}", f"-DVL={lanes}", "-c"]
    clang(target, PRELUDE + functions() + accesses(lanes), where / "test.o", where)
    clang(target, (SOURCES / "freestanding.c").read_text(), where / "freestanding.o", where)
    run(
        [
            zig(),
            "ld.lld",
            "-shared",
            "-nostdlib",
            "--no-undefined",
            "-o",
            str(where / "test.so"),
            str(where / "test.o"),
            str(where / "freestanding.o"),
        ],
        where,
    )
    return Library(where / "test.so", march, lanes)


# ---- samples
# -------------------------------------------------------------------------------------------------------------------------


def floats(d: DType, count: int, seed: int) -> np.ndarray:
    """Special values, everyday magnitudes, and random bit patterns."""
    rng, info = np.random.default_rng(seed), np.finfo(d.numpy)
    edges = [
        0.0,
        0.5,
        1.0,
        2.0,
        3.0,
        math.pi,
        math.e,
        2.5,
        1e4,
        88.37,
        88.72,
        88.73,
        89.5,
        87.3,
        104.0,
        709.7,
        709.8,
        745.2,
        2.0**31,
        2.0**63,
        1e30,
        float(info.max),
        float(info.tiny),
        float(info.smallest_subnormal),
        float(info.eps),
        math.inf,
        math.nan,
        3.9,
        8.3,
        127.5,
        255.5,
        32767.5,
        65535.5,
    ]
    with np.errstate(over="ignore"):
        special = np.array([s * e for e in edges for s in (1, -1)], d.numpy)
        special = np.concatenate(
            [special, np.nextafter(special, d.numpy.type(math.inf)), np.nextafter(special, d.numpy.type(-math.inf))]
        )
    bits = rng.integers(0, 1 << (8 * d.size - 1), count, np.uint64).astype(f"u{d.size}") | (
        rng.integers(0, 2, count).astype(f"u{d.size}") << (8 * d.size - 1)
    )
    middle = np.concatenate(
        [rng.uniform(-s, s, count) for s in (1, 10, 100, 2e4)] + [1 + rng.normal(0, 1e-3, count)]
    ).astype(d.numpy)
    return np.concatenate([special, middle, bits.view(d.numpy)])


def integers(d: DType, count: int, seed: int) -> np.ndarray:
    rng, info = np.random.default_rng(seed), np.iinfo(d.numpy)
    special = np.array(
        [info.min, info.min + 1, 0, 1, 2, 3, 7, info.max // 2, info.max - 1, info.max] + [-1, -2, -7] * d.is_signed,
        d.numpy,
    )
    wide = rng.integers(info.min, info.max, count, d.numpy, endpoint=True)
    return np.concatenate([np.repeat(special, special.size), wide, wide >> (wide & (8 * d.size - 1))])


def samples(d: DType, count: int = 2000, seed: int = 1) -> np.ndarray:
    if d is BOOL:
        return np.random.default_rng(seed).integers(0, 2, count).astype(bool)
    if d in (F16, BF16):
        return np.arange(1 << 16, dtype=np.uint16).view(d.numpy)
    if d.size == 1 and (d.is_float or d.bits < 8):
        return np.random.default_rng(seed).integers(1, 1 << min(d.bits, 6), count, np.uint8).view(d.numpy)
    return floats(d, count, seed) if d.is_float else integers(d, count, seed)


def pairs(d: DType, count: int = 2000) -> tuple[np.ndarray, np.ndarray]:
    """Two samples that meet in all special values: the head of one is repeated, of the other tiled."""
    a, b = samples(d, count, 2), samples(d, count, 3)
    order = np.random.default_rng(4).permutation(a.size)
    head = a[:220] if d.is_float else np.unique(a)[:: max(1, np.unique(a).size // 100)]
    return np.concatenate([a, np.repeat(head, head.size)]), np.concatenate([b[order], np.tile(head, head.size)])


def error(got: np.ndarray, want: np.ndarray, d: DType) -> float:
    """The largest error relative to the wanted value; misplaced NaNs and infinities are errors of infinity. Results
    near underflow may be zero."""
    info = np.finfo(d.numpy)
    with np.errstate(all="ignore"):
        wanted = want.astype(d.numpy)
        near_overflow = np.abs(want) > float(info.max) * (1 - 1e-6)
        same = (
            (np.isnan(got) & np.isnan(wanted)) | (got == wanted) | ((np.abs(want) < 2 * float(info.tiny)) & (got == 0))
        )
        same |= near_overflow & (np.abs(got) > float(info.max) * (1 - 1e-6)) & (np.sign(got) == np.sign(wanted))
        off = np.abs(got.astype(np.float64) - want) / np.maximum(np.abs(want), float(info.tiny))
    off = np.where(same, 0.0, np.where(np.isfinite(off), off, math.inf))
    return float(off.max())


def limit(vec: Library, name: str, d: DType) -> float:
    allowed = LIMITS[name][d is F64] if name in LIMITS else float(np.finfo(d.numpy).eps)
    return allowed if vec.march != PLAIN else allowed * WITHOUT_FMA.get(name, 1.5)


def reference(name: str, *inputs: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.asarray(REFERENCES[name](*(x.astype(np.float64) if x.dtype.kind == "f" else x for x in inputs)))


# ---- tests
# ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", FLOATS, ids=lambda d: d.value)
@pytest.mark.parametrize("name", FLOAT_UNARY)
def test_float_functions(vec, d, name):
    x = samples(d, 20000 if vec.lanes == 8 else 2000)
    if name == "log" and d is F32 or name == "log1p":
        # subnormals count as zero
        x = np.where((np.abs(x) < np.finfo(d.numpy).tiny) & (x != 0), d.numpy.type(1), x)
    if name == "expm1":
        # the range that its callers use
        x = x[~(np.abs(x) > 80)]
    got, want = vec.map(f"t_{d.value}_{name}", BOOL if to_bool(name) else d, x), reference(name, x)
    if to_bool(name):
        assert np.array_equal(got, want)
    else:
        assert error(got, want, d) <= limit(vec, name, d)


@pytest.mark.parametrize("d", FLOATS, ids=lambda d: d.value)
@pytest.mark.parametrize("name", FLOAT_BINARY)
def test_float_functions_of_two(vec, d, name):
    a, b = pairs(d)
    got, want = vec.map(f"t_{d.value}_{name}", BOOL if to_bool(name) else d, a, b), reference(name, a, b)
    if to_bool(name):
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
    assert np.array_equal(vec.map(f"t_{d.value}_{name}", BOOL if to_bool(name) else d, *inputs), want)


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
    a = (
        np.random.default_rng(6).normal(size=(50, vec.lanes)).astype(d.numpy)
        if d.is_float
        else a[: 50 * vec.lanes].reshape(50, vec.lanes)
    )
    for name, fn in REDUCTIONS.items():
        got = np.zeros(50, d.numpy)
        vec(f"t_{d.value}_h{name}", got, np.ascontiguousarray(a), n=a.size)
        with np.errstate(all="ignore"):
            want = (
                fn(a.astype(np.float64), axis=1)
                if d.is_float
                else fn(a, axis=1, dtype=d.numpy)
                if name in ("sum", "prod")
                else fn(a, axis=1)
            )
        np.testing.assert_allclose(
            got,
            want,
            rtol=1e-5 if d is F32 else 1e-13 if d is F64 else 0,
            atol=1e-5 if d is F32 else 1e-13 if d is F64 else 0,
        )


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


class GuardedPages:
    """Two pages that can be written, between pages that cannot be touched."""

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, 4 * mmap.PAGESIZE)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        libc, no_access = ctypes.CDLL(None), 0
        for page in (0, 3):
            assert (
                libc.mprotect(ctypes.c_void_p(base + page * mmap.PAGESIZE), ctypes.c_size_t(mmap.PAGESIZE), no_access)
                == 0
            )
        self.first, self.end = base + mmap.PAGESIZE, base + 3 * mmap.PAGESIZE

    def bytes(self, address: int, count: int) -> np.ndarray:
        return np.ctypeslib.as_array((ctypes.c_uint8 * count).from_address(address))


@pytest.mark.parametrize("d", STORED, ids=lambda d: d.value)
def test_partial_access_touches_nothing_else(vec, d):
    """n elements at both ends of guarded pages, n known at run time and at compile time; bytes around a store keep
    their values."""
    source, target, t, size = GuardedPages(), GuardedPages(), d.value, d.size
    x = samples(d)[60 : 60 + vec.lanes] if d not in (F16, BF16) else np.arange(1, vec.lanes + 1).astype(d.numpy)
    x = np.where(np.isnan(x), 1, x).astype(x.dtype) if d.is_float else x
    for n, constant, at_end in itertools.product(range(vec.lanes + 1), (False, True), (False, True)):
        suffix = f"_{n}" if constant else ""
        wanted = x[:n].tobytes()
        p, q = (g.end - n * size if at_end else g.first for g in (source, target))
        source.bytes(p, n * size)[:] = np.frombuffer(wanted, np.uint8)
        around = target.bytes(target.first, 2 * mmap.PAGESIZE)
        around[:] = 0xA5
        vec(f"t_{t}_copy{suffix}", q, p, n=n)
        assert target.bytes(q, n * size).tobytes() == wanted
        assert np.count_nonzero(around != 0xA5) <= n * size
        around[q - target.first : q - target.first + n * size] = 0xA5
        assert (around == 0xA5).all()
        whole = np.full(vec.lanes, 1, x.dtype)
        vec(f"t_{t}_fill{suffix}", whole, p, n=n)
        assert whole.tobytes() == wanted + bytes((vec.lanes - n) * size)


@pytest.mark.parametrize("d", STORED, ids=lambda d: d.value)
def test_strided_access(vec, d):
    source, t, size = GuardedPages(), d.value, d.size
    x = np.arange(1, vec.lanes + 1).astype(d.numpy)
    for n, stride, at_end in itertools.product((0, 1, 3, vec.lanes - 1, vec.lanes), (0, 1, 3, -2), (False, True)):
        span = abs(stride) * max(n - 1, 0) + (n > 0)
        p = source.end - span * size if at_end else source.first
        memory = source.bytes(p, span * size).view(x.dtype)
        start = p + (span - 1) * size if stride < 0 else p
        order = memory[::stride] if stride else np.broadcast_to(memory[:1], n)
        if stride:
            order[:] = x[:n]
        elif n:
            memory[:] = x[-1]
        whole = np.full(vec.lanes, 1, x.dtype)
        vec(f"t_{t}_gather", whole, start, n=n, stride=stride)
        assert whole[:n].tobytes() == order.tobytes() and not whole[n:].view(np.uint8).any()
        memory.view(np.uint8)[:] = 0xFF
        vec(f"t_{t}_scatter", start, x, n=n, stride=stride)
        assert order.tobytes() == (x[:n] if stride else np.repeat(x[max(n - 1, 0)], n)).tobytes()
    vec(f"t_{t}_broadcast", whole, x[2:])
    assert (whole == x[2]).all()


@pytest.mark.parametrize("d", STORED, ids=lambda d: d.value)
def test_pieces(vec, d):
    """Of n lanes from place `at` on, those that are among five elements are stored."""
    memory, x = GuardedPages(), np.arange(1, vec.lanes + 1).astype(d.numpy)
    for n, at, at_end in itertools.product(range(vec.lanes + 1), range(-vec.lanes - 1, 8), (False, True)):
        p = memory.end - 5 * d.size if at_end else memory.first
        now = memory.bytes(memory.first, 2 * mmap.PAGESIZE)
        now[:] = 0xA5
        vec(f"t_{d.value}_piece", p, x, n=n, stride=at)
        want = np.full(5 * d.size, 0xA5, np.uint8).view(x.dtype)
        for i in range(n):
            if 0 <= at + i < 5:
                want[at + i] = x[i]
        assert memory.bytes(p, 5 * d.size).tobytes() == want.tobytes()
        now[p - memory.first : p - memory.first + 5 * d.size] = 0xA5
        assert (now == 0xA5).all()


def test_block_copies(vec):
    """The engine's own memcpy, memmove and memset, overlapping both ways."""
    for n in (0, 1, 31, 32, 33, 100, 1000):
        for shift in (-40, -7, -1, 0, 1, 7, 40):
            x = np.random.default_rng(n).integers(0, 256, 2000, np.uint8)
            want = x.copy()
            want[500 + shift : 500 + shift + n] = x[500 : 500 + n].copy()
            vec("t_memmove", x.ctypes.data + 500 + shift, x.ctypes.data + 500, n=n)
            assert np.array_equal(x, want)
        want[1000 : 1000 + n] = want[:n]
        vec("t_memcpy", x.ctypes.data + 1000, x, n=n)
        want[3 : 3 + n] = 0xC3
        vec("t_memset", x.ctypes.data + 3, 0x7C3, n=n)
        assert np.array_equal(x, want)


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
    "expression, most",
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
def test_instructions(expression, most, tmp_path):
    """Functions of epilogues stay in registers and within a count of instructions, moves and constants aside."""
    text = f'#include "vec.h"\nvoid f(f32 *p) {{ vf32 x = ld_f32(p); st_f32(p, {expression}); }}\n'
    assembly = clang([*TARGETS["avx2"], "-S"], text, tmp_path / "test.s", tmp_path)
    body = re.findall(
        r"^\t([a-z]\w+)(.*)$", assembly[assembly.index("f:") : assembly.index(".Lfunc_end")], re.MULTILINE
    )
    assert not [line for _, line in body if "%rsp" in line] and "vmaskmov" not in assembly
    assert (
        len([op for op, _ in body if not op.startswith(("vmov", "vbroadcast", "vzeroupper", "ret", "vxorps"))]) <= most
    )
