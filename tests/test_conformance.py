"""The onnx package's own tests of models and of nodes, all of them, through the public backend."""

import importlib.util
import json
import os

import numpy as np
import onnx.backend.test
import pytest
from onnx.backend.test.case.node import collect_testcases

from pelton import onnx_backend
from pelton.options import Options

# "the generator operator is non-deterministic", say these tests themselves: judged below
RANDOM = "test_bernoulli"
# gives a sequence of scalars, which the package's runner cannot compare: judged below
SCALARS = "test_loop16_seq_none"
NATIVE = 0.93  # the least share of the node tests that runs without a host step

hosts: dict[str, bool] = {}  # node tests that ran → whether a step of theirs ran on the host


class Noted(onnx_backend.PeltonRep):
    """Remembers how the models of node tests ran."""

    def __init__(self, model, options):
        super().__init__(model, options)
        self.test = model.graph.name if model.producer_name == "backend-test" else ""

    def run(self, inputs, **how):
        found = super().run(inputs, **how)
        if self.test:
            hosts[self.test] = any(e.meta["host_steps"] for e in self.engines)
        return found


@pytest.fixture(scope="module", autouse=True)
def backend(tmp_path_factory, kernel_cache):
    """What the suite writes down for the real models goes where pytest cleans up."""
    directory, worker = tmp_path_factory.getbasetemp(), os.environ.get("PYTEST_XDIST_WORKER")
    shared = directory.parent if worker else directory

    class Cached(onnx_backend.PeltonBackend):
        @classmethod
        def prepare(cls, model, device="CPU", **_):
            return Noted(model, Options(level=0, cache_dir=kernel_cache))

    suite.backend = Cached
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONNX_MODELS", str(directory / "models"))
        yield Cached
    suite.backend = onnx_backend.PeltonBackend
    # the worker that comes last sees those of all
    (shared / f"nodes-{worker}.json").write_text(json.dumps(hosts))
    every = {name: host for file in shared.glob("nodes-*.json") for name, host in json.loads(file.read_text()).items()}
    if len(every) >= 0.98 * len(NODES):  # all but those that are excluded: no worker is missing
        native = 1 - sum(every.values()) / len(every)
        assert native >= NATIVE, f"{native:.1%} of the node tests run without a host step, and {NATIVE:.1%} did before"


suite = onnx.backend.test.BackendTest(onnx_backend.PeltonBackend, __name__)
suite.exclude("gradient_of")  # training
suite.exclude(RANDOM)
suite.exclude(SCALARS)
if importlib.util.find_spec("PIL") is None:
    suite.exclude("test_image_decoder_")  # Pillow decodes pictures, which is not installed here
cases = suite.enable_report().test_cases
NODES = [name for name in vars(cases["OnnxBackendNodeModelTest"]) if name.endswith("_cpu")]
for tests in cases.values():
    for name in [name for name in vars(tests) if name.endswith("_cuda")]:
        delattr(tests, name)  # the same nodes for a device that this backend does not have
globals().update(cases)


@pytest.mark.parametrize(
    "case", [c for c in collect_testcases(None) if c.name.startswith(RANDOM)], ids=lambda c: c.name
)
def test_what_is_random_has_shape_type_and_range(backend, case):
    """Zeros and ones, as often as asked for."""
    rep, (inputs, (want,)) = backend.prepare(case.model), case.data_sets[0]
    (got,) = rep.run(inputs)
    assert got.dtype == want.dtype and got.shape == want.shape and np.isin(got, [0, 1]).all()
    many = np.mean([rep.run([np.full_like(inputs[0], 0.25)])[0] for _ in range(200)])
    # the body that the schema has draws the opposite
    low, high = (0.65, 0.85) if case.name.endswith("_expanded") else (0.15, 0.35)
    assert "seed" in case.name or low < many < high


def test_a_sequence_of_scalars(backend):
    case = next(c for c in collect_testcases(None) if c.name == SCALARS)
    for inputs, (want,) in case.data_sets:
        (got,) = backend.prepare(case.model).run(inputs)
        assert len(got) == len(want) and all(
            g.dtype == w.dtype and g.shape == w.shape and (g == w).all() for g, w in zip(got, want)
        )
