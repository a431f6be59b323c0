"""Plugin kernels run once between canaries before an engine gets them, and are timed again after edits."""

import json
import logging

import numpy as np
import pytest
from plugin_examples import ROW_SUMS, normal, row_sums, single

import pelton
from pelton import plugins
from pelton.tuning import canaries

pytestmark = pytest.mark.usefixtures("own_plugins")

WILD = ROW_SUMS.replace("o.y0[r * Y0_S0]", "o.y0[(r + 100000) * Y0_S0]")
ONE = ({"ROWS": 3},)


def rows(size=7):
    return single("row_sums", f"f32[{size}, 5]")


@pytest.fixture
def guarded(monkeypatch):
    """The kernels that ran between canaries."""
    found, check = [], canaries.check_kernel

    def see(loaded, kernel, task, seed=0):
        found.append(kernel.symbol)
        check(loaded, kernel, task, seed)

    monkeypatch.setattr(canaries, "check_kernel", see)
    return found


@pytest.mark.parametrize("how", [dict(level=3), dict(level=0), dict(level=0, check=True)])
def test_an_edited_kernel_is_refused_in_the_cache_of_the_one_before(how, tmp_path):
    row_sums()
    pelton.build(rows(), cache_dir=tmp_path, **how)
    row_sums(WILD)
    with pytest.raises(pelton.BuildError, match="kernel of plugin row_sums"):
        pelton.build(rows(), cache_dir=tmp_path, **how)


@pytest.mark.parametrize("level", [0, 3])
def test_a_kernel_without_rivals_is_not_timed_but_guarded(level, tmp_path):
    row_sums(WILD, tactics=ONE)
    with pytest.raises(pelton.BuildError, match="kernel of plugin row_sums"):
        pelton.build(rows(), level=level, cache_dir=tmp_path)


def test_a_kernel_of_recorded_tactics_is_guarded(tmp_path):
    row_sums()
    pelton.build(rows(), level=0, save_tactics=tmp_path / "tactics.json", cache_dir=tmp_path / "cache")
    row_sums(WILD)
    with pytest.raises(pelton.BuildError, match="kernel of plugin row_sums"):
        pelton.build(rows(), load_tactics=tmp_path / "tactics.json", cache_dir=tmp_path / "cache")


@pytest.mark.parametrize("level, count", [(0, 1), (1, 2)])
def test_a_kernel_is_guarded_once(level, count, guarded, tmp_path):
    """Whether it was timed or not; once more with other operands, and whenever nothing is kept."""
    row_sums()
    for seen in (count, count, 2 * count):
        pelton.build(rows(7 if seen == count else 8), level=level, cache_dir=tmp_path)
        assert len(guarded) == seen
    row_sums(tactics=({"ROWS": 3}, {"ROWS": 1}), scratch=lambda inputs, outputs, ROWS: 64)
    pelton.build(rows(), level=0, cache_dir=tmp_path)
    pelton.build(single("row_sums", "f32[7, 5]", scale=3.0), level=0, cache_dir=tmp_path)
    assert len(guarded) == 2 * count + 2


def test_dynamic_kernels_are_guarded_at_the_optimum(tmp_path):
    row_sums(WILD, tactics=ONE)
    with pytest.raises(pelton.BuildError, match=r"writes 24 bytes behind its operand y0, f32\[6\]"):
        pelton.build(single("row_sums", "f32[n=1..6..9, 5]"), level=0, cache_dir=tmp_path)


