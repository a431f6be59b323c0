"""Arrays in and out of engines: copies, refusals, outputs of the caller, element types."""

from __future__ import annotations


import numpy as np
import pytest
from handmade import chain, compiled, engine, expected, python
from test_runtime import N, equal, pair

from pelton.engine.plan import Buffer, Port, Slice, Step
from pelton.errors import InputError
from pelton.runtime import Engine

COPY = """
typedef __INT64_TYPE__ idx; typedef union { void *p; idx d; } args;
void copy(const args *a, idx begin, idx end, void *scratch) {
    for (volatile idx i = 0; i < a[2].d; i++) ((char *)a[1].p)[i] = ((char *)a[0].p)[i];
}
"""


@pytest.fixture(scope="module")
def net() -> Engine:
    return Engine(chain(N))


@pytest.fixture
def x() -> np.ndarray:
    return np.random.default_rng(0).integers(-50, 50, N).astype(np.float32)


def test_inputs_that_are_copied(net, x):
    wide = np.zeros(2 * N, np.float32)
    wide[::2] = x
    raw = np.zeros(4 * N + 1, np.uint8)
    unaligned = raw[1:].view(np.float32)
    unaligned[:] = x
    read_only = x.copy()
    read_only.flags.writeable = False
    mapped = x.view(np.memmap)
    for given in (
        wide[::2],
        x[::-1].copy()[::-1],
        unaligned,
        x.astype(">f4"),
        read_only,
        mapped,
        np.broadcast_to(np.float32(3), (N,)),
    ):
        assert equal(net.run({"x": given}), expected(np.array(given, np.float32)))
    a = np.arange(24, dtype=np.float32).reshape(1, 4, 6).transpose(0, 2, 1)
    assert np.array_equal(pair()(a, np.asfortranarray(a)), 2 * a)


REFUSED = {
    "there is no input 'w'; the engine's inputs are 'x' f32[1000]": lambda x: {"x": x, "w": x},
    "input 'x' is missing; the engine's inputs are 'x' f32[1000]": lambda x: {},
    "run needs a mapping from input names to arrays, like {'x': array}, got numpy.ndarray": lambda x: x,
    "input 'x' needs f32[1000] (numpy float32), got float64; convert it with .astype(np.float32)": lambda x: {
        "x": x.astype(np.float64)
    },
    "got int32; convert it": lambda x: {"x": x.astype(np.int32)},
    "input 'x' needs f32[1000] as a numpy array, got list; np.asarray(value, dtype=np.float32)": lambda x: {
        "x": x.tolist()
    },
    "as a numpy array, got NoneType": lambda x: {"x": None},
    "got an array of Python objects": lambda x: {"x": x.astype(object)},
    "got a masked array": lambda x: {"x": np.ma.masked_array(x)},
    "got shape [999]: axis 0 (N) has 999 instead of 1000": lambda x: {"x": x[:-1]},
    "got 2 dimensions instead of 1: [1, 1000]": lambda x: {"x": x[None]},
    "got 0 dimensions instead of 1: []": lambda x: {"x": np.float32(1)},
    "got <U3": lambda x: {"x": np.array(["abc"] * N)},
}


@pytest.mark.parametrize("why", REFUSED)
def test_inputs_that_are_refused(net, x, why):
    with pytest.raises(InputError) as e:
        net.run(REFUSED[why](x))
    assert why.replace("<U3", "str96") in str(e.value)
    assert equal(net.run({"x": x}), expected(x))  # and no harm is done


def test_advice_for_shapes():
    a = np.ones((1, 6, 4), np.float32)
    with pytest.raises(InputError, match=r"got 2 dimensions instead of 3: \[6, 4\]; add the first axis with \[None\]"):
        pair().run({"a": a[0], "b": a})
    with pytest.raises(
        InputError,
        match=(
            r"input 'a' needs f32\[1, 6, 4\], got shape \[1, 4, 6\]: axis 1 has 4 instead of 6; are the axes in"
            r" another order"
        ),
    ):
        pair().run({"a": a.transpose(0, 2, 1), "b": a})
    with pytest.raises(InputError, match=r"axis 2 \(W\) has 5 instead of 4"):
        pair().run({"a": np.ones((1, 6, 5), np.float32), "b": a})


