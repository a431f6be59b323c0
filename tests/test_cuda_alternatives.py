"""`pelton tune` on a fake GPU: each step uses the fastest kernel that its engine carries."""

from __future__ import annotations

import dataclasses
import json
import logging

import numpy as np
import pytest
from test_cuda_tuning import F32, TOOK, carrying, device, scaling, spare
from handmade import chain, expected

import pelton
from pelton.backends.cuda.null import NullDevice
from pelton.errors import Cancelled, EngineError
from pelton.backends.cuda import ready as cuda_ready
from test_cuda_runtime import KERNELS, N


def test_the_fastest_kernel_goes_in_place():
    engine, null = pelton.Engine(carrying()), scaling(TOOK)
    before = engine.tobytes()
    tuned = pelton.tune(engine, null)
    for step, old in zip(tuned.steps, engine.steps):
        if old.symbol == "scale":
            assert step.symbol == "scale_c" and [s.symbol for s in step.alternatives] == ["scale", "scale_b", "scale_d"]
            assert (
                step.info["times_ns"] == {"scale": 3000, "scale_b": 2000, "scale_c": 1000, "scale_d": 2990}
                and step.info["tactic"] == "scale_c"
            )
        else:
            assert step == old
    assert engine.tobytes() == before and tuned.meta["gpu"] == "no GPU" and tuned.meta["multiprocessors"] == 132
    x = np.arange(N, dtype=F32)
    wanted = expected(x)
    got = tuned.start(scaling(TOOK)).run({"x": x})
    assert all(np.array_equal(got[k], wanted[k]) for k in wanted)
    back = pelton.tune(tuned, scaling({**TOOK, "scale_b": 1.0}))  # again, on another GPU
    assert {s.symbol for s in back.steps} == {"add", "scale_b"}


def test_two_hundredths_are_no_reason():
    tuned = pelton.tune(pelton.Engine(carrying()), scaling({**TOOK, "scale_b": 2990.0, "scale_c": 2950.0}))
    assert {s.symbol for s in tuned.steps} == {"add", "scale"}


def test_kernels_of_an_engine_that_do_not_load_are_passed_over(caplog):
    null, load = scaling({**TOOK, "scale_c": 1.0}), NullDevice.load

    def refuse(cubin, parameters):
        if cubin.symbol == "scale_c":
            raise EngineError("kernel 'scale_c' needs more shared memory than there is")
        return load(null, cubin, parameters)

    null.load = refuse
    with caplog.at_level(logging.WARNING, "pelton.build"):
        tuned = pelton.tune(pelton.Engine(carrying()), null)
    assert {s.symbol for s in tuned.steps} == {"add", "scale_b"} and "scale_c of step" in caplog.text


def test_constants_are_read_where_they_are_cold():
    plain = carrying()
    adds = [
        (
            dataclasses.replace(s, alternatives=(spare(s, "scale_b"),))
            if s.symbol == "add"
            else dataclasses.replace(s, alternatives=())
        )
        for s in plain.steps
    ]
    null = device()
    null.l2 = 1 << 13  # twice the constant
    pelton.tune(pelton.Engine(dataclasses.replace(plain, steps=tuple(adds))), null)
    read = {h.facts["words"][1] for h in null.happened("launch") if h.facts["symbol"] == "add"}
    # where the weights are, and copies of four times the cache
    assert len(read) == 1 + 4 * null.l2 // 4096
    clocked = {h.stream for h in null.happened("replay")}
    begun = next(i for i, h in enumerate(null.happenings) if h.what == "copy" and h.stream in clocked)
    # by the context; the clock has a stream of its own
    before = [h for h in null.happenings[:begun] if h.what == "launch"][-1]
    after = null.happenings[null.happenings.index(before) : begun]
    ended = {h.facts["event"] for h in after if h.what == "record" and h.stream == before.stream}
    assert before.stream not in clocked and any(h.what == "finish" and h.facts["event"] in ended for h in after)


def test_without_time_nothing_changes_and_cancelled_is_cancelled():
    engine = pelton.Engine(carrying())
    tuned = pelton.tune(engine, scaling(TOOK), budget=0.0)
    assert tuned.steps == engine.steps
    with pytest.raises(Cancelled):
        pelton.tune(engine, scaling(TOOK), progress=lambda stage, done, total: False)


def test_tune_from_the_command_line(tmp_path, monkeypatch, capsys):
    from pelton import cli

    path, out = tmp_path / "e.pelton", tmp_path / "tuned.pelton"
    pelton.Engine(carrying()).save(path)
    before = path.read_bytes()

    def no_gpu(ordinal: int = 0):
        raise EngineError("there is no NVIDIA driver on this machine; install one")

    monkeypatch.setattr("pelton.backends.cuda.backend.gpu", no_gpu)
    assert cli.main(["tune", str(path)]) == cli.REFUSED and path.read_bytes() == before
    assert capsys.readouterr().err.startswith("error: there is no NVIDIA driver")
    monkeypatch.setattr("pelton.backends.cuda.backend.gpu", lambda ordinal: scaling(TOOK))
    assert cli.main(["tune", str(path), "-o", str(out)]) == 0 and path.read_bytes() == before
    printed = capsys.readouterr().out
    assert (
        "2 steps timed on no GPU, 2 changed; all of them together 6.0 µs → 2.0 µs" in printed
        and "3.0 µs → 1.0 µs, scale_c" in printed
    )
    assert cli.main(["tune", str(path), "-q"]) == 0 and path.read_bytes() == out.read_bytes() != before
    assert {s.symbol for s in pelton.load(path, device=None).steps} == {"add", "scale_c"}
    pelton.Engine(chain(N)).save(path)
    assert cli.main(["tune", str(path)]) == cli.REFUSED and "were timed while it was built" in capsys.readouterr().err


def test_timed_from_the_command_line(tmp_path, monkeypatch, capsys):
    from pelton import cli

    path, null = tmp_path / "e.pelton", device(lambda launch: 5000.0, kernels=KERNELS)
    pelton.Engine(carrying()).save(path)
    monkeypatch.setattr(cuda_ready, "IDLE", 1 << 10)
    monkeypatch.setattr("pelton.backends.cuda.backend.gpu", lambda ordinal: null)
    assert cli.main(["bench", str(path), "--seconds", "0", "--warmup", "0", "--layers"]) == 0
    printed = capsys.readouterr().out
    assert (
        "z f32[1000], no GPU" in printed
        and "in kernels 15.0 µs" in printed
        and "a run, as one graph, with its copies: " in printed
        and "peak" not in printed
    )
    assert (
        cli.main(["bench", str(path), "--seconds", "0", "--json"]) == 0
        and json.loads(capsys.readouterr().out)["machine"] == "no GPU"
    )
    for wrong in (["--plot", str(tmp_path / "x.svg")], ["--vs", "onnxruntime"]):
        assert (
            cli.main(["bench", str(path), *wrong]) == cli.REFUSED
            and "is for engines of CPUs" in capsys.readouterr().err
        )