@pytest.mark.parametrize(
    "how, rows, match",
    [
        (dict(source=ROW_SUMS.replace("r < X_0 && ", ""), tactics=({"ROWS": 4},)), "1..8..9", "behind its operand y0"),
        (dict(source=ROW_SUMS.replace("r < X_0 && ", ""), tactics=({"ROWS": 4},)), "8..8..99", "behind its operand y0"),
        (
            dict(
                source=ROW_SUMS.replace("float sum = 0;", "float sum = 0; ((float *)scratch)[r] = 1;"),
                tactics=ONE,
                scratch=lambda inputs, outputs, ROWS: 8 * 4,
            ),
            "1..8..99",
            "behind its scratch memory of 32 bytes",
        ),
    ],
)
def test_dynamic_kernels_are_guarded_at_other_sizes_than_the_optimum(how, rows, match, tmp_path):
    row_sums(**how)
    with pytest.raises(pelton.BuildError, match=match):
        pelton.build(single("row_sums", f"f32[n={rows}, 5]"), level=0, cache_dir=tmp_path)


def test_a_kernel_that_this_cpu_does_not_run_is_said_not_to_be_guarded(cpu_of, guarded, caplog, tmp_path):
    row_sums(tactics=ONE)
    cpu_of("x86_64_v3")
    pelton.build(rows(), level=0, target="cpu:x86_64_v4", cache_dir=tmp_path)
    assert not guarded
    assert "plugin kernels were not checked" in caplog.text and "(row_sums)" in caplog.text
    caplog.clear()
    pelton.build(rows(), level=0, target="cpu:x86_64_v3", cache_dir=tmp_path)
    assert len(guarded) == 1 and not [r for r in caplog.records if r.levelno >= logging.WARNING]


def tasks_in(path):
    return {task for tasks in json.loads(path.read_bytes())["times"].values() for task in tasks}


def test_times_belong_to_the_source_of_a_plugin(tmp_path):
    times, known = tmp_path / "times.json", []
    for source in (ROW_SUMS, ROW_SUMS, ROW_SUMS.replace("idx k = 0;", "idx k = 0 ;")):
        row_sums(source)
        pelton.build(rows(), level=1, timing_cache=times, cache_dir=tmp_path)
        known.append(tasks_in(times))
    assert known[0] == known[1] and known[0] < known[2] and len(known[2]) == 2


def test_headers_of_a_plugin_belong_to_its_source(guarded, tmp_path):
    """Also those that they include."""
    outer, inner, times = tmp_path / "outer.h", tmp_path / "inner.h", tmp_path / "times.json"
    outer.write_text('#include "inner.h"\n')
    source = ROW_SUMS.replace('#include "vec.h"\n', f'#include "vec.h"\n#include "{outer}"\n')
    row_sums(source.replace("sum * SCALE", "FACTOR * sum * SCALE"))
    a = normal(7, 5)
    for i, factor in enumerate((2, 3), 1):
        inner.write_text(f"#define FACTOR {factor}\n")
        engine = pelton.build(rows(), level=1, timing_cache=times, cache_dir=tmp_path / "cache")
        np.testing.assert_allclose(engine.run({"x0": a})["y0"], factor * a.sum(1) + 1, rtol=1e-4, atol=1e-4)
        assert len(tasks_in(times)) == i and len(guarded) == 2 * i


def test_headers_beside_the_file_of_a_kernel_are_found(tmp_path):
    """Edits of them change the code, and the fingerprint by which cached engines are known."""
    (tmp_path / "rows.c").write_text(
        ROW_SUMS.replace('#include "vec.h"', '#include "vec.h"\n#include "outer.h"').replace("sum *", "FACTOR * sum *")
    )
    (tmp_path / "outer.h").write_text('#include "inner.h"\n')
    a, known = normal(7, 5), set()
    for factor in (2, 3):
        (tmp_path / "inner.h").write_text(f"#define FACTOR {factor}\n")
        row_sums(tmp_path / "rows.c")
        known.add(plugins.fingerprint("row_sums"))
        found = pelton.build(rows(), level=0, cache_dir=tmp_path / "cache").run({"x0": a})["y0"]
        np.testing.assert_allclose(found, factor * a.sum(1) + 1, rtol=1e-4, atol=1e-4)
    assert len(known) == 2 and None not in known
