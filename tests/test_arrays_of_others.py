"""Arrays of other libraries in CPU memory: read and written in place, by the same code on CPU and GPU engines."""

import gc
import weakref

import ml_dtypes
import numpy as np
import pytest
from handmade import chain, expected
from models import model
from onnx import TensorProto, helper
from test_cuda_runtime import made
from test_runtime import equal, pair

import pelton
from pelton.errors import InputError
from pelton.backends import dlpack
from pelton.runtime import Engine
from pelton.backends.arrays import borrow, to_numpy

N = 1000


class Tensor:
    """As torch's on the CPU: knows its shape, DLPack without versions, and nothing of numpy. `strict`: as a library
    made before there were versions."""

    def __init__(self, array, strict=False, kind=dlpack.CPU):
        self.array, self.strict, self.kind, self.asked = array, strict, kind, 0

    @property
    def shape(self):
        return self.array.shape

    def __dlpack_device__(self):
        return self.kind, 0

    def __dlpack__(self, **asked):
        if asked and self.strict:
            raise TypeError(f"__dlpack__() got an unexpected keyword argument {next(iter(asked))!r}")
        self.asked += 1
        return self.array.__dlpack__(**asked)


class Converts:
    """As arrays of pandas: gives numpy's when asked."""

    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        if isinstance(self.array, Exception):
            raise self.array
        return self.array


@pytest.fixture
def x() -> np.ndarray:
    return np.random.default_rng(0).integers(-50, 50, N).astype(np.float32)


@pytest.fixture(params=["CPU", "GPU"])
def net(request) -> Engine:
    """y = 3x and so on, for the CPU, and the same for a GPU that is not there."""
    return Engine(chain(N)) if request.param == "CPU" else made()


def test_inputs_of_other_libraries(net, x):
    wide = np.zeros(2 * N, np.float32)
    wide[::2] = x
    fixed = x.copy()
    fixed.flags.writeable = False
    for given in (
        Tensor(x),
        Tensor(x, strict=True),
        Tensor(wide[::2]),
        Tensor(x[::-1].copy()[::-1]),
        Tensor(fixed),
        Tensor(x, kind=dlpack.CUDA_HOST),
        Converts(x),
    ):
        assert equal(net.run({"x": given}), expected(x)) and equal(net.context().run({"x": given}), expected(x))
        y, z = net(given)
        assert np.array_equal(y, expected(x)["y"]) and np.array_equal(net(x=given)[1], z)


def test_outputs_of_other_libraries(net, x):
    y, z = np.zeros(N, np.float32), np.zeros(N, np.float32)
    out = {"y": Tensor(y), "z": z}
    results = net.run({"x": Tensor(x)}, out)
    assert results["y"] is out["y"] and results["z"] is z and equal({"y": y, "z": z}, expected(x))
    for wrong, why in (
        (Tensor(y[:-1]), "axis 0 has 999 instead of 1000"),
        (Tensor(y.astype(np.float64)), "got float64; results are not converted"),
        (Converts(y), "as a numpy array, got .*Converts"),
        (y.tolist(), "got list"),
    ):
        with pytest.raises(InputError, match=why):
            net.run({"x": x}, {"y": wrong})
    fixed = np.zeros(N, np.float32)
    fixed.flags.writeable = False
    with pytest.raises(InputError, match="that can be written"):
        net.run({"x": x}, {"y": Tensor(fixed)})
    if net.plain.target.get("arch") != "cuda":  # a GPU has copied its inputs by then
        with pytest.raises(InputError, match="shares memory with"):
            net.run({"x": Tensor(y)}, {"y": Tensor(y)})


def test_no_copy_is_made(x):
    found = to_numpy(Tensor(x), "input 'x'")
    assert np.shares_memory(found, x) and found.flags.c_contiguous and found.dtype == x.dtype
    out = borrow(Tensor(x), "out")
    out[0] = 1234
    assert x[0] == 1234
    owner = Tensor(np.arange(8.0))
    kept, gone = borrow(owner, "x")[2:], weakref.ref(owner)
    del owner
    gc.collect()
    assert gone() is not None and kept.tolist() == [2, 3, 4, 5, 6, 7]
    del kept
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    "array",
    [np.arange(6).astype(t).reshape(2, 3) for t in ("f8", "f2", "i8", "u1", "i4", "c8", "?")]
    + [np.full((), 3, np.float32), np.zeros((0, 4), np.float32)],
    ids=lambda a: f"{a.dtype}{list(a.shape)}",
)
def test_every_type_and_shape(array):
    found = to_numpy(Tensor(array), "x")
    assert found.dtype == array.dtype and found.shape == array.shape and np.array_equal(found, array)


