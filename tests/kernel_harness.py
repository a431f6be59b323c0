"""Walks kernel templates: every accepting tactic on a program of one region, in dense and in gapped memory, against the
float64 reference.

A kernel runs in a process of its own, each buffer against a page that may not be touched; what lies around the elements
of an output must stay as it was, and tiles give the same bytes in any order. Kernels are made for the best level that
this CPU has, and some, by lot, for the others: lower ones run as they are; higher ones are compiled and linked, and run
as `machines.Imitating` compiles them.
"""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import random
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from zlib import crc32

import machines
import numpy as np
from compare import assert_close

from pelton.backends.cpu import code as machine_code
from pelton.backends.cpu import describe
from pelton.codegen.c.templates import library  # noqa: F401  (declares the templates)
from pelton.codegen.c.toolchain import ClangCompiler
from pelton.codegen.template import TEMPLATES, Kernel, Packed, Tactic, Target, Template
from pelton.ir import dims
from pelton.ir.builder import Builder
from pelton.ir.evaluate import evaluate
from pelton.ir.graph import Graph, Value, optimum_sizes, symbols
from pelton.ir.text import parse
from pelton.ir.types import DType, TensorType
from pelton.ops import get
from pelton.plan.fuse import is_view
from pelton.plan.layout import Layouts, Order, Strides, dense, row_major, span
from pelton.plan.region import Region, cut
from pelton.plan.workspace import KernelWorkspace
from pelton.targets import ISAS, best
from pelton.tune.candidates import refusal

PAGE = mmap.PAGESIZE
# one case in so many also runs with sizes that a run decides; `make test-all` runs all of them so
DYNAMIC = 5
# one case in so many, and the first of every template, is also made for the other levels;
OTHERS = 10
# `make test-all` makes all of them
TARGETS = {isa: Target(isa=isa, lanes=of.lanes, registers=of.registers, threads=2) for isa, of in ISAS.items()}
TARGET = TARGETS[machines.TAKEN_FOR or best(describe()["features"])]
POISON = {"f": np.nan, "i": -77, "u": 77, "b": True, "V": 0}


@dataclass(frozen=True)
class Case:
    """A program of one region for a template. orders: input → its axes in memory, outermost first. arrays: inputs that
    may not be drawn at random."""

    name: str
    graph: Graph
    orders: Mapping[str, Order] = field(default_factory=dict)
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    backwards: tuple[str, ...] = ()  # inputs that lie in memory from the last element to the first
    want: Mapping[str, np.ndarray] | None = None  # outputs by name, where the reference does not say them


CASES: dict[str, list[Case]] = {}  # template → its cases


def program(*nodes, **inputs: str | np.ndarray) -> Graph:
    """A graph out of words: inputs by name (a type text is an input, an array a constant), nodes (result names, op,
    operand names, attrs)."""
    b = Builder()
    env: dict[str, Value] = {
        name: b.input(TensorType.parse(v), name) if isinstance(v, str) else b.constant(v, name)
        for name, v in inputs.items()
    }
    for results, op, operands, *attrs in nodes:
        names = results.split()
        made = b.emit(get(op), [env[n] for n in operands.split()], *attrs, names=names)
        env.update(zip(names, made))
    ends = [name for results, *_ in nodes for name in results.split()]
    read = {n for _, _, operands, *_ in nodes for n in operands.split()}
    return b.graph([env[n] for n in ends if n not in read or n.startswith("out")])


def named(*parts) -> str:
    """A case's name out of what sets it apart; what is empty, false or none goes without saying."""
    said = [p for p in parts if p is not None and p is not False and p != "" and p != ()]
    return "-".join("x".join(map(str, p)) if isinstance(p, tuple) else str(p) for p in said)


def region_of(graph: Graph) -> Region:
    return cut(graph, graph.nodes, tuple(n for n in graph.nodes if n.op.scalar is None and not is_view(n)))


