"""Kernels for micro-controllers, without an emulator: every template compiles, and calls nothing but what programs for
bare machines have. `make test-mcu-kernels` runs them."""

import importlib
import re
import struct
from dataclasses import replace
from pathlib import Path

import machines
import pytest
from kernel_harness import CASES, compiler, laid, of_level, region_of, target_for

from pelton.ir.graph import symbols
from pelton.codegen.template import TEMPLATES, Kernel
from pelton.targets import BUILT, ISAS
from pelton.tuning.candidates import template_rejection

LEVELS = [level for level, isa in ISAS.items() if isa.is_thumb]
OF_BYTES = ("conv_int8", "gemm_int8", "depthwise_int8")
# What C libraries and compilers of micro-controllers have: block copies and fills, arithmetic of types without
# instructions, square roots likewise.
ALLOWED = re.compile(r"memcpy|memmove|memset|__aeabi_\w+|sqrtf?|__(fix|float|mul|div|udiv|mod|umod)\w+")

for path in sorted(Path(__file__).parent.glob("test_kernels*.py")):
    importlib.import_module(path.stem)  # each declares cases


def undefined(code: bytes) -> set[str]:
    """The names that an object asks for (ELF of 32 bits, little endian)."""
    sections, (size, count) = struct.unpack_from("<I", code, 32)[0], struct.unpack_from("<HH", code, 46)
    rows = [struct.unpack_from("<10I", code, sections + i * size) for i in range(count)]
    names = set()
    for _, kind, _, _, at, length, link, *_ in rows:
        if kind != 2:  # the table of symbols
            continue
        for entry in range(at + 16, at + length, 16):
            name, _, _, _, _, section = struct.unpack_from("<IIIBBH", code, entry)
            if section == 0:
                start = rows[link][4] + name
                names.add(code[start : code.index(0, start)].decode())
    return names


def kernel_of(name: str, level: str) -> Kernel | None:
    """A template's kernel for the first of its cases that has one for a level, by its first tactic."""
    template = TEMPLATES[name]
    for case in CASES[name]:
        if case.level or symbols(case.graph):
            continue
        target, region = replace(target_for(case, of_level(level)), threads=1), region_of(case.graph)
        if template_rejection(template, region) is None:
            layouts = laid(template, region, case, 0)
            for tactic in template.tactics(region, layouts, target):
                return template.emit(region, layouts, tactic, target)
    return None


def asks_for(name: str, level: str) -> set[str]:
    made = kernel_of(name, level)
    if made is None:
        return set()
    of = compiler(level, machines.Exact)
    return undefined(of.link(of.objects({made.symbol: made.source})))


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_need_no_c_library(name):
    assert [s for s in asks_for(name, "thumb_m4") if not ALLOWED.fullmatch(s)] == []


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", OF_BYTES)
def test_products_of_bytes_need_no_wide_numbers(name, level):
    """Neither f64 nor divisions of 64 bits; cores without an FPU call functions for f32."""
    soft = r"__aeabi_(f\w+|i2f|ui2f|f2iz)" if level == "thumb_m3" else "-"
    allowed = re.compile(rf"memcpy|memset|{soft}")
    assert [s for s in asks_for(name, level) if not allowed.fullmatch(s)] == []


@pytest.mark.parametrize("level", ["thumb_m4", "thumb_m7", "thumb_m33"])
def test_bytes_are_multiplied_in_pairs(level):
    made = kernel_of("conv_int8", level)
    text = compiler(level, machines.Exact).assembly(made.source)
    inner = text[text.index("@APP") : text.index("@NO_APP")].lower()
    assert inner.count("smlad") % 8 == 0 and inner.count("ldrd") * 8 == inner.count("smlad") * 3
    assert "sxtb16" in inner


def test_builds_do_not_choose_micro_controllers_by_themselves():
    assert not {*LEVELS} & {*BUILT} and all(ISAS[level].relocatable for level in LEVELS)
