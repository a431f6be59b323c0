"""Results of a CUDA context fed back to it, and streams as other libraries number them."""

from __future__ import annotations

import numpy as np
import pytest
from handmade import expected
from test_cuda_interop import Interface
from test_cuda_runtime import F32, branches, dynamic, equal, made

from pelton.errors import InputError
from pelton.backends.cuda import arrays as device_arrays


@pytest.fixture
def x() -> np.ndarray:
    return np.random.default_rng(0).integers(-50, 50, 1000).astype(F32)


def test_the_default_stream_has_a_number_that_libraries_take(x):
    class Strict:
        """As torch's arrays: they refuse the stream 0."""

        def __init__(self, array):
            self.array, self.streams = array, []

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

        def __dlpack__(self, *, stream):
            assert stream != 0, "unsupported stream on CUDA: 0"
            self.streams.append(stream)
            return self.array.__dlpack__(stream=stream)

    net = made()
    given = Strict(net.context().run_async({"x": x})["z"])
    results = net.context().run_async({"x": given}, stream=0)
    assert given.streams == [1] and results["y"].__cuda_array_interface__["stream"] == 1
    assert equal({k: v.numpy() for k, v in results.items()}, expected(expected(x)["z"]))
    with pytest.raises(InputError, match="input 'x' cannot be read by DLPack: unsupported stream"):
        device_arrays.import_array(given, "input 'x'", 0)


def test_results_may_be_the_next_inputs_of_their_context(x):
    net = made(branches())
    context = net.context()
    y = context.run_async({"x": x})["y"]
    first = y.numpy()
    again = context.run_async({"x": y})["y"]
    assert (
        again.address == y.address
        and np.array_equal(first, net.run({"x": x})["y"])
        and np.array_equal(again.numpy(), net.run({"x": first})["y"])
    )
    # a step that writes y may come before one that still reads it
    (copy,) = net.device.happened("copy")
    assert copy.facts["source"] == y.address
    with pytest.raises(
        InputError, match=r"out\['y'\] needs the caller's own memory, got another result of this context"
    ):
        context.run({"x": x}, {"y": Interface(y.address - 4 * 256)})


def test_results_may_be_inputs_that_are_laid_out_otherwise():
    net = made(dynamic())
    context = net.context()
    context.run({"x": np.zeros(200, F32)})
    long = np.arange(100, dtype=F32)
    y = context.run_async({"x": long})["y"]
    part = context.run_async({"x": Interface(y.address, (7,))})["y"]
    assert np.array_equal(part.numpy(), 2 * (2 * long + np.arange(100, dtype=F32))[:7] + np.arange(7, dtype=F32))
    (copy,) = net.device.happened("copy")
    assert not context.workspace.shared.is_own(copy.facts["to"], 28)