def drawn(case: Case, seed: int = 0) -> dict[str, np.ndarray]:
    """Arrays for the inputs of a case."""
    rng = np.random.default_rng(seed)
    out = {}
    for v in case.graph.inputs:
        dtype, shape = v.type.dtype, v.type.shape
        if v.name in case.arrays:
            a = case.arrays[v.name]
        elif dtype is DType.BOOL:
            a = rng.random(shape) < 0.5
        elif dtype.is_integer:
            a = rng.integers(-5 if dtype.is_signed else 0, 6, shape)
        else:
            a = rng.standard_normal(shape)
        out[v.name] = np.asarray(a).astype(dtype.numpy).reshape(shape)
    return out


def gapped(shape: tuple[int, ...], order: Order, gap: int) -> Strides:
    """Strides of a buffer with `gap` more elements behind every row of every axis, the innermost still element by
    element."""
    strides, step, inner = [0] * len(shape), 1, True
    for axis in reversed(order):
        strides[axis] = step
        step *= shape[axis]
        if shape[axis] != 1 or not inner:
            step += gap
            inner = False
    return tuple(strides)


def laid(template: Template, region: Region, case: Case, gap: int) -> Layouts:
    """How all operands lie: as the case says where they fit, else as the template wants them. Like place.py, but with
    gaps."""
    lay = Layouts({v: dense(v.type.shape) for v in region.body.constants})
    for v in region.body.inputs:
        strides = gapped(v.type.shape, case.orders.get(v.name, row_major(v.type.rank)), gap)
        lay = lay.moved({v: tuple(-s for s in strides) if v.name in case.backwards else strides})
    for v in region.body.outputs:
        lay = lay.moved({v: dense(v.type.shape, template.output_order(region, v, lay))})
    for v in (*region.body.inputs, *region.body.constants):
        if not template.fits(region, v, lay):
            lay = lay.moved({v: dense(v.type.shape, template.copy_order(region, v, lay))})
            assert template.fits(region, v, lay), f"{template.name} does not take %{v.name} in the order it wants"
    for v in region.body.outputs:
        wide = lay.moved({v: gapped(v.type.shape, template.output_order(region, v, lay), gap)})
        lay = wide if template.fits(region, v, wide) else lay
    assert all(template.fits(region, v, lay) for v in lay), f"{template.name} takes every operand, but not all together"
    return lay


