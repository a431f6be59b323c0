"""Arrays of the GPU and of other libraries as inputs and outputs: read in place, copied or refused."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from test_cuda_runtime import x  # noqa: F401  (a fixture)
from test_cuda_runtime import F32, N, equal, made
from handmade import expected

from pelton.backends.cuda.null import NullDevice, seen
from pelton.errors import InputError
from pelton.backends import dlpack
from pelton.backends.cuda import ready as cuda_ready
from pelton.backends.cuda.arrays import DeviceArray


def test_nothing_waits_in_asynchronous_runs_on_arrays_of_the_gpu(x):
    net = made()
    device, context = net.device, net.context()
    with device:
        place = device.allocate(x.nbytes, "a test")
    seen(place.address, F32, N)[:] = x
    device.happenings.clear()
    results = context.run_async({"x": Interface(place.address, (N,))}, stream=77)
    assert (
        not device.happened("finish")
        and not device.happened("synchronize")
        and not device.happened("upload")
        and not device.happened("download")
    )
    assert {h.stream for h in device.happenings if h.what in ("replay", "wait", "record")} == {77}
    assert equal({k: v.numpy() for k, v in results.items()}, expected(x)) and all(
        isinstance(v, DeviceArray) for v in results.values()
    )
    assert np.array_equal(np.asarray(results["y"]), expected(x)["y"])
    context.synchronize()
    assert device.happened("finish")


class Interface:
    """An array of the GPU as CuPy or Numba tell of theirs."""

    def __init__(self, address: int, shape=(N,), typestr="<f4", strides=None, fixed=False, stream=None):
        self.__cuda_array_interface__ = {
            "data": (address, fixed),
            "shape": shape,
            "typestr": typestr,
            "strides": strides,
            "version": 3,
            "stream": stream,
        }


def room(device: NullDevice, nbytes: int = 4 * N + 64):
    with device:
        return device.allocate(nbytes, "a test")


def test_arrays_of_the_gpu_are_read_and_written_where_they_lie(x):
    net = made()
    device, context = net.device, net.context()
    given, taken = room(device), room(device)
    for factor in (1, 2):
        seen(given.address, F32, N)[:] = x * factor
        results = context.run({"x": Interface(given.address)}, {"y": (out := Interface(taken.address))})
        assert results["y"] is out and np.array_equal(seen(taken.address, F32, N), expected(x * factor)["y"])
        assert np.array_equal(results["z"], expected(x * factor)["z"])
    # the steps that read x and write y, once
    assert len(device.happened("change")) == 2 and not device.happened("copy")
    assert equal(context.run({"x": x}), expected(x)) and len(device.happened("change")) == 4


def test_what_kernels_cannot_load_from_is_copied_on_the_gpu(x):
    net = made()
    given, taken = room(net.device), room(net.device)
    seen(given.address + 4, F32, N)[:] = x
    net.run({"x": Interface(given.address + 4)}, {"y": Interface(taken.address + 8)})
    assert np.array_equal(seen(taken.address + 8, F32, N), expected(x)["y"]) and len(net.device.happened("copy")) == 2


def test_other_streams_are_waited_for_on_the_gpu():
    net = made()
    given = room(net.device)
    net.device.happenings.clear()
    net.context().run_async({"x": Interface(given.address, stream=55)})
    record = next(h for h in net.device.happenings if h.what == "record" and h.stream == 55)
    assert any(
        h.what == "wait" and h.facts["event"] == record.facts["event"] and h.stream != 55 for h in net.device.happenings
    )


def test_results_go_through_dlpack_and_come_back(x):
    net = made()
    first, second = net.context(), net.context()
    results = first.run_async({"x": x})
    again = second.run({"x": results["z"]})  # by __dlpack__, of one engine to the other
    assert equal(again, expected(expected(x)["z"])) and not net.device.happened("copy")
    assert (
        results["z"].__dlpack_device__() == (2, 0) and repr(results["z"]) == "<pelton.DeviceArray f32[1000] on GPU 0>"
    )
    assert results["z"].__cuda_array_interface__["data"] == (results["z"].address, False)
    capsule = results["z"].__dlpack__(stream=-1)
    held = len(dlpack._exported)
    del capsule
    assert len(dlpack._exported) == held - 1


def test_capsules_are_taken_back_by_whoever_consumed_them(x):
    results = made().context().run_async({"x": x})
    capsule = results["y"].__dlpack__(stream=-1)
    address = dlpack._get_pointer(id(capsule), b"dltensor")
    managed = dlpack._Managed.from_address(address)
    tensor = managed.tensor
    assert (tensor.data, tensor.device_type, tensor.ndim, tensor.shape[0], tensor.strides[0]) == (
        results["y"].address,
        2,
        1,
        N,
        1,
    )
    assert (tensor.code, tensor.bits, tensor.lanes, tensor.byte_offset) == (2, 32, 1, 0)
    used = ctypes.c_char_p(b"used_dltensor")
    assert ctypes.pythonapi.PyCapsule_SetName(ctypes.py_object(capsule), used) == 0
    del capsule
    assert address in dlpack._exported  # it is the consumer's now
    managed.deleter(address)
    assert address not in dlpack._exported


def test_large_arrays_go_in_pieces(monkeypatch, x):
    monkeypatch.setattr(cuda_ready, "PIECE", 1024)
    net = made()
    assert equal(net.run({"x": x}), expected(x))
    assert [h.facts["nbytes"] for h in net.device.happened("upload")[1:]] == [1024, 1024, 1024, 928]
    last = net.device.happenings[next(i for i, h in enumerate(net.device.happenings) if h.what == "download") :]
    # two outputs; each piece is waited for by itself
    assert [h.what for h in last] == ["download", "record"] * 8 + ["finish"] * 8
    assert [h.facts["event"] for h in last if h.what == "record"] == [
        h.facts["event"] for h in last if h.what == "finish"
    ]


class OnOther:
    """An array that says by DLPack that it lies elsewhere."""

    def __init__(self, kind: int, ordinal: int, array=None):
        self.where, self.array = (kind, ordinal), array
        self.shape = () if array is None else array.shape

    def __dlpack_device__(self):
        return self.where

    def __dlpack__(self, **how):
        if self.array is None:
            raise BufferError("it needs gradients")
        return self.array.__dlpack__(**how)


@pytest.mark.parametrize(
    "given, text",
    [
        (lambda at: Interface(at, strides=(8,)), r"x' needs f32\[1000\] contiguous in C order, got strides \[2.0\]"),
        (lambda at: Interface(at, typestr="<f8"), r"x' needs f32\[1000\], got f64 on the GPU; convert it there"),
        (lambda at: Interface(at, shape=(10, 100)), "got 2 dimensions instead of 1|shape"),
        (lambda at: Interface(at, shape=(999,)), "axis 0 .*999"),
        (lambda at: Interface(1 << 20), "is not in GPU memory"),
        (lambda at: Interface(at, typestr="<V2"), "cannot be read by its __cuda_array_interface__"),
        (lambda at: Interface(at, stream=0), "cannot be read by its __cuda_array_interface__"),
        (lambda at: OnOther(10, 0), "DLPack type 10"),
        (lambda at: OnOther(2, 0), "cannot be read by DLPack: it needs gradients"),
        (lambda at: OnOther(1, 0), "cannot be read by DLPack: it needs gradients"),
        (lambda at: [1.0] * N, "as a numpy array, got list"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(given, text):
    net = made()
    with pytest.raises(InputError, match=text):
        net.run({"x": given(room(net.device).address)})


def test_arrays_of_another_gpu_are_refused(x):
    results = made(ordinal=1).context().run_async({"x": x})
    with pytest.raises(
        InputError,
        match=(
            r"on GPU 0 \(no GPU\), which this engine runs on, got an array on GPU 1; copy it there, or load .*"
            r" device=1"
        ),
    ):
        made().run({"x": results["z"]})


def test_places_that_cannot_be_written_are_refused(x):
    net = made()
    memory = room(net.device)
    context = net.context()
    for out, text in (
        (Interface(memory.address, fixed=True), "needs a writable"),
        (Interface(memory.address, shape=(5,)), "axis 0"),
        (np.empty(N), "results are not converted"),
        (OnOther(1, 0, np.zeros(N)), "results are not converted"),
    ):
        with pytest.raises(InputError, match=text):
            context.run({"x": x}, {"y": out})
    with pytest.raises(InputError, match="shares memory with"):
        context.run({"x": Interface(memory.address)}, {"y": Interface(memory.address + 16)})
    for out in (np.empty(N, F32), OnOther(1, 0, np.empty(N, F32))):
        with pytest.raises(InputError, match="needs arrays in GPU memory"):
            context.run_async({"x": x}, {"y": out})
    with pytest.raises(InputError, match="there is no output 'q'"):
        context.run({"x": x}, {"q": x})


def test_arrays_of_other_libraries_in_the_memory_of_the_cpu(x):
    assert equal(made().run({"x": OnOther(1, 0, x)}), expected(x))
