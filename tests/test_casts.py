"""Casts between all pairs of element types, in generated code, against the op's reference: every code of
small types, awkward bits of others."""

from __future__ import annotations

import itertools

import machines
import numpy as np
import pytest
from vec_library import Library, clang, run, samples

from pelton.codegen.c.emit import CLanguage, memory_type
from pelton.codegen.c.toolchain import zig
from pelton.codegen.grid import is_computable
from pelton.codegen.tail import expression
from pelton.codegen.template import SOURCES
from pelton.ir.evaluate import evaluate_node
from pelton.ir.graph import Node, Value
from pelton.ir.scalar import Scalar
from pelton.ir.types import BOOL, STRING, DType, TensorType
from pelton.ops import get

TYPES = [d for d in DType if is_computable(d)]
EIGHTHS = [d for d in TYPES if d.value.startswith("f8")]
CASTS = [
    (s, d, attrs)
    for s, d, attrs in (
        *((s, d, {}) for s, d in itertools.product(TYPES, TYPES)),
        *((s, d, {"saturate": False}) for s, d in itertools.product(TYPES, EIGHTHS)),
        *(
            (s, DType.F8E8M0FNU, {"round_mode": mode, "saturate": saturate})
            for s, mode, saturate in itertools.product(TYPES, ("down", "nearest"), (False, True))
        ),
    )
    # a cast to the own type is none, whatever it says
    if s is not d or d not in EIGHTHS
]
BUILDS = [("x86-64-v3", 8), ("x86-64-v2", 4), *([("x86-64-v4", 16)] if machines.runs("x86_64_v4") else [])]


def name(s: DType, d: DType, attrs: dict) -> str:
    return "_".join(["t", s.value, d.value, *(str(a) for a in attrs.values())])


def kernel(s: DType, d: DType, attrs: dict) -> str:
    """`void name(const args *a, idx n, idx flush)`: the cast of n elements, whole vectors, where arithmetic knows
    subnormals, or does not as in engines."""
    x = Scalar("var", (f"ld_{s.value}(x + i)",), s)
    cast = expression(CLanguage(), get("cast").trace((s,), get("cast").complete({"to": d, **attrs}), (x,)))
    return (
        f"void {name(s, d, attrs)}(const args *a, idx n, idx flush) {{ __builtin_ia32_ldmxcsr(flush ? 0x9fc0 : 0x1f80);"
        f" {memory_type(s)} *x = a[1].p; {memory_type(d)} *y = a[0].p;"
        f" rolled for (idx i = 0; i < n; i += VL) st_{d.value}(y + i, {cast}); __builtin_ia32_ldmxcsr(0x1f80); }}\n"
    )


@pytest.fixture(scope="module", params=BUILDS, ids=lambda b: f"{b[0]}-{b[1]}")
def casts(request, tmp_path_factory) -> Library:
    march, lanes = request.param
    where = tmp_path_factory.mktemp("casts")
    quick = "" if (march, lanes) == BUILDS[0] else "#pragma clang optimize off\n"  # half the time to compile
    text = '#include "vec_narrow.h"\n' + quick + "".join(kernel(*cast) for cast in CASTS)
    clang(["-target", "x86_64-linux-gnu", f"-march={march}", f"-DVL={lanes}", "-c"], text, where / "test.o", where)
    clang(
        ["-target", "x86_64-linux-gnu", f"-march={march}", "-c"],
        (SOURCES / "freestanding.c").read_text(),
        where / "freestanding.o",
        where,
    )
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


def drawn(d: DType) -> np.ndarray:
    """All codes of a type of 16 bits and less, else special values, halves between neighbours of narrower types, and
    random bits."""
    if d is BOOL:
        return np.array([False, True] * 8)
    if d.size <= 2:
        return np.tile(
            np.arange(1 << min(d.bits, 8 * d.size), dtype=np.uint8 if d.size == 1 else np.uint16),
            16 if d.bits < 8 else 1,
        ).view(d.numpy)
    x = samples(d, 4000)
    if not d.is_float:
        return x
    with np.errstate(over="ignore"):
        codes = np.concatenate(
            [drawn(t).astype(np.float64) for t in (*EIGHTHS, DType.F4E2M1FN, DType.F6E2M3FN, DType.F6E3M2FN)]
        ).astype(d.numpy)
        between = np.concatenate([codes, (codes[:-1] + codes[1:]) / 2])
        near = np.concatenate(
            [between, np.nextafter(between, d.numpy.type(np.inf)), np.nextafter(between, d.numpy.type(-np.inf))]
        )
        tiny = np.concatenate(
            [np.arange(-40, 40) * 2.0**-149, np.arange(-40, 40) * 2.0**-134, np.arange(-40, 40) * 2.0**-25]
        ).astype(d.numpy)
    return np.concatenate([x, near, tiny])


def by_reference(x: np.ndarray, d: DType, attrs: dict) -> np.ndarray:
    source, out = Value(TensorType.of(x), "x"), Value(TensorType(d, x.shape), "y")
    (y,) = evaluate_node(Node(get("cast"), (source,), get("cast").complete({"to": d, **attrs}), (out,)), (x,))
    return y


@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
@pytest.mark.parametrize("s", TYPES, ids=lambda d: d.value)
def test_casts(casts, s):
    x = drawn(s)
    x = np.concatenate([x, np.repeat(x[-1:], -x.size % casts.lanes)])
    for _, d, attrs in (w for w in CASTS if w[0] is s):
        want = by_reference(x, d, attrs)
        # with and without flushing: arithmetic decides what subnormals are
        for flush in (0, 1) if d is not BOOL else (0,):
            got = np.zeros(x.shape, d.numpy)
            casts(name(s, d, attrs), got.view(np.uint8), x.view(np.uint8), n=x.size, stride=flush)
            there, asked = got, want
            if d.is_float:
                there, asked = got.astype(np.float64), want.astype(np.float64)
            elif d.bits < 8:
                there, asked = got.astype(object), want.astype(object)
            if d.is_float:
                np.testing.assert_array_equal(
                    np.signbit(there) & (there == there),
                    np.signbit(asked) & (asked == asked),
                    err_msg=f"{s} to {d} {attrs}",
                )
            np.testing.assert_array_equal(there, asked, err_msg=f"{s} to {d} {attrs}, flush {flush}")


def test_every_type_has_a_cast():
    assert {d for d in DType if d not in TYPES} == {STRING, DType.C64, DType.C128}


def test_casts_of_onnx_runtime():
    """What x86 makes of floats that do not fit: measured on ONNX Runtime 1.31 and numpy, and the same here."""
    x = np.array([-1.5, 300, -129, 70000, 3e9, -3e9, np.nan, np.inf, -np.inf], np.float32)
    for d, want in (
        (DType.U8, [255, 44, 127, 112, 0, 0, 0, 0, 0]),
        (DType.I8, [-1, 44, 127, 112, 0, 0, 0, 0, 0]),
        (DType.I16, [-1, 300, -129, 4464, 0, 0, 0, 0, 0]),
        (DType.I32, [-1, 300, -129, 70000, *[-1 << 31] * 5]),
    ):
        assert by_reference(x, d, {}).tolist() == want
