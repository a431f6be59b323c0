"""The onnx package's own model tests, through the public backend; the node tests are counted by benchmarks/conformance.py."""
import onnx.backend.test
import pytest

from pelton import onnx_backend
from pelton.options import Options


@pytest.fixture(scope="module", autouse=True)
def one_cache(tmp_path_factory):
    """Kernels compiled for one test serve the next; what the suite writes down for the real models goes where pytest cleans up."""
    directory = tmp_path_factory.mktemp("conformance")

    class Cached(onnx_backend.PeltonBackend):
        @classmethod
        def prepare(cls, model, device="CPU", **_):
            return onnx_backend.PeltonBackend.prepare(model, device, Options(level=0, cache_dir=directory / "cache"))

    suite.backend = Cached
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONNX_MODELS", str(directory / "models"))
        yield
    suite.backend = onnx_backend.PeltonBackend


suite = onnx.backend.test.BackendTest(onnx_backend.PeltonBackend, __name__)
suite.exclude("_cuda$")
suite.exclude("gradient_of")                   # training
globals().update({name: case for name, case in suite.enable_report().test_cases.items() if "Node" not in name})
