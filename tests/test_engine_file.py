"""The engine file: round trip, bit flips, truncation, forged plans."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import random
from pathlib import Path

import numpy as np
import pytest
from handmade import chain, engine, expected, python

from pelton.engine import container, file
from pelton.engine.validate import validate
from pelton.engine.plan import Buffer, Port, Slice, Step, Tensor
from pelton.errors import EngineError
from pelton.runtime import load


def refused(data: bytes, verify: bool = False) -> str:
    with pytest.raises(EngineError) as e:
        file.read(data, verify)
    return str(e.value)


def same(a, b) -> bool:
    return all(
        (
            bytes(getattr(a, f.name)) == bytes(getattr(b, f.name))
            if f.name in ("constants", "code")
            else getattr(a, f.name) == getattr(b, f.name)
        )
        for f in dataclasses.fields(a)
    )


def with_host_step():
    tensor = Tensor(Slice(0, 4), "f32", (2, 3), (3, 1))
    return engine(
        [Port("x", "f32", (7,))],
        [Port("y", "f32", (2, 3), ("N", None))],
        [Buffer("input", 0, 28), Buffer("output", 0, 24), Buffer("table", 64, 9)],
        [
            Step(
                "odd",
                "",
                host='%y: f32[2, 3] = "odd"(%x)',
                tiles=0,
                inputs=(tensor,),
                outputs=(dataclasses.replace(tensor, slice=Slice(1, 0)),),
            )
        ],
        constants=bytes(range(100)),
        code=b"",
    )


def test_round_trip(tmp_path):
    for e in (chain(), with_host_step(), chain(7, constant=np.zeros(7, np.float32))):
        data = file.to_bytes(e)
        assert same(file.read(data, verify=True), e)
        path = tmp_path / "e.pelton"
        file.write(e, path)
        assert path.read_bytes() == data == file.to_bytes(file.read(path, verify=True))
        assert os.listdir(tmp_path) == ["e.pelton"]


def test_layout_on_disk():
    """Constants start on a page, so that their pieces are on cache lines when the file is mapped."""
    data = file.to_bytes(chain())
    rows = container.open_container(*container.map_file(data)).rows
    assert list(rows) == ["plan", "code", "meta", "constants"]
    assert rows["constants"].offset % 4096 == 0 and all(row.offset % 64 == 0 for row in rows.values())
    assert len(data) == rows["constants"].offset + rows["constants"].size


def test_constants_are_mapped_not_read(tmp_path):
    """100 MB of constants cost no more than 100 bytes of them."""
    import time

    big = chain(25_000_000, constant=np.ones(25_000_000, np.float32))
    path = tmp_path / "big.pelton"
    file.write(big, path)
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        e = file.read(path)
        times.append(time.perf_counter() - begin)
        assert len(e.constants) == 100_000_000
    assert min(times) < 0.01
    with open(path, "r+b") as f:
        f.seek(-1, os.SEEK_END)
        f.write(b"!")
    file.read(path)
    with pytest.raises(EngineError, match="altered in its constants"):
        file.read(path, verify=True)


def test_flipped_bits_are_refused_or_harmless():
    rng = random.Random(0)
    for e, step in ((with_host_step(), 1), (chain(), 3)):
        data = file.to_bytes(e)
        for at in range(0, len(data), step):
            altered = bytearray(data)
            altered[at] ^= 1 << rng.randrange(8)
            try:
                read = file.read(bytes(altered))
            except EngineError as error:
                assert any(w in str(error) for w in ("altered", "truncated", "not a Pelton engine", "newer Pelton")), (
                    str(error)
                )
            else:  # padding, or a weight
                assert same(dataclasses.replace(read, constants=e.constants), e)
                if bytes(read.constants) != bytes(e.constants):
                    assert "altered in its constants" in refused(bytes(altered), verify=True)


def test_constants_for_addressing_are_always_verified():
    e = with_host_step()
    data = bytearray(file.to_bytes(e))
    data[-100 + 63] ^= 1  # beside the table: an ordinary constant
    file.read(bytes(data))
    data[-100 + 64] ^= 1
    assert "constants it uses for addressing" in refused(bytes(data))


def test_what_was_verified_is_what_runs(tmp_path, monkeypatch):
    """A file that is rewritten in place, just after it was verified and again while its engine is in use."""
    e, path, verify = chain(64), tmp_path / "e.pelton", container.Container.verify
    e = dataclasses.replace(e, buffers=(*e.buffers[:-1], dataclasses.replace(e.buffers[-1], kind="table")))
    file.write(e, path)

    def emptied(size: int) -> None:
        with open(path, "r+b") as f:
            f.write(bytes(size))

    def verify_and_lose(self, sections, where):
        verify(self, sections, where)
        emptied(path.stat().st_size - len(e.constants))

    monkeypatch.setattr(container.Container, "verify", verify_and_lose)
    found, x = load(path), np.ones(64, np.float32)
    emptied(path.stat().st_size)
    assert np.array_equal(found.run({"x": x})["z"], expected(x)["z"])


def test_truncated_and_longer_files_are_refused():
    data = file.to_bytes(chain(64))
    for n in [*range(0, 130), *range(130, len(data), 61), len(data) - 1]:
        assert ("truncated" if n >= 8 else "not a Pelton engine") in refused(data[:n])
    assert "altered" in refused(data + b"\0")


def test_what_is_refused_says_why(tmp_path):
    data = file.to_bytes(chain())
    assert "format version 9" in (why := refused(data[:8] + b"\11" + data[9:])) and "newer Pelton" in why
    assert "format version 7" in (why := refused(data[:8] + b"\7" + data[9:])) and "build it again" in why
    assert "altered in its first bytes" in refused(data[:16] + b"\1" + data[17:])
    assert refused(b"") == "the given data is not a Pelton engine: it is empty"
    (tmp_path / "m.onnx").write_bytes(b"\x08\x07" * 50)
    for path, why in (
        (tmp_path / "m.onnx", "pelton build"),
        (tmp_path, "not a file"),
        (tmp_path / "none", "No such file"),
        (Path("/dev/null"), "not a file"),
    ):
        with pytest.raises(EngineError, match=why):
            file.read(path)


BAD_PLANS = {
    "ends at byte": lambda e: [Buffer("arena", 128, e.arena)],
    "not a multiple of 64": lambda e: [Buffer("arena", 8, 16)],
    "on GPUs only": lambda e: [Buffer("zeros", 0, 16)],
    "16 bytes of 'string' for 0 sizes": lambda e: [Buffer("iota", 0, 16, dtype="string")],
    "unknown kind": lambda e: [Buffer("heap", 0, 16)],
    "is input 1": lambda e: [Buffer("input", 1, 4000)],
    "4001 bytes": lambda e: [Buffer("input", 0, 4001)],
    "expected an integer": lambda e: [Buffer("arena", -64, 64)],
    "is of wave": lambda e: [dataclasses.replace(e.steps[2], wave=0)],
    "uses buffer": lambda e: [dataclasses.replace(e.steps[2], wave=3, args=(Slice(len(e.buffers), 0),))],
    "uses byte": lambda e: [dataclasses.replace(e.steps[2], wave=3, args=(Slice(3, 4001),))],
    "grain": lambda e: [dataclasses.replace(e.steps[2], wave=3, grain=0)],
    "number of tiles": lambda e: [dataclasses.replace(e.steps[2], wave=3, tiles=1 << 31)],
    "number of phases": lambda e: [dataclasses.replace(e.steps[2], wave=3, phases=-1)],
    "phases of": lambda e: [
        dataclasses.replace(e.steps[2], wave=3, phases=n, tiles=t) for n, t in ((0, 1), (1 << 16, 1 << 16))
    ],
    "scratch memory": lambda e: [dataclasses.replace(e.steps[2], wave=3, scratch=-1)],
    "has dimension": lambda e: [dataclasses.replace(e.steps[2], wave=3, dims=(1 << 63,))],
    "neither one kernel nor one host step": lambda e: [dataclasses.replace(e.steps[2], wave=3, symbol="")],
    "reaches byte": lambda e: [
        Step("h", "", host="h", wave=3, inputs=(Tensor(Slice(0, 0), "f32", (2, 500), (501, 1)),))
    ],
    "reaches byte -4": lambda e: [Step("h", "", host="h", wave=3, inputs=(Tensor(Slice(0, 8), "f32", (4,), (-1,)),))],
    "a stride of": lambda e: [
        Step("h", "", host="h", wave=3, inputs=(Tensor(Slice(0, 0), "f32", (2, 2), (1 << 50, 1)),))
    ],
    "writes to a constant": lambda e: [
        Step("h", "", host="h", wave=3, outputs=(Tensor(Slice(4, 0), "f32", (2,), (1,)),))
    ],
    "no kernel that could stand": lambda e: [
        dataclasses.replace(e.steps[2], wave=3, alternatives=(s,))
        for s in (
            dataclasses.replace(e.steps[2], wave=2),
            Step("h", "", host="h", wave=3),
            dataclasses.replace(e.steps[2], wave=3, alternatives=(e.steps[2],)),
        )
    ],
    "alternative 0 of step 3": lambda e: [
        dataclasses.replace(
            e.steps[2], wave=3, alternatives=(dataclasses.replace(e.steps[2], wave=3, args=(Slice(99, 0),)),)
        )
    ],
    "unknown type": lambda e: [Step("h", "", host="h", wave=3, inputs=(Tensor(Slice(0, 0), "f31", (2, 2), (2, 1)),))],
    "have a name in common": lambda e: [Port("y", "f32", ())],
    "2 names": lambda e: [Port("w", "f32", (3,), ("a", "b"))],
}


@pytest.mark.parametrize("why", BAD_PLANS)
def test_plans_that_do_not_hang_together_are_refused(why):
    e = chain()
    for extra in BAD_PLANS[why](e):
        where = {Buffer: "buffers", Step: "steps", Port: "outputs"}[type(extra)]
        bad = dataclasses.replace(e, **{where: (*getattr(e, where), extra)})
        with pytest.raises(EngineError, match=why) as refusal:
            validate(bad)
        assert "'handmade'" in str(refusal.value)


def test_outputs_need_a_buffer_and_kernels_need_code():
    e = chain()
    with pytest.raises(EngineError, match="no buffer is output 'z'"):
        validate(dataclasses.replace(e, buffers=(*e.buffers[:2], Buffer("input", 0, 4000), *e.buffers[3:])))
    with pytest.raises(EngineError, match="no machine code"):
        validate(dataclasses.replace(e, code=b""))
    with pytest.raises(EngineError, match="cannot be written as JSON"):
        file.to_bytes(dataclasses.replace(e, meta={"a": object()}))


DAMAGED_METADATA = [
    {"threads": "2"},
    {"forms": 3},
    {"forms": {"inputs": {}}},
    {"forms": {"inputs": ["x"], "outputs": {}}},
    {"forms": {"inputs": {}, "outputs": 2}},
    {"forms": {"inputs": {"x": {"keys": "k"}}, "outputs": {}}},
    {"forms": {"inputs": {}, "outputs": {"y": {"rows": "y", "keys": 5}}}},
    {"model": []},
    {"model": {"states": {"h": "y"}}},
]


@pytest.mark.parametrize("damaged", DAMAGED_METADATA, ids=json.dumps)
def test_damaged_metadata_that_runs_read_is_refused(damaged):
    validate(chain())
    with pytest.raises(EngineError, match="engine 'handmade' is damaged: .*; build it again"):
        validate(dataclasses.replace(chain(), meta=damaged))


FORGE = """
    import random, sys
    from handmade import chain
    from test_engine_file import forge, with_host_step
    from pelton.engine import file
    from pelton.errors import EngineError
    from pelton.runtime import Engine
    rng, passed, refused = random.Random(int(sys.argv[1])), 0, 0
    for i in range(700):
        e = (chain, with_host_step)[i % 3 == 0]()
        data = forge(file.to_bytes(e), rng)
        try:
            plain = file.read(data, verify=True)
            if not any(s.host for s in plain.steps):
                Engine(plain).context(threads=1)
            passed += 1
        except EngineError as error:
            assert str(error)
            refused += 1
    print(passed, refused)
