"""Walks kernel templates: tactics on programs of one region, in dense and in gapped memory, against the reference.

A kernel runs in a child process, each buffer against a guard page; memory around an output's elements must stay
unchanged, and tiles give the same bytes in any order. Kernels are built for the best level of this CPU, and a random
selection for the others: lower ones run as they are; higher ones are compiled and linked, and run as
`machines.Imitating` compiles them.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from zlib import crc32

import emulator
import machines
import pytest
from compare import assert_close
from kernel_cases import CASES, Case, declare, drawn, named, program, region_of, settled, symbolic, varying, walk
from kernel_memory import laid, run_kernel

from pelton.backends.cpu import code as machine_code
from pelton.backends.cpu import describe
from pelton.codegen.c.toolchain import ClangCompiler
from pelton.codegen.template import Kernel, Tactic, Target, Template
from pelton.ir.evaluate import evaluate
from pelton.ir.graph import Value, symbols, optimum_sizes
from pelton.ir.types import DType
from pelton.targets import ISAS, best
from pelton.tuning.candidates import template_rejection

# what tests of templates import from here alone
__all__ = ["CASES", "TARGET", "TARGETS", "Case", "check", "check_dynamic", "compiler", "declare", "drawn", "evaluate"]
__all__ += [
    "laid",
    "linked",
    "PICKS_BYTES",
    "longs",
    "of_level",
    "named",
    "program",
    "region_of",
    "sample",
    "settled",
    "symbolic",
    "varying",
    "walk",
]

# Where this CPU is taken for another or emulates one, kernels have been walked for its own level: the best guess, for
# one level.
IS_OTHER = bool(machines.TAKEN_FOR or emulator.LEVEL)
TACTICS = 1 if IS_OTHER else 2
# `make test-all` takes every case for both:
DYNAMIC = 5  # one case in so many also runs with dynamic dimensions
GAPPED = 3  # where this CPU is taken for another, one case in so many also runs in gapped memory
OTHERS = 10  # one case in so many, and the first of every template, is also built for the other levels


def of_level(isa: str) -> Target:
    return Target(isa=isa, lanes=ISAS[isa].lanes, registers=ISAS[isa].registers, threads=2)


TARGETS = {isa: of_level(isa) for isa in ((emulator.LEVEL,) if emulator.LEVEL else machines.HERE)}
TARGET = TARGETS[emulator.LEVEL or machines.TAKEN_FOR or best(describe())]
# elsewhere picking bytes takes as long as multiplying them
picks = pytest.mark.skipif(
    TARGET.level.arch != "x86_64" and TARGET.isa != "aarch64", reason=f"{TARGET.isa} has no kernel for two of four"
)

# Elsewhere picking bytes takes as long as multiplying them: there are no kernels for two of four weights.
PICKS_BYTES = TARGET.level.arch == "x86_64" or TARGET.isa == "aarch64"

_compilers: dict[tuple[str, type[ClangCompiler]], ClangCompiler] = {}


def compiler(isa: str = TARGET.isa, kind: type[ClangCompiler] = machines.Imitating) -> ClangCompiler:
    """The compiler for a level: for this CPU to run, whatever the level, or for the level itself (`machines.Exact`)."""
    if (isa, kind) not in _compilers:
        _compilers[isa, kind] = kind(isa, jobs=2)
    return _compilers[isa, kind]


def longs(text: str) -> list[str]:
    """The types and numbers in C, comments aside, that are as wide as a `long`, in which targets differ."""
    code = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S).replace("202311L", "")
    return re.findall(r"\blong\b|\b[0-9]+[uU]?[lL]\b", code)


def linked(kernels: Sequence[Kernel], target: Target) -> bytes:
    """The code of kernels, for this CPU to run. Kernels for higher levels are also compiled and linked for these."""
    sources = {k.symbol: k.source for k in kernels}
    assert not any(map(longs, sources.values())), "a kernel uses `long`, whose width differs between targets"
    if target.isa != TARGET.isa and not machines.runs(target.isa):
        real = compiler(target.isa, machines.Exact)
        machine_code.check_object(real.link(real.objects(sources)))
    made = compiler(target.isa)
    return made.link(made.objects(sources))


def target_for(case: Case, target: Target) -> Target:
    """The target with what a case needs of it."""
    of = ISAS[case.level or target.isa]
    isa = case.level or target.isa
    return replace(target, isa=isa, lanes=of.lanes, registers=of.registers, half=case.half)


def sample(tactics: list[Tactic], most: int, seed: str) -> list[Tactic]:
    """At most `most` tactics: the best guess, and others by lot."""
    return tactics[:1] + drawn_tactics(tactics[1:], most - 1, seed)


def drawn_tactics(tactics: list[Tactic], most: int, seed: str) -> list[Tactic]:
    """At most `most` tactics by lot, in their order."""
    return sorted(random.Random(seed).sample(tactics, min(most, len(tactics))), key=tactics.index)


def check_dynamic(
    template: Template, case: Case, most: int = 1, more: Sequence[int] = (0, 5, -2, 13), target: Target | None = None
) -> int:
    """A kernel for dynamic dimensions at the case's own sizes and at `more` than these; one tuned for sizes of 1 at the
    case's own; and one for sizes that may be 0, with each of them 0 in turn. Returns the number of runs, 0 where the
    template rejects the region."""
    own = bool(symbols(case.graph))
    graph = case.graph if own else symbolic(case.graph, template)
    others = [{name: max(1, size + n) for name, size in optimum_sizes(graph).items()} for n in more]
    ran = check_at(template, replace(case, graph=graph), most, others[:1] if case.arrays else others, target)
    if not own:
        small = symbolic(case.graph, template, lambda d: (1, 1, d))
        sizes = [{name: int(name[1:]) for name in optimum_sizes(small)}]
        ran += check_at(template, replace(case, graph=small), most, sizes, target)
    if not own and not case.arrays:
        empty = symbolic(case.graph, template, lambda d: (0, d, 4096))
        sizes = [{**optimum_sizes(empty), name: 0} for name in optimum_sizes(empty)]
        ran += check_at(template, replace(case, graph=empty), most, sizes, target)
    return ran


def check_at(
    template: Template, case: Case, most: int, runs: Sequence[Mapping[str, int]], target: Target | None = None
) -> int:
    """Kernels chosen for the optimum sizes, run at others. Returns the number of runs."""
    graph, target = case.graph, target_for(case, target or TARGET)
    region, optimum = region_of(graph), optimum_sizes(graph)
    if not optimum or template_rejection(template, region) is not None:
        return 0
    ran = 0
    lay = laid(template, region, case, 0)
    to: dict[Value, Value] = {}
    sized_region = region.sized(optimum, to)
    tactics = sample(list(template.tactics(sized_region, lay.sized(optimum, to), target)), most, case.name)
    kernels = [template.emit(region, lay, t, target) for t in tactics]
    if not kernels:
        return 0
    code = linked(kernels, target)
    for sizes in runs:
        for tactic, kernel in zip(tactics, kernels):
            to = {}
            now, about = region.sized(sizes, to), f"{case.name} by {tactic.name} for {sizes}"
            inputs = drawn(replace(case, graph=now.body), seed=0 if case.want else sum(sizes.values()))
            want = case.want or evaluate(now.body, inputs, round=False)
            run, strides = kernel.sized(sizes, to), lay.sized(sizes, to)
            got = run_kernel(now, run, code, strides, inputs, about, behind=True, tiles="whole")
            for v in now.body.outputs:
                coarse = template.rounded_as(tactic)
                dtype = coarse.numpy if v.type.dtype is DType.F32 is not coarse else None
                assert_close(got[v], want[v.name].astype(v.type.dtype.numpy), dtype, about=f"{about} %{v.name}")
            ran += 1
    return ran


def check(template: Template, case: Case, most: int = TACTICS, gaps: bool | None = None) -> int:
    """Runs a case by tactics of a template, in gapped memory too where `gaps` says so (None: as `_takes_gaps` draws);
    AssertionError where one is wrong. Returns how many kernels of this CPU's level ran."""
    if case.level and ISAS[case.level].arch != ISAS[TARGET.isa].arch:
        pytest.skip(f"a kernel of {case.level} alone")
    ran = check_on(TARGET, template, case, most, gaps)
    is_first = any(case is first for first in CASES.get(template.name, ())[:1])
    if not IS_OTHER and (is_first or crc32(f"{case.name} {template.name}".encode()) % OTHERS == 0):
        for target in TARGETS.values():
            if target.isa != TARGET.isa:
                check_on(replace(target, threads=TARGET.threads), template, case, 1)
    return ran


