"""The public interface of the native library: outputs equal Python's bit for bit, and invalid input is refused."""

import ctypes
import random

import numpy as np
import pytest
from native_interface import Refused, Session
from native_models import MODELS, engines  # noqa: F401  (the fixture)
from script_models import MODELS as SCRIPTS

import pelton
from pelton.engine import container, file
from pelton.runtime import Engine


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("name", MODELS)
def test_outputs_are_those_of_python(engines, name, threads):
    plain, draw = engines[name], np.random.default_rng(3)
    engine, session = Engine(plain), Session(file.to_bytes(plain), threads)
    bounds = {s.name: (s.minimum, min(s.maximum, 40)) for s in plain.symbols}
    context = engine.context(threads=threads)
    for _ in range(8):
        values = {n: int(draw.integers(low, high + 1)) for n, (low, high) in bounds.items()}
        inputs = {
            p.name: draw.standard_normal([values.get(d, d) for d in p.shape]).astype(p.numpy_dtype)
            for p in engine.inputs
        }
        want = context.run(inputs)
        for got, expected in zip(session.run(*inputs.values()), want.values(), strict=True):
            assert got.dtype == expected.dtype and got.tobytes() == expected.tobytes()


def test_what_is_altered_is_refused(engines):
    data = file.to_bytes(engines["cnn"])
    sound = Session(data)
    assert sound.lib.pelton_verify(sound.engine) == 0
    draw = random.Random(4)
    size = len(data)
    refused = 0
    for _ in range(300):
        altered = bytearray(data)
        at = draw.randrange(size)
        altered[at] ^= 1 << draw.randrange(8)
        try:
            Session(bytes(altered))
        except Refused as e:
            refused += 1
            assert "the engine cannot be run: it is" in str(e) or "it needs" in str(e)
    assert refused > 20
    for cut in (0, 3, 10, 63, 64, 200, size // 2, size - 1):
        with pytest.raises(Refused, match="truncated|not a Pelton engine|altered"):
            Session(data[:cut])


@pytest.mark.parametrize(
    "shape, why",
    [
        ((10, 3, 14, 14), "axis 0 of input .* may have 1 to 9, got 10"),
        ((0, 3, 14, 14), "axis 0 of input .* may have 1 to 9, got 0"),
        ((-1, 3, 14, 14), "got -1"),
        ((2, 3, 14, 15), "axis 3 of input .* is 14, got 15"),
    ],
)
def test_shapes_that_the_engine_does_not_take_are_refused(engines, shape, why):
    session = Session(file.to_bytes(engines["residuals"]))
    with pytest.raises(Refused, match=why):
        session.shape(shape)


def test_runs_need_shapes_and_arrays_that_do_not_overlap(engines):
    session = Session(file.to_bytes(engines["cnn"]))
    assert session.lib.pelton_run(session.context, None, None)
    assert b"call pelton_set_shapes" in session.lib.pelton_error()
    session.shape((2, 3, 12, 12))
    assert session.lib.pelton_run(session.context, None, None) == 0  # in memory of the context
    data = session.lib.pelton_input_data(session.context, 0)
    both = (ctypes.c_void_p * 1)(data)
    assert session.lib.pelton_run(session.context, both, both)
    assert b"overlaps" in session.lib.pelton_error()


def test_files_without_a_plan_are_refused():
    with pytest.raises(Refused, match="no plan, code or constants"):
        Session(b"".join(container.frame({"meta": b"{}"})))


@pytest.mark.parametrize("case", ["detector"])
def test_scripts_of_engines_and_suppressions_run(kernel_cache, case):
    model, feeds = SCRIPTS[case]()
    script = pelton.build(model, level=0, cache_dir=kernel_cache)
    session = Session(script.tobytes())
    for feed in [*feeds, *feeds]:
        wanted = script.run(feed)
        got = session.results(*(feed[p.name] for p in script.inputs))
        for a, b in zip(got, wanted.values(), strict=True):
            assert a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()
    shape = next(iter(feeds[0].values())).shape
    taken = (ctypes.c_void_p * 4)(*[session.data.ctypes.data] * 4)
    assert session.lib.pelton_run(session.context, None, taken), shape
    assert b"the data decides the size of output" in session.lib.pelton_error()


def test_scripts_that_need_python_are_refused(kernel_cache):
    script = pelton.build(SCRIPTS["scanned_rnn"]()[0], level=0, cache_dir=kernel_cache)
    with pytest.raises(Refused, match="it is a script over engines, which Python runs"):
        Session(script.tobytes())
