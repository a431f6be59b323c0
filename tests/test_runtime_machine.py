"""The back end's knowledge of the machine: CPU, quota, memory; and its loading of code."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from pathlib import Path

import machines
import numpy as np
import pytest
from handmade import chain, compiled, python

from pelton.backends import cpu
from pelton.backends.cpu import machine
from pelton.engine import file
from pelton.errors import EngineError
from pelton.runtime import Engine, load
from pelton.system import memory, share
from pelton.system.share import memory_limit, quota
from pelton.targets import LEVELS


@pytest.mark.skipif(machines.TAKEN_FOR is not None, reason="the CPU is taken for another")
def test_describe():
    d = cpu.describe()
    assert (
        d["isa"] in LEVELS
        and d["vendor"]
        and d["model"]
        and d["family"] > 0
        and d["cpu_model"] >= 0
        and d["stepping"] >= 0
    )
    assert (
        0 < d["cores"] <= len(os.sched_getaffinity(0))
        and {"l1d", "l2"} <= d["caches"].keys()
        and d["caches"]["l1d"] >= 8 << 10
    )
    flags = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")).split()
    spelled = {"sse3": "pni", "lzcnt": "abm", "avx512vnni": "avx512_vnni"}
    for ours in ("avx2", "fma", "sse3", "lzcnt", "bmi2", "f16c", "avx512f", "avx512vnni"):
        theirs = spelled.get(ours, ours)
        assert (ours in d["features"]) == (theirs in flags), ours
    t = cpu.target("x86_64_v3")
    assert t["os"] == "linux" and t["arch"] == "x86_64" and "avx2" in t["features"] and t["cpu"] == d["model"]


def test_caches_of_the_system(tmp_path):
    for i, (level, kind, size) in enumerate(
        ((1, "Data", "64K"), (1, "Instruction", "48K"), (2, "Unified", "1M"), (3, "", ""))
    ):
        folder = tmp_path / f"index{i}"
        folder.mkdir()
        for name, text in (("level", level), ("type", kind), ("size", size)):
            (folder / name).write_text(f"{text}\n")
    (tmp_path / "index4").mkdir()
    assert machine.caches_of_system(str(tmp_path)) == {"l1d": 64 << 10, "l1i": 48 << 10, "l2": 1 << 20}
    assert machine.caches_of_system(str(tmp_path / "absent")) == {}


def test_an_arm_core_is_known_by_its_register(monkeypatch):
    """0x413fd0c1: Arm's part 0xd0c, a Neoverse N1, r3p1."""
    monkeypatch.setattr(machine, "_cpuid", lambda leaf: (0x413FD0C1, 0, 0, 0))
    found = machine._arm("aarch64")
    assert (found["vendor"], found["family"], found["cpu_model"], found["stepping"]) == ("0x41", 0xD0C, 3, 1)


def group(root, path, **files):
    d = root / path
    d.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (d / name.replace("__", ".")).write_text(text + "\n")


