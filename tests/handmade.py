"""Handmade engines for tests of the runtime: small kernels compiled from C, and written-out plans."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import textwrap
from functools import cache
from pathlib import Path

import numpy as np

from pelton.engine.plan import Buffer, EnginePlan, Port, Slice, Step

KERNELS = """
typedef __INT64_TYPE__ idx;
typedef union { void *p; idx d; } args;

/* z = x + y, tiles of `dims[0]` elements, dims[1] in all */
void add(const args *a, idx begin, idx end, void *scratch) {
    const float *x = a[0].p, *y = a[1].p; float *z = a[2].p;
    idx n = a[4].d, to = end * a[3].d;
    for (idx i = begin * a[3].d; i < (to < n ? to : n); i++) z[i] = x[i] + y[i];
}

/* z = x * dims[0], one element per tile */
void scale(const args *a, idx begin, idx end, void *scratch) {
    const float *x = a[0].p; float *z = a[1].p;
    for (idx i = begin; i < end; i++) z[i] = x[i] * (float)a[2].d;
}

/* the same, but a tile takes dims[1] thousand rounds */
void slow(const args *a, idx begin, idx end, void *scratch) {
    for (idx i = begin; i < end; i++) {
        volatile float v = ((const float *)a[0].p)[i];
        for (volatile idx k = 0; k < a[3].d * 1000; k++) {}
        ((float *)a[1].p)[i] = v * (float)a[2].d;
    }
}

/* z = the sum of dims[0] elements before and at i (serial in a tile), through scratch: wrong if two workers share it */
void window(const args *a, idx begin, idx end, void *scratch) {
    const float *x = a[0].p; float *z = a[1].p, *s = scratch; idx n = a[2].d;
    for (idx i = begin; i < end; i++) {
        for (idx k = 0; k < n; k++) s[k] = i - k >= 0 ? x[i - k] : 0;
        float sum = 0;
        for (idx k = 0; k < n; k++) sum += ((volatile float *)s)[k];
        z[i] = sum;
    }
}

/* counts itself in, then waits for a second one, for at most dims[0] looks */
void meet(const args *a, idx begin, idx end, void *scratch) {
    idx *here = a[0].p;
    __atomic_fetch_add(here, 1, 5);
    for (idx k = 0; k < a[2].d && __atomic_load_n(here, 5) < 2; k++) {}
    *(float *)a[1].p = __atomic_load_n(here, 5) == 2;
}

/* z = x · 2^-140, a denormal */
void denormal(const args *a, idx begin, idx end, void *scratch) {
    const float *x = a[0].p; float *z = a[1].p;
    for (idx i = begin; i < end; i++) { volatile float t = x[i] * 0x1p-100f; t = t * 0x1p-40f; z[i] = t; }
}
"""


def _kept() -> Path:
    """What tests compile, kept from run to run by its content."""
    path = Path(tempfile.gettempdir(), f"pelton-tests-{os.getuid()}")
    path.mkdir(mode=0o700, exist_ok=True)
    return path


@cache
def compiled(source: str = KERNELS) -> bytes:
    """Machine code of C kernels as one shared object, as engines hold it."""
    import ziglang

    zig = os.path.join(os.path.dirname(ziglang.__file__), "zig")
    out = _kept() / (hashlib.sha256(source.encode()).hexdigest()[:24] + ".so")
    if not out.exists():
        with tempfile.TemporaryDirectory() as d:
            env = {**os.environ, "ZIG_GLOBAL_CACHE_DIR": d, "ZIG_LOCAL_CACHE_DIR": d}
            Path(d, "k.c").write_text(source)
            compile_ = [
                zig,
                "clang",
                "-target",
                "x86_64-linux-gnu",
                "-O2",
                "-fPIC",
                "-ffreestanding",
                "-c",
                "k.c",
                "-o",
                "k.o",
            ]
            subprocess.run(compile_, cwd=d, env=env, check=True)
            subprocess.run(
                [zig, "ld.lld", "-shared", "-nostdlib", "-z", "noexecstack", "k.o", "-o", "k.so"],
                cwd=d,
                env=env,
                check=True,
            )
            os.replace(os.path.join(d, "k.so"), out)
    return out.read_bytes()


def engine(
    inputs, outputs, buffers, steps, *, arena=0, constants=b"", code=None, name="handmade", target=None, meta=None
) -> EnginePlan:
    return EnginePlan(
        name,
        tuple(inputs),
        tuple(outputs),
        tuple(buffers),
        tuple(steps),
        arena,
        constants,
        compiled() if code is None else code,
        {"os": sys.platform, "arch": "x86_64", "isa": "x86_64"} if target is None else target,
        meta or {},
    )


def chain(n: int = 1000, constant: bytes | None = None, grain: int = 1) -> EnginePlan:
    """y = 3 (2 x + c), z = 2 x + c: three steps, an arena, a constant, two outputs."""
    c = np.arange(n, dtype=np.float32).tobytes() if constant is None else constant
    size = 4 * n
    tile = 16
    tiles = -(-n // tile)
    return engine(
        [Port("x", "f32", (n,), ("N",))],
        [Port("y", "f32", (n,)), Port("z", "f32", (n,))],
        [
            Buffer("input", 0, size),
            Buffer("output", 0, size),
            Buffer("output", 1, size),
            Buffer("arena", 64, size),
            Buffer("constant", 0, size),
        ],
        [
            Step(
                "double",
                "scale",
                (Slice(0, 0), Slice(3, 0)),
                (2,),
                n,
                grain,
                0,
                0,
                info={"tactic": "plain", "flops": n},
            ),
            Step("add", "add", (Slice(3, 0), Slice(4, 0), Slice(2, 0)), (tile, n), tiles, grain, 1, 0),
            Step("triple", "scale", (Slice(2, 0), Slice(1, 0)), (3,), n, grain, 2, 0),
        ],
        arena=64 + size,
        constants=c,
        meta={"threads": 2, "labels": ["a", "b"]},
    )


def expected(x, c=None):
    z = 2 * x + (np.arange(len(x), dtype=np.float32) if c is None else c)
    return {"y": 3 * z, "z": z}


def python(code: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess:
    """Runs Python code in a process of its own, with what this one can import."""
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *map(os.path.abspath, sys.path)]),
        **environment,
    }
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        capture_output=True,
        text=True,
        env=env,
        timeout=120,
    )


def zig_cc(sources: list[str], flags: list[str]) -> Path:
    """A program compiled out of C files, headers beside them included in what it is known by."""
    text = [Path(f).read_bytes() for s in sources for f in (s, *sorted(Path(s).parent.glob("*.h")))]
    out = _kept() / hashlib.sha256(b"\0".join([*text, *(f.encode() for f in flags)])).hexdigest()[:24]
    if not out.exists():
        cache = str(_kept() / "zig")
        env = {**os.environ, "ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache}
        subprocess.run(
            [sys.executable, "-m", "ziglang", "cc", *sources, *flags, "-o", f"{out}.{os.getpid()}"], env=env, check=True
        )
        os.replace(f"{out}.{os.getpid()}", out)
    return out