def test_out(net, x):
    out = {"y": np.empty(N, np.float32), "z": np.full(N + 8, 7, np.float32)[4:-4]}
    context = net.context()
    results = context.run({"x": x}, out)
    assert results["y"] is out["y"] and results["z"] is out["z"] and equal(results, expected(x))
    assert (out["z"].base[:4] == 7).all() and (out["z"].base[-4:] == 7).all()
    some = net.run({"x": x}, {"z": out["z"]})
    assert some["z"] is out["z"] and some["y"] is not out["y"] and list(some) == ["y", "z"] and equal(some, expected(x))


def test_out_that_is_refused(net, x):
    good = np.empty(N, np.float32)
    locked = good.copy()
    locked.flags.writeable = False
    both = np.empty(N + 1, np.float32)
    for out, why in (
        (good, "out needs a mapping from output names to arrays, got numpy.ndarray"),
        ({"w": good}, "there is no output 'w'; the engine's outputs are 'y' f32[1000], 'z' f32[1000]"),
        ({"y": good.tolist()}, "out['y'] needs f32[1000] as a numpy array, got list"),
        ({"y": None}, "got NoneType"),
        (
            {"y": good.astype(np.float64)},
            "out['y'] needs f32[1000] (numpy float32), got float64; results are not converted",
        ),
        ({"y": good.astype(">f4")}, "in the other byte order"),
        ({"y": good[:-1]}, "axis 0 has 999 instead of 1000"),
        ({"y": np.empty(2 * N, np.float32)[::2]}, "contiguous in C order"),
        ({"y": np.empty(4 * N + 1, np.uint8)[1:].view(np.float32)}, "aligned to its elements"),
        ({"y": locked}, "that can be written"),
        ({"y": x}, "out['y'] shares memory with input 'x'"),
        ({"y": both[1:], "z": both[:-1]}, "out['y'] shares memory with out['z']"),
        ({"y": good, "z": good}, "shares memory"),
    ):
        with pytest.raises(InputError) as e:
            net.run({"x": x}, out)
        assert why in str(e.value)


def test_threads_that_are_refused(net):
    for threads in (0, -1, 1.5, True, "2", 10**6):
        with pytest.raises(InputError, match="threads is an integer from 1 to 256"):
            net.context(threads=threads)


def test_types_of_one_size_are_told_apart():
    for dtype, others in (
        ("i8", ("u1", "?")),
        ("u8", ("i1", "?")),
        ("bool", ("i1", "u1")),
        ("i32", ("u4", "f4")),
        ("u64", ("i8", "f8", "c8")),
        ("f16", ("i2",)),
    ):
        port = Port("x", dtype, (3,))
        size = 3 * port.numpy_dtype.itemsize
        e = Engine(
            engine(
                [port],
                [Port("y", dtype, (3,))],
                [Buffer("input", 0, size), Buffer("output", 0, size)],
                [Step("copy", "copy", (Slice(0, 0), Slice(1, 0)), (size,))],
                code=compiled(COPY),
            )
        )
        assert np.array_equal(e(np.ones(3, port.numpy_dtype)), np.ones(3, port.numpy_dtype))
        for other in others:
            with pytest.raises(InputError, match="convert it"):
                e(np.ones(3, other))


def test_many_inputs():
    for n in (63, 64, 65):
        ports = [Port(f"x{i}", "f32", (4,)) for i in range(n)]
        e = Engine(
            engine(
                ports,
                [Port("y", "f32", (4,))],
                [*(Buffer("input", i, 16) for i in range(n)), Buffer("output", 0, 16)],
                [Step("add", "add", (Slice(0, 0), Slice(n - 1, 0), Slice(n, 0)), (4, 4))],
            )
        )
        inputs = {p.name: np.full(4, i, np.float32) for i, p in enumerate(ports)}
        assert e.run(inputs)["y"].tolist() == [n - 1] * 4
        with pytest.raises(InputError, match=f"input 'x{n - 1}' is missing"):
            e.run({k: inputs[k] for k in list(inputs)[:-1]})


