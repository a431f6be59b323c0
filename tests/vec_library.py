"""vec.h as a library for tests: C around its functions, compiled and loaded, and samples as inputs."""

from __future__ import annotations

import ctypes
import itertools
import math
import os
import subprocess
from pathlib import Path

import machines
import numpy as np

from pelton.codegen.c.toolchain import FLAGS, zig
from pelton.codegen.template import SOURCES
from pelton.ir.types import BF16, BOOL, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64, DType

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
ROUNDING_ONLY = ("abs", "sign", "sqrt", "floor", "ceil", "rint", "trunc")
EXPONENTIAL = ("exp", "log", "erf", "tanh", "sigmoid", "sinh", "cosh", "asinh", "acosh", "atanh", "log1p", "expm1")
TRIGONOMETRIC = ("sin", "cos", "tan", "asin", "acos", "atan")
FLOAT_UNARY = (*ROUNDING_ONLY, "isnan", "isinf", *EXPONENTIAL, *TRIGONOMETRIC)
INTEGER_UNARY = ("abs", "sign", "not")
EDGES = [0.0, 0.5, 1.0, 2.0, 3.0, math.pi, math.e, 2.5, 1e4]
EDGES += [88.37, 88.72, 88.73, 89.5, 87.3, 104.0, 709.7, 709.8, 745.2]  # where exp overflows and underflows
EDGES += [2.0**31, 2.0**63, 1e30, 3.9, 8.3, 127.5, 255.5, 32767.5, 65535.5]  # and casts to integers

PRELUDE = '#include "vec_narrow.h"\n'


def is_predicate(name: str) -> bool:
    return name in COMPARISONS or name in ("isnan", "isinf")


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
            text.append(loop(f"t_{t}_{name}", f"{t}_{name}(x0)", BOOL if is_predicate(name) else d, d))
        for name in FLOAT_BINARY if d.is_float else INTEGER_BINARY:
            text.append(loop(f"t_{t}_{name}", f"{t}_{name}(x0, x1)", BOOL if is_predicate(name) else d, d, d))
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


def build_library(text: str, march: str, lanes: int, folder: Path) -> Library:
    """The library that C with vec_narrow.h is compiled to, for a CPU and a width of vectors."""
    target = ["-target", "x86_64-linux-gnu", f"-march={march}", f"-DVL={lanes}", "-c"]
    objects, library = [folder / "test.o", folder / "freestanding.o"], folder / "test.so"
    for path, source in zip(objects, (PRELUDE + text, (SOURCES / "freestanding.c").read_text())):
        clang(target, source, path, folder)
    run([zig(), "ld.lld", "-shared", "-nostdlib", "--no-undefined", "-o", *map(str, (library, *objects))], folder)
    return Library(library, march, lanes)


def floats(d: DType, count: int, seed: int) -> np.ndarray:
    """Special values, everyday magnitudes, and random bit patterns."""
    rng, info = np.random.default_rng(seed), np.finfo(d.numpy)
    limits = [float(x) for x in (info.max, info.tiny, info.smallest_subnormal, info.eps)]
    edges = [*EDGES, *limits, math.inf, math.nan]
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