def test_types_that_numpy_has_not(monkeypatch):
    """bf16, as torch gives it: two bytes an element, which DLPack has a kind for."""
    array = np.arange(6, dtype=np.float32).astype(ml_dtypes.bfloat16)
    lent = dlpack.import_array(Tensor(array.view(np.uint16)), "x")
    monkeypatch.setattr(
        dlpack,
        "import_array",
        lambda *_: dlpack.BorrowedArray(lent.address, "bf16", lent.shape, lent.strides, True, lent.keeper),
    )
    found = borrow(Tensor(array.view(np.uint16)), "x")
    assert found.dtype == array.dtype and np.array_equal(found, array) and np.shares_memory(found, array)


def test_what_is_refused_says_whose_word_it_is(x):
    net = Engine(chain(N))
    for given, why in (
        (
            Tensor(x, kind=dlpack.CUDA),
            "input 'x' is on a device of DLPack type 2; copy it to CPU memory",
        ),
        (
            Converts(TypeError("use Tensor.cpu() first")),
            "input 'x' cannot become an array in the memory of the CPU: use Tensor.cpu",
        ),
        (Tensor(x.astype(np.float64)), "got float64"),
        (Tensor(x[None]), "got 2 dimensions"),
        (Converts(x.astype(object)), "of Python objects"),
    ):
        with pytest.raises(InputError, match=why):
            net.run({"x": given})

    class Refuses(Tensor):
        def __dlpack__(self, **_):
            raise BufferError("this tensor requires grad")

    with pytest.raises(InputError, match="input 'x' cannot be read by DLPack: this tensor requires grad"):
        net.run({"x": Refuses(x)})

    class Nowhere(Tensor):
        def __dlpack_device__(self):
            raise ValueError("unknown device type meta")

    with pytest.raises(InputError, match="input 'x' cannot be read by DLPack: unknown device type meta"):
        net.run({"x": Nowhere(x)})


def test_calls_by_name():
    a, b = np.random.default_rng(0).standard_normal((2, 1, 6, 4)).astype(np.float32)
    net = pair()
    want = net(a, b)
    for given in (net(a=a, b=b), net(b=b, a=a), net(a, b=b), net.context()(b=b, a=Tensor(a))):
        assert np.array_equal(given, want)
    for arrays, named, why in (
        ((a,), {"a": a}, "input 'a' is passed twice, in order and by name"),
        ((a,), {}, r"expected 2 arrays \(a: .*\), got 1"),
        ((), {"a": a}, "input 'b' is missing"),
        ((a,), {"bb": b}, r"no input 'bb' \(did you mean 'b'\?\)"),
        ((a, b, a), {}, "expected 2 arrays"),
        ((a, b), {"c": a}, "no input 'c'"),
    ):
        with pytest.raises(InputError, match=why):
            net(*arrays, **named)


def test_open_sizes_steps_by_step_and_scripts(folder, cache):
    """Where shapes are solved for, where runs are watched, and where the data decides."""
    sizes = ("n", 4)
    made = pelton.build(
        model([helper.make_node("Add", ["x", "x"], ["y"])], {"x": sizes}, {"y": sizes}, {}), level=0, cache_dir=cache[1]
    )
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    out = np.zeros((3, 4), np.float32)
    assert (
        np.array_equal(made(Tensor(x)), 2 * x)
        and made.run({"x": Converts(x)}, {"y": Tensor(out)})
        and np.array_equal(out, 2 * x)
    )
    context = made.context()
    assert np.array_equal(context.watch({"x": Tensor(x)}, lambda *_: None)["y"], 2 * x) and len(
        context.profile({"x": Tensor(x)})
    ) == len(made.steps)
    nodes = [
        helper.make_node("NonZero", ["x"], ["at"]),
        helper.make_node("Transpose", ["at"], ["t"], perm=[1, 0]),
        helper.make_node("Cast", ["t"], ["y"], to=TensorProto.FLOAT),
    ]
    script = pelton.build(model(nodes, {"x": sizes}, {"y": ("k", 2)}, {}), level=0, cache_dir=cache[1])
    want = np.argwhere(x).astype(np.float32)
    out = np.zeros(want.shape, np.float32)
    given = {"y": Tensor(out)}
    assert type(script).__name__ == "ScriptEngine" and np.array_equal(script(x=Tensor(x)), want)
    assert script.run({"x": Tensor(x)}, given)["y"] is given["y"] and np.array_equal(out, want)