def _takes_gaps(template: Template, case: Case) -> bool:
    """True if a case also runs in gapped memory: all do for this CPU's own level, one in so many for others."""
    return not IS_OTHER or crc32(f"{template.name} {case.name}".encode()) % GAPPED == 0


def check_on(target: Target, template: Template, case: Case, most: int, gaps: bool | None = None) -> int:
    """The same for the level of a target."""
    target = target_for(case, target)
    region = region_of(case.graph)
    reason = template_rejection(template, region)
    assert reason is None, f"{template.name} rejects {case.name}: {reason}"
    if symbols(case.graph):
        ran = check_dynamic(template, case, most, target=target)
        assert ran, f"{template.name} has no tactic for {case.name}"
        return ran
    inputs = drawn(case)
    want = case.want or evaluate(case.graph, inputs, round=False)
    ran = 0
    gaps = _takes_gaps(template, case) if gaps is None else gaps
    for gap in (0, 5) if gaps else (0,):
        lay = laid(template, region, case, gap)
        tactics, seed = list(template.tactics(region, lay, target)), f"{case.name} {gap}"
        # compiling is what takes the time: half as many in gapped memory
        chosen = drawn_tactics(tactics, (most + 1) // 2, seed) if gap else sample(tactics, most, seed)
        assert chosen or gap, f"{template.name} has no tactic for {case.name}"
        kernels = [template.emit(region, lay, t, target) for t in chosen]
        if not kernels:
            continue
        code = linked(kernels, target)
        for tactic, kernel in zip(chosen, kernels):
            about = f"{case.name} by {tactic.name}, gap {gap}"
            got, again = (
                run_kernel(region, kernel, code, lay, inputs, about, behind=tiles == "whole", tiles=tiles)
                for tiles in ("whole", "single")
            )
            coarse = template.rounded_as(tactic)
            for v in region.body.outputs:
                dtype = coarse.numpy if v.type.dtype is DType.F32 is not coarse else None
                assert_close(got[v], want[v.name].astype(v.type.dtype.numpy), dtype, about=f"{about} %{v.name}")
                assert got[v].tobytes() == again[v].tobytes(), f"{about}: %{v.name} depends on how tiles are grouped"
            ran += 1
    if template.dynamic and crc32(f"{template.name} {case.name}".encode()) % DYNAMIC == 0:
        ran += check_dynamic(template, case, target=target)
    return ran