class Buffer:
    """Shared memory for an array with strides: poison all around, and a page that may not be touched behind (or before)
    it."""

    def __init__(self, array: np.ndarray, strides: Strides, filled: bool, behind: bool = True):
        size = span(array.shape, tuple(map(abs, strides))) * array.itemsize if array.size else 0
        room = -(-max(size, 1) // PAGE) * PAGE
        self.map = mmap.mmap(-1, room + 2 * PAGE)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        start = room + PAGE - size if behind else PAGE
        low = np.frombuffer(self.map, array.dtype, size // array.itemsize, start)
        low[:] = np.array(POISON[array.dtype.kind]).astype(array.dtype)
        shift = sum((d - 1) * -s for d, s in zip(array.shape, strides) if s < 0) if array.size else 0
        self.view = np.ndarray(
            array.shape, array.dtype, self.map, start + shift * array.itemsize, [s * array.itemsize for s in strides]
        )
        if filled:
            self.view[...] = array
        self.address = base + start + shift * array.itemsize
        self.before, self.array, self.low = low.copy(), array, low
        self.guards = (base, base + room + PAGE)

    def protect(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        for page in self.guards:
            if libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(PAGE), 0):
                raise OSError(ctypes.get_errno(), "mprotect")

    def untouched(self, written: bool) -> bool:
        """Whether only elements were written, or nothing where it is an operand."""
        now, was = self.low.copy(), self.before.copy()
        if written:
            where = np.zeros(self.low.size, bool)
            shift = (self.address - self.low.ctypes.data) // self.array.itemsize
            np.lib.stride_tricks.as_strided(
                where[shift:], self.array.shape, [s // self.array.itemsize for s in self.view.strides]
            )[...] = True
            now, was = now[~where], was[~where]
        return now.tobytes() == was.tobytes()


_compilers: dict[tuple[str, type[ClangCompiler]], ClangCompiler] = {}


def compiler(isa: str = TARGET.isa, kind: type[ClangCompiler] = machines.Imitating) -> ClangCompiler:
    """What compiles for a level: so that this CPU runs it, whatever it is, or as it is (`ClangCompiler`)."""
    if (isa, kind) not in _compilers:
        _compilers[isa, kind] = kind(isa, jobs=2)
    return _compilers[isa, kind]


def longs(text: str) -> list[str]:
    """Where C, comments aside, depends on how wide a `long` is: by the type, or by a number of that type. Kernels index
    with `idx`."""
    code = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S).replace("202311L", "")
    return re.findall(r"\blong\b|\b[0-9]+[uU]?[lL]\b", code)


def linked(kernels: Sequence[Kernel], target: Target) -> bytes:
    """The code of kernels, which this CPU runs. What is for CPUs above it is also compiled and linked for these."""
    sources = {k.symbol: k.source for k in kernels}
    assert not any(map(longs, sources.values())), "a kernel says `long`, which is not as wide on all targets"
    if target.isa != TARGET.isa and not machines.runs(target.isa):
        real = compiler(target.isa, ClangCompiler)
        machine_code.check_object(real.link(real.objects(sources)))
    made = compiler(target.isa)
    return made.link(made.objects(sources))


def sample(tactics: list[Tactic], most: int, seed: str) -> list[Tactic]:
    """The best guess, and others by lot."""
    rest = tactics[1:]
    return tactics[:1] + sorted(random.Random(seed).sample(rest, min(most - 1, len(rest))), key=rest.index)


def symbolic(
    graph: Graph,
    template: Template | None = None,
    varies: Callable[[int], tuple[int, int, int]] = lambda d: (max(1, d - 2), d, 4096),
) -> Graph:
    """The same program with every size of its inputs that may vary, for the program and the template, as a symbol;
    equal sizes vary together. varies: a size to the least, usual and largest one of its symbol."""
    fixed: set[int] = {0, 1}
    for size in sorted({d for v in graph.inputs for d in v.type.shape} - fixed):
        try:
            varying = _with_symbols(graph, fixed | {d for v in graph.inputs for d in v.type.shape if d > size}, varies)
            if template is not None and refusal(template, region_of(varying)) is not None:
                fixed.add(size)
        except (ValueError, TypeError):
            fixed.add(size)
    return _with_symbols(graph, fixed, varies)


def _with_symbols(graph: Graph, fixed: set[int], varies: Callable[[int], tuple[int, int, int]]) -> Graph:
    b = Builder(graph.name)
    to = {
        v: b.input(
            v.type.with_shape(d if d in fixed else dims.symbol(f"s{d}", *varies(d)) for d in v.type.shape), v.name
        )
        for v in graph.inputs
    }
    to |= {v: b.constant(a, v.name) for v, a in graph.constants.items()}
    for n in graph.nodes:
        to |= zip(n.outputs, b.emit(n.op, [to[v] for v in n.inputs], n.attrs, names=[v.name for v in n.outputs]))
    return b.graph([to[v] for v in graph.outputs])


def check_dynamic(
    template: Template, case: Case, most: int = 1, more: Sequence[int] = (0, 5, -2, 13), target: Target | None = None
) -> int:
    """One kernel for sizes that a run decides, at the case's own and at so much more; one for such as are usually one,
    at the case's own; and one for such as may be none, each of them none for once. Returns how many runs there were;
    none where the template refuses."""
    own = bool(symbols(case.graph))
    graph = case.graph if own else symbolic(case.graph, template)
    others = [{name: max(1, size + n) for name, size in optimum_sizes(graph).items()} for n in more]
    ran = check_at(template, replace(case, graph=graph), most, others[:1] if case.arrays else others, target)
    if not own:
        small = symbolic(case.graph, template, lambda d: (1, 1, d))
        ran += check_at(
            template, replace(case, graph=small), most, [{name: int(name[1:]) for name in optimum_sizes(small)}], target
        )
    if not own and not case.arrays:
        empty = symbolic(case.graph, template, lambda d: (0, d, 4096))
        ran += check_at(
            template,
            replace(case, graph=empty),
            most,
            [{**optimum_sizes(empty), name: 0} for name in optimum_sizes(empty)],
            target,
        )
    return ran


def check_at(
    template: Template, case: Case, most: int, ways: Sequence[Mapping[str, int]], target: Target | None = None
) -> int:
    """By kernels that are chosen for the usual sizes, runs at these."""
    graph, target = case.graph, target or TARGET
    region, usual = region_of(graph), optimum_sizes(graph)
    if not usual or refusal(template, region) is not None:
        return 0
    ran = 0
    lay = laid(template, region, case, 0)
    to: dict[Value, Value] = {}
    sized_region = region.sized(usual, to)
    tactics = sample(list(template.tactics(sized_region, lay.sized(usual, to), target)), most, case.name)
    kernels = [template.emit(region, lay, t, target) for t in tactics]
    if not kernels:
        return 0
    code = linked(kernels, target)
    for sizes in ways:
        for tactic, kernel in zip(tactics, kernels):
            to = {}
            now, about = region.sized(sizes, to), f"{case.name} by {tactic.name} for {sizes}"
            inputs = drawn(replace(case, graph=now.body), seed=0 if case.want else sum(sizes.values()))
            want = case.want or evaluate(now.body, inputs, round=False)
            got = _run(
                now, kernel.sized(sizes, to), code, lay.sized(sizes, to), inputs, about, behind=True, tiles="whole"
            )
            for v in now.body.outputs:
                assert_close(got[v], want[v.name].astype(v.type.dtype.numpy), about=f"{about} %{v.name}")
            ran += 1
    return ran


def check(template: Template, case: Case, most: int = 2) -> int:
    """Runs a case on tactics of a template; AssertionError where one is wrong. Returns how many kernels ran, of the
    level of this CPU."""
    ran = check_on(TARGET, template, case, most)
    if (
        any(case is first for first in CASES.get(template.name, ())[:1])
        or crc32(f"{case.name} {template.name}".encode()) % OTHERS == 0
    ):
        for target in TARGETS.values():
            if target.isa != TARGET.isa:
                check_on(replace(target, threads=TARGET.threads), template, case, 1)
    return ran


def check_on(target: Target, template: Template, case: Case, most: int) -> int:
    """The same, of the level of a target."""
    region = region_of(case.graph)
    reason = refusal(template, region)
    assert reason is None, f"{template.name} refuses {case.name}: {reason}"
    if symbols(case.graph):
        ran = check_dynamic(template, case, most, target=target)
        assert ran, f"{template.name} has no tactic for {case.name}"
        return ran
    inputs = drawn(case)
    want = case.want or evaluate(case.graph, inputs, round=False)
    ran = 0
    for gap in (0, 5):
        lay = laid(template, region, case, gap)
        chosen = sample(list(template.tactics(region, lay, target)), most, f"{case.name} {gap}")
        assert chosen or gap, f"{template.name} has no tactic for {case.name}"
        kernels = [template.emit(region, lay, t, target) for t in chosen]
        if not kernels:
            continue
        code = linked(kernels, target)
        for tactic, kernel in zip(chosen, kernels):
            about = f"{case.name} by {tactic.name}, gap {gap}"
            results = [
                _run(region, kernel, code, lay, inputs, about, behind=backwards != 1, tiles=tiles)
                for backwards, tiles in ((0, "whole"), (1, "single"))
            ]
            for v in region.body.outputs:
                wide = want[v.name]
                assert_close(results[0][v], wide.astype(v.type.dtype.numpy), about=f"{about} %{v.name}")
                assert results[0][v].tobytes() == results[1][v].tobytes(), (
                    f"{about}: %{v.name} depends on how its tiles are cut"
                )
            ran += 1
    if template.dynamic and crc32(f"{template.name} {case.name}".encode()) % DYNAMIC == 0:
        ran += check_dynamic(template, case, target=target)
    return ran


def _run(
    region: Region,
    kernel: Kernel,
    code: bytes,
    lay: Mapping[Value, Strides],
    inputs: Mapping[str, np.ndarray],
    about: str,
    *,
    behind: bool,
    tiles: str,
) -> dict[Value, np.ndarray]:
    """The outputs of one run of a kernel in a process of its own."""
    body = region.body
    buffers: dict[Value, Buffer] = {}
    packed: list[Buffer] = []
    words = []
    for x in kernel.operands:
        if isinstance(x, Packed):
            a = np.zeros(x.shape, x.dtype.numpy)
            x.fill(a)
            packed.append(Buffer(a.reshape(-1), (1,), True, behind))
            words.append(packed[-1].address)
        elif isinstance(x, KernelWorkspace):
            packed.append(Buffer(np.full(x.bytes, 255, np.uint8), (1,), False, behind))
            words.append(packed[-1].address)
        else:
            if x not in buffers:
                written = x in body.outputs
                a = (
                    np.zeros(x.type.shape, x.type.dtype.numpy)
                    if written
                    else inputs[x.name]
                    if x in body.inputs
                    else body.constants[x]
                )
                buffers[x] = Buffer(np.asarray(a), lay[x], not written, behind)
            words.append(buffers[x].address)
    words += kernel.dims
    scratch = Buffer(np.full(kernel.scratch, 255, np.uint8), (1,), True, behind)
    held = [*buffers.values(), *packed, scratch]
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(code)
        file.flush()
        child = os.fork()
        if not child:
            status = 1
            faulthandler.disable()  # a crash is a finding, not an accident
            try:
                for b in held:
                    b.protect()
                args = (ctypes.c_int64 * len(words))(*words)
                run = getattr(ctypes.CDLL(file.name), kernel.symbol)
                run.argtypes, run.restype = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p], None
                for phase in range(kernel.phases):
                    for begin, end in (
                        [(0, kernel.tiles)] if tiles == "whole" else [(i, i + 1) for i in reversed(range(kernel.tiles))]
                    ):
                        run(args, phase * kernel.tiles + begin, phase * kernel.tiles + end, scratch.address)
                status = 0
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
    assert status == 0, (
        f"{about}: the kernel {'touched memory that is not its own' if os.WIFSIGNALED(status) else 'could not be run'}"
        f" (status {status})"
    )
    for v, b in buffers.items():
        assert b.untouched(v in body.outputs), f"{about}: memory around %{v.name} was written"
    return {v: buffers[v].view.copy() for v in body.outputs}


def walk(*names: str) -> list:
    """(template, case) for every case declared for these templates, as parameters of a test."""
    import pytest

    return [pytest.param(TEMPLATES[n], c, id=f"{n}-{c.name}") for n in names for c in CASES.get(n, [])]


def varying(
    inputs: str, *body: str, order: Order = (), arrays: Mapping[str, np.ndarray] | None = None, **constants: np.ndarray
) -> Case:
    """A case with sizes n, m and long that a run decides: tuned for 1, for 9 and, without an upper bound, for 3."""
    returned = body[-1].partition("=")[0]
    text = "\n".join(
        [f"graph main[n: 1..1..64, m: 1..9..64, long: 1..3..]({inputs}) {{", *body, f"return {returned}", "}"]
    )
    return Case(
        named("varying", inputs, body[0].partition("= ")[2], order),
        parse(text, constants),
        dict(x=order) if order else {},
        arrays or {},
    )


def declare(template: str, *cases: Case) -> None:
    CASES.setdefault(template, []).extend(cases)