def test_quota(tmp_path):
    proc, root = tmp_path / "cgroup", tmp_path / "fs"
    inf = float("inf")
    assert quota(proc, root) == inf
    proc.write_text("0::/a/b\n")
    group(root, "a/b", cpu__max="max 100000")
    assert quota(proc, root) == inf
    group(root, "a", cpu__max="150000 100000")
    assert quota(proc, root) == 1.5
    group(root, "a/b", cpu__max="50000 100000")
    assert quota(proc, root) == 0.5
    proc.write_text("0::/../elsewhere\n")  # a container that sees a path outside of its own root
    group(root, "", cpu__max="400000 100000")
    assert quota(proc, root) == 4
    proc.write_text("5:cpu,cpuacct:/docker/x\n3:memory:/y\n")
    group(root, "cpu,cpuacct/docker/x", cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    assert quota(proc, root) == inf
    group(root, "cpu,cpuacct/docker", cpu__cfs_quota_us="250000", cpu__cfs_period_us="100000")
    assert quota(proc, root) == 2.5
    group(root, "cpu", cpu__cfs_quota_us="junk", cpu__cfs_period_us="")
    assert quota(proc, root) == 2.5


def test_memory_limit(tmp_path):
    proc, root = tmp_path / "cgroup", tmp_path / "fs"
    assert memory_limit(proc, root) is None
    proc.write_text("0::/a/b\n")
    group(root, "a/b", memory__max="max")
    assert memory_limit(proc, root) is None
    group(root, "a", memory__max="2000000000")
    assert memory_limit(proc, root) == 2_000_000_000
    proc.write_text("5:cpu,cpuacct:/docker/x\n3:memory:/y\n")
    group(root, "memory/y", memory__limit_in_bytes="9223372036854771712")
    assert memory_limit(proc, root) is None
    group(root, "memory", memory__limit_in_bytes="1000000")
    assert memory_limit(proc, root) == 1_000_000


def test_threads_follow_the_affinity():
    r = python("""
        import os
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        import numpy as np
        from handmade import chain, expected
        from pelton.backends import cpu
        from pelton.runtime import Engine, load
        x = np.ones(1000, np.float32)
        e = Engine(chain(1000))
        assert cpu.default_threads() == 1 and e.context().threads == 1
        # more threads than CPUs: slow, not stuck
        assert np.array_equal(e.context(threads=3).run({"x": x})["y"], expected(x)["y"])
        print("good")
        """)
    assert r.stdout == "good\n", r.stderr


def test_memory_is_on_cache_lines_and_huge_pages():
    for size in (0, 1, 1000, (2 << 20) - 1, 2 << 20, 5 << 20):
        room = memory.allocate(size)
        assert (
            room.nbytes == size
            and not room[:100].any()
            and memory.address(room) % (memory.HUGE_PAGE if size >= memory.HUGE_PAGE else 64) == 0
        )
        room[:] = 1
    with pytest.raises(EngineError, match="MB of memory, but the system refuses it"):
        memory.allocate(1 << 60)
    data = np.arange(100, dtype=np.uint8)
    assert (
        all(np.array_equal(memory.aligned(data[i:].tobytes()), data[i:]) for i in range(5))
        and memory.aligned(b"").size == 0
    )


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the memory of a process of Linux")
def test_zeros_take_memory_by_page():
    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    for shape in ((), (0, 4), (3, 5), (7, 1 << 20), (64, 1 << 20)):
        zeros, before = memory.zeros_by_page(shape, np.dtype(np.int16)), resident()
        assert zeros.shape == shape and zeros.dtype == np.int16 and zeros.flags.writeable
        if len(shape) == 2:
            zeros[:, :1] = 1  # of 64 huge pages, in the last case
        assert resident() - before < 16 << 20
        assert zeros.sum() == (shape[0] if zeros.size > 1 else 0)
    with pytest.raises(EngineError, match="MB of memory, but the system refuses it"):
        memory.zeros_by_page((1 << 60,), np.dtype(np.int8))


def number(code, name="which") -> int:
    return ctypes.CFUNCTYPE(ctypes.c_int)(code.symbol(name))()


def test_code_is_loaded_each_for_itself():
    """Two objects with the same names are two; the loader does not take one for the other, whatever file descriptors
    they had."""
    sources = [compiled(f"int which(void) {{ return {i}; }}") for i in range(3)]
    for in_memory in (True, False):
        loaded = [cpu.load_code(sources[i % 3], in_memory=in_memory) for i in range(9)]
        assert [number(c) for c in loaded] == [i % 3 for i in range(9)]
        for c in loaded[::2]:
            c.close()
            c.close()
        again = cpu.load_code(sources[2], in_memory=in_memory)
        assert number(again) == 2 and [number(c) for c in loaded[1::2]] == [1, 0, 2, 1]
        with pytest.raises(EngineError, match="no kernel 'nothing'"):
            again.symbol("nothing")
        with pytest.raises(EngineError, match="closed"):
            loaded[0].symbol("which")


def test_loading_leaves_nothing_behind(tmp_path, monkeypatch):
    code = compiled()  # the compiler has files of its own
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = os.listdir("/proc/self/fd")
    for in_memory in (True, False):
        with cpu.load_code(code, in_memory=in_memory) as c:
            assert c.symbol("add") and os.listdir(tmp_path) == []
    assert len(os.listdir("/proc/self/fd")) == len(before)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    with pytest.raises(EngineError, match="set TMPDIR"):
        cpu.load_code(code, in_memory=False)

    def nowhere():
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr("tempfile.gettempdir", nowhere)
    with pytest.raises(EngineError, match="a temporary folder: No usable temporary directory found. .*set TMPDIR"):
        cpu.load_code(code, in_memory=False)


def test_code_that_is_none():
    good = compiled()
    (table,) = struct.unpack_from("<Q", good, 32)
    beyond = bytearray(good)
    segment = next(at for at in range(table, len(good), 56) if good[at : at + 4] == b"\1\0\0\0")
    struct.pack_into("<Q", beyond, segment + 32, 1 << 40)
    for bad, why in (
        (b"", "no 64-bit ELF"),
        (b"\x7fELF", "no 64-bit ELF"),
        (good[:100], "no whole shared object"),
        (good[:18] + b"\xb7\0" + good[20:], "for aarch64"),
        (good[:16] + b"\1\0" + good[18:], "no whole shared object"),
        (bytes(beyond), "beyond the end"),
    ):
        with pytest.raises(EngineError, match=why):
            cpu.load_code(bad)


def test_an_engine_unloads_its_code():
    import gc

    def maps() -> int:
        return Path("/proc/self/maps").read_text().count("memfd:pelton")

    gc.collect()
    before = maps()
    engines = [Engine(chain()) for _ in range(5)]
    context = engines[0].context()
    assert maps() > before
    del engines
    gc.collect()
    x = np.ones(1000, np.float32)
    assert context.run({"x": x})["y"].shape == (1000,)  # a context keeps its engine
    del context
    gc.collect()
    assert maps() == before


def test_constants_are_shared_by_contexts():
    e = Engine(chain(2_000_000, constant=np.ones(2_000_000, np.float32)))
    assert all(c.engine.constants is e.constants for c in (e.context(), e.context()))


def resident(path) -> int:
    """Bytes of a file that this process has mapped and in its page tables."""
    found, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ")[0]:
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            found += int(line.split()[1]) << 10
    return found


def test_a_context_has_the_weights_in_memory(tmp_path):
    path = tmp_path / "big.pelton"
    file.write(chain(4_000_000, constant=np.ones(4_000_000, np.float32)), path)
    engine = load(path)
    before = resident(path)
    context = engine.context(threads=1)
    libc, probe = ctypes.CDLL(None, use_errno=True), memory.allocate(1 << 16)
    if libc.madvise(ctypes.c_void_p(memory.address(probe) // 4096 * 4096), ctypes.c_size_t(4096), memory.POPULATE_READ):
        pytest.skip("this kernel maps pages one by one")
    assert before < 1 << 20 and resident(path) >= 16_000_000 and context.engine is engine


def test_contexts_take_no_more_than_control_groups_allow(monkeypatch):
    monkeypatch.setattr(share, "memory_limit", lambda: 1000)
    share.memory.cache_clear()
    try:
        assert share.memory() == 1000
        engine = Engine(chain(100))
        with pytest.raises(EngineError, match="its control group allows 0.0 GB"):
            engine.context(threads=2)
        share.memory.cache_clear()
        monkeypatch.setattr(share, "memory_limit", lambda: 1 << 20)
        engine.context(threads=2)
    finally:
        share.memory.cache_clear()
