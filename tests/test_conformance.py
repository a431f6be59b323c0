"""The onnx package's own model tests, through the public backend. `PELTON_NODE_TESTS=1` adds the node tests (a report, not a gate yet)."""
import os

import onnx.backend.test
import pytest

from pelton import onnx_backend
from pelton.options import Options

KINDS = ["simple", "real", "pytorch_converted", "pytorch_operator"] + (["node"] if os.environ.get("PELTON_NODE_TESTS") else [])


@pytest.fixture(scope="session", autouse=True)
def one_cache(tmp_path_factory):
    """Kernels compiled for one test serve the next."""
    directory = tmp_path_factory.mktemp("conformance")
    before = onnx_backend.PeltonBackend.prepare.__func__

    def prepare(cls, model, device="CPU", **more):
        return before(cls, model, device, Options(level=0, cache_dir=directory), **more)

    onnx_backend.PeltonBackend.prepare = classmethod(prepare)
    yield
    onnx_backend.PeltonBackend.prepare = classmethod(before)


suite = onnx.backend.test.BackendTest(onnx_backend.PeltonBackend, __name__)
suite.exclude("gradient_of")                   # training
suite.exclude("_cuda$")
print(sorted(suite.test_cases))
globals().update({name: case for name, case in suite.enable_report().test_cases.items() if any(k in name.lower() for k in ("simple", "real", "pytorch", *KINDS))})