"""


NUMBERS = [0, 1, -1, 2, 63, 64, 4096, (1 << 31) - 1, -(1 << 31), 1 << 31, 1 << 32, 1 << 45, 1 << 62, -(1 << 63)]
OTHERS = [1 << 63, 1 << 64, 10**400, 1.5, 1e300, None, True, "x", [], {}, [[]]]


def mutate(value, rng: random.Random):
    """Goes down to a random place of what JSON can hold and changes it."""
    if isinstance(value, dict) and value and rng.random() < 0.95:
        key = rng.choice(sorted(value))
        if rng.random() < 0.05:
            return {k: v for k, v in value.items() if k != key}
        return {**value, key: mutate(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.95:
        i = rng.randrange(len(value))
        changed = [] if rng.random() < 0.1 else [mutate(value[i], rng)]
        return value[:i] + changed + value[i + 1 :]
    if type(value) is int and rng.random() < 0.5:
        return value + rng.choice([-64, -1, 1, 64, value])
    return rng.choice(NUMBERS + OTHERS)


def forge(data: bytes, rng: random.Random) -> bytes:
    """A file with something changed in its sections or their rows, and all hashes right again."""
    found = container.open_container(*container.map_file(data))
    parts = {name: bytearray(part) for name, part in found.sections(found.rows).items()}
    inner = [name for name in parts if name.startswith("engine ")]
    texts = [name for name in ("script", "meta") if name in parts]
    match rng.choice(["bytes", "cells", "cells", "json", "json", "deep", "rows", *(["inner"] * 2 if inner else [])]):
        case "bytes":
            part = parts[rng.choice([*texts, "plan" if "plan" in parts else "script"])]
            for _ in range(rng.randint(1, 3)):
                part[rng.randrange(len(part))] = rng.randrange(256)
        case "cells" if "plan" in parts:
            for _ in range(rng.randint(1, 3)):
                width = rng.choice([4, 8])
                at = rng.randrange(0, len(parts["plan"]) - 7, width)
                old = int.from_bytes(parts["plan"][at : at + width], "little", signed=True)
                new = rng.choice([old + rng.choice([-64, -1, 1, 64, old]), rng.choice(NUMBERS)])
                parts["plan"][at : at + width] = (new % (1 << 8 * width)).to_bytes(width, "little")
        case "deep":
            parts[rng.choice(texts)][:] = b"[" * 100000
        case "inner":
            name = rng.choice(inner)
            parts[name] = bytearray(forge(bytes(parts[name]), rng))
        case "rows":
            return _with_other_rows(data, len(parts), rng)
        case _:
            name = rng.choice(texts)
            parts[name][:] = json.dumps(mutate(json.loads(parts[name]), rng)).encode()
    return b"".join(container.frame(parts))


def _with_other_rows(data: bytes, count: int, rng: random.Random) -> bytes:
    """A file with something changed in the rows of its sections."""
    end = 64 + 64 * count
    rows, head = bytearray(data[64:end]), bytearray(data[:32])
    for _ in range(rng.randint(1, 2)):
        at, width = rng.choice([(64 * rng.randrange(count) + k, 8) for k in (0, 8, 16, 24)])
        old = int.from_bytes(rows[at : at + width], "little")
        new = rng.choice([old + rng.choice([-64, -1, 1, 64]), rng.choice(NUMBERS)])
        rows[at : at + width] = (new % (1 << 64)).to_bytes(width, "little")
    if rng.random() < 0.1:
        head[rng.randrange(12, 24)] ^= 1
    head, rows = bytes(head), bytes(rows)
    return head + hashlib.sha256(head + rows).digest() + rows + data[end:]


def test_forged_plans_never_crash():
    """Whoever makes the hashes right again still gets an error or an engine, never a crash, up to the machine code,
    which is trusted."""
    runs = [python(FORGE, seed) for seed in (1, 2)]
    for r in runs:
        assert r.returncode == 0, r.stderr[-2000:]
        assert all(int(n) > 20 for n in r.stdout.split()), r.stdout