def test_names_that_do_not_compare(net, x):
    class Odd:
        def __hash__(self):
            return hash("x")

        def __eq__(self, other):
            raise ZeroDivisionError("no name")

    for inputs in ({Odd(): x}, {Odd(): x, 3: x}):
        with pytest.raises(ZeroDivisionError, match="no name"):
            net.run(inputs)
    assert equal(net.run({"x": x}), expected(x))


def test_arrays_are_kept_while_they_are_read():
    r = python("""
        import threading, time
        import numpy as np
        from handmade import engine
        from pelton.engine.plan import Buffer, Port, Slice, Step
        from pelton.runtime import Engine
        n = 1 << 20  # large enough to be given back to the system as soon as it is free
        buffers = [Buffer("input", 0, 4 * n), Buffer("output", 0, 4 * n)]
        e = Engine(engine([Port("x", "f32", (n,))], [Port("y", "f32", (n,))], buffers,
                          [Step("wait", "slow", (Slice(0, 0), Slice(1, 0)), (2, 3000), 3, 1, 0),
                           Step("double", "scale", (Slice(0, 0), Slice(1, 0)), (2,), n, 1, 1)]))
        context = e.context(threads=1)
        inputs, made = {"x": np.arange(n, dtype=np.float32)}, []
        context.run(dict(inputs))
        start = time.perf_counter()
        context.run(dict(inputs))
        took = time.perf_counter() - start
        for _ in range(5):
            runs = threading.Thread(target=lambda: made.append(context.run(inputs)))
            runs.start()
            time.sleep(took / 3)
            inputs.clear()
            runs.join()
            inputs["x"] = np.arange(n, dtype=np.float32)
        assert made and all(np.array_equal(m["y"], 2 * inputs["x"]) for m in made)
        """)
    # a thread that came too late for a run says so, and made nothing
    assert r.returncode == 0, (r.returncode, r.stderr)


def test_empty_and_scalar_tensors():
    empty = Engine(
        engine(
            [Port("x", "f32", (0, 3))],
            [Port("y", "f32", (3, 0)), Port("s", "f32", ())],
            [Buffer("input", 0, 0), Buffer("output", 0, 0), Buffer("output", 1, 4), Buffer("constant", 0, 4)],
            [
                Step("none", "scale", (Slice(0, 0), Slice(1, 0)), (2,), 0, 1, 0),
                Step("one", "scale", (Slice(3, 0), Slice(2, 0)), (2,), 1, 1, 1),
            ],
            constants=np.float32(4).tobytes(),
        )
    )
    for context in (empty.context(1), empty.context(2)):
        for out in (None, {"y": np.empty((3, 0), np.float32), "s": np.empty((), np.float32)}):
            r = context.run({"x": np.empty((0, 3), np.float32)}, out)
            assert r["y"].shape == (3, 0) and r["s"].shape == () and r["s"] == 8
        assert len(context.profile({"x": np.empty((0, 3), np.float32)})) == 2
    nothing = Engine(engine([], [], [], [], code=b""))
    assert nothing.run({}) == {}


def test_all_types_pass_through():
    for dtype, array in (
        ("i64", np.array([1 << 60, -5])),
        ("bool", np.array([True, False, True])),
        ("f16", np.ones(3, np.float16)),
        ("u8", np.arange(3, dtype=np.uint8)),
        ("bf16", None),
        ("c64", np.array([1 + 2j], np.complex64)),
    ):
        if array is None:
            array = np.arange(5).astype(pytest.importorskip("ml_dtypes").bfloat16)
        e = Engine(
            engine(
                [Port("x", dtype, array.shape)],
                [Port("y", dtype, array.shape)],
                [Buffer("input", 0, array.nbytes), Buffer("output", 0, array.nbytes)],
                [Step("copy", "copy", (Slice(0, 0), Slice(1, 0)), (array.nbytes,))],
                code=compiled(COPY),
            )
        )
        assert np.array_equal(e(array), array) and e(array).dtype == array.dtype
        with pytest.raises(InputError, match="convert it"):
            e(np.zeros(array.shape))
