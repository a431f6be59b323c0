"""Script files: their content, parts shared by two engines, and refusal of altered and forged ones."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from onnx import TensorProto as T
from script_harness import builder, by_name, same
from script_models import MODELS, N, graph, model
from test_engine_file import DAMAGED_METADATA

import pelton
from pelton.engine import container, file
from pelton.engine.script import (
    DEEPEST,
    Block,
    Constant,
    Feed,
    HostAction,
    IfAction,
    validate_script,
)
from pelton.errors import EngineError
from pelton.runtime.script_engine import ScriptEngine


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    return builder(tmp_path_factory.mktemp("script"))


@pytest.fixture(scope="module")
def engines(build):
    return by_name(build)


@pytest.mark.parametrize("name", ["detector", "greedy_decoder", "loop_in_a_branch", "scanned_rnn"])
def test_round_trip(name, engines, tmp_path):
    m, every = MODELS[name]()
    engine = engines(name)
    engine.save(tmp_path / "e.pelton")
    again = pelton.load(tmp_path / "e.pelton", verify=True)
    assert (
        isinstance(again, ScriptEngine) and again.tobytes() == engine.tobytes() == (tmp_path / "e.pelton").read_bytes()
    )
    same(again.run(every[0]), m, every[0])
    assert file.read(tmp_path / "e.pelton").main == engine.script.main


def test_altered_files_are_refused(engines):
    data = engines("scanned_rnn").tobytes()
    rows = container.open_container(*container.map_file(data)).rows
    # the rows, and the first bytes of an engine in it
    places = [70, rows["script"].offset + 5, rows["meta"].offset + 5, rows["engine 0"].offset + 70]
    for place in places:
        altered = bytearray(data)
        altered[place] ^= 1
        with pytest.raises(EngineError, match="altered"):
            file.read(bytes(altered))
    for cut in (10, 100, len(data) // 2, len(data) - 1):
        with pytest.raises(EngineError, match="truncated|altered"):
            file.read(data[:cut])


def test_forged_scripts_are_refused(engines):
    script = engines("detector").script
    run, host, last = script.main.steps

    def forged(*steps, **more):
        return dataclasses.replace(script, main=dataclasses.replace(script.main, steps=steps), **more)

    deep = Block((), (), ())
    for _ in range(DEEPEST + 2):
        deep = Block((), (IfAction("x", deep, Block((), (), ()), ()),), ())
    wrong = {
        "runs engine 7": forged(dataclasses.replace(run, engine=7), host, last),
        "before it is written": forged(host, run, last),
        "does not fit its engine or block": forged(dataclasses.replace(run, feeds=()), host, last),
        "no array and no size": forged(dataclasses.replace(run, feeds=(Feed("x", "memory"),)), host, last),
        "blocks within blocks": forged(run, host, last, IfAction("x", deep, Block((), (), ()), ())),
        "ends at byte": forged(
            run, host, last, arrays={**script.arrays, "=z": Constant("f32", (1 << 20,), 1 << 30, 1 << 22)}
        ),
        "bytes for": forged(run, host, last, arrays={**script.arrays, "=z": Constant("f32", (3,), 0, 8)}),
        "of type": forged(run, host, last, arrays={**script.arrays, "=z": Constant("f7", (3,), 0, 8)}),
        "iterations": forged(run, host, last, iterations=-1),
        "its ports": dataclasses.replace(script, main=dataclasses.replace(script.main, inputs=())),
        "which it never writes": dataclasses.replace(
            script, main=dataclasses.replace(script.main, outputs=("nothing", "kept"))
        ),
    }
    for text, one in wrong.items():
        with pytest.raises(EngineError, match=text):
            validate_script(one)
    with pytest.raises(EngineError, match="cannot be read"):
        ScriptEngine(forged(run, dataclasses.replace(host, call="os.system"), last))
    with pytest.raises(EngineError, match="cannot be read"):
        ScriptEngine(forged(run, dataclasses.replace(host, text='{"center": 3}'), last))
    assert isinstance(host, HostAction)


@pytest.mark.parametrize("damaged", DAMAGED_METADATA, ids=json.dumps)
def test_damaged_metadata_is_refused(engines, damaged):
    script = engines("detector").script
    with pytest.raises(EngineError, match="is damaged: .*; build it again"):
        validate_script(dataclasses.replace(script, meta={**script.meta, **damaged}))


def test_what_two_engines_read_is_kept_once(build, tmp_path):
    """Both branches multiply by the same weights."""
    w = np.random.default_rng(0).standard_normal((128, 96)).astype(np.float32)
    sides = [
        graph([N("MatMul", ["x", "w"], ["a" + name]), N(op, ["a" + name], [name])], {}, {name: (T.FLOAT, ["n", 96])})
        for name, op in (("t", "Relu"), ("e", "Tanh"))
    ]
    m = model(
        [
            N("ReduceSum", ["x"], ["sum"], keepdims=0),
            N("Greater", ["sum", "zero"], ["c"]),
            N("If", ["c"], ["y"], then_branch=sides[0], else_branch=sides[1]),
        ],
        {"x": (T.FLOAT, ["n", 128])},
        {"y": (T.FLOAT, ["n", 96])},
        {"w": w, "zero": np.float32(0)},
    )
    engine = build(m)
    assert (
        len(engine.engines) >= 2
        and sum(any(b.kind == "constant" and b.size >= w.nbytes for b in e.plain.buffers) for e in engine.engines) == 2
    )
    assert w.nbytes <= len(engine.plain.constants) < 1.5 * w.nbytes
    engine.save(tmp_path / "both.pelton")
    assert (tmp_path / "both.pelton").stat().st_size < 2.5 * w.nbytes
    for again in (engine, pelton.load(tmp_path / "both.pelton", verify=True), pelton.load(engine.tobytes())):
        assert len({e.constants.ctypes.data for e in again.engines}) == 1
        for x in (np.ones((3, 128), np.float32), -np.ones((2, 128), np.float32)):
            same(again.run({"x": x}), m, {"x": x})


def test_metadata_is_that_of_all_engines(engines):
    engine = engines("counted_best")
    assert engine.meta["fusion_refusals"]
    for name in ("copies", "fusion_refusals", "half"):
        assert engine.meta[name] == [entry for part in engine.parts for entry in part.meta[name]]
