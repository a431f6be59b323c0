"""The stand-in for onnxruntime: modules and names, exceptions, installation and removal."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import logging
import pickle
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import pelton
import pelton.onnxruntime

SOURCES = str(Path(pelton.__file__).parents[1])
RNG = np.random.default_rng(0)
W = RNG.standard_normal((4, 3)).astype(np.float32)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PELTON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PELTON_LEVEL", "0")
    yield
    logging.getLogger("pelton").setLevel(logging.NOTSET)  # sessions may set it, for the whole process


@pytest.fixture
def ort(monkeypatch):
    """What `import onnxruntime` gives."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    pelton.onnxruntime.install()
    yield importlib.import_module("onnxruntime")
    pelton.onnxruntime.uninstall()
    assert "onnxruntime" not in sys.modules


def network(batch: int | str = "batch", op: str = "MatMul") -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node(op, ["x", "w"], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", 1, [batch, 4])],
        [helper.make_tensor_value_info("y", 1, [batch, 3])],
        [numpy_helper.from_array(W, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def right(found, x) -> bool:
    return np.allclose(found[0], np.float64(x) @ W, atol=1e-5)


@pytest.fixture
def path(tmp_path) -> str:
    onnx.save(network(), tmp_path / "net.onnx")
    return str(tmp_path / "net.onnx")


# --- the modules


def test_a_program_gets_pelton(ort, path):
    from onnxruntime import GraphOptimizationLevel, InferenceSession, SessionOptions
    from onnxruntime.capi import _pybind_state as C
    from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession as same

    assert (
        ort is pelton.onnxruntime
        and same is InferenceSession is C.InferenceSession
        and issubclass(InferenceSession, pelton.InferenceSession)
    )
    assert (
        C.get_available_providers() == ort.get_available_providers()
        and "CPUExecutionProvider" in ort.get_available_providers()
    )
    options = SessionOptions()
    options.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_ALL
    session, x = (
        InferenceSession(path, sess_options=options, providers=["CPUExecutionProvider"]),
        RNG.standard_normal((5, 4)).astype(np.float32),
    )
    assert isinstance(session, ort.InferenceSession) and right(session.run(None, {"x": x}), x)
    assert session._model_path == path and session._sess is session and [a.name for a in session._inputs_meta] == ["x"]
    assert ort.InferenceSession(Path(path).read_bytes())._model_path is None
    binding = ort.IOBinding(session)
    binding.bind_cpu_input("x", x)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    assert right(binding.copy_outputs_to_cpu(), x)
    # whose native value transformers asks for a capsule
    (value,) = binding.get_outputs()
    assert type(value._ortvalue.to_dlpack()).__name__ == "PyCapsule" and right([np.from_dlpack(value)], x)


def test_every_module_is_one_module(ort):
    """Under either name, so that an exception of one is caught by the other, and each imports by its own."""
    for name in (
        "capi",
        "capi.onnxruntime_pybind11_state",
        "capi._pybind_state",
        "capi.onnxruntime_inference_collection",
        "capi.onnxruntime_validation",
        "capi.build_and_package_info",
        "capi._ld_preload",
    ):
        found = importlib.import_module(f"onnxruntime.{name}")
        assert (
            found is importlib.import_module(f"pelton.onnxruntime.{name}")
            and found.__spec__.name == f"pelton.onnxruntime.{name}"
        )
        assert importlib.util.find_spec(f"onnxruntime.{name}") is not None
    assert importlib.reload(ort) is ort is sys.modules["onnxruntime"]


def test_what_asks_whether_it_is_installed(ort):
    """As transformers, optimum and others do."""
    assert importlib.util.find_spec("onnxruntime") is not None
    version = importlib.metadata.version("onnxruntime")
    assert (
        version == ort.__version__ == ort.get_version_string() and len([int(part) for part in version.split(".")]) == 3
    )
    assert (
        importlib.metadata.metadata("onnxruntime")["Name"] == "onnxruntime"
        and importlib.metadata.distribution("ONNXRuntime").version == version
    )
    assert "onnxruntime" in importlib.metadata.packages_distributions()["onnxruntime"]
    assert importlib.metadata.version("numpy") == np.__version__
    assert pelton.__version__ in ort.get_build_info() and ort.get_device() == "CPU" and not ort.has_collective_ops()
    # ONNX Runtime's own package for inference has none either
    assert importlib.util.find_spec("onnxruntime.training") is None
    for name in ("onnxruntime.training", "onnxruntime.capi.nothing"):
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(name)
    assert not hasattr(ort, "nothing") and not hasattr(ort, "training")


def test_what_there_is_not_says_so_when_it_is_used(ort):
    from onnxruntime import ModelCompiler
    from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented, quantize_matmul_4bits
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_dynamic
    from onnxruntime.quantization.calibrate import create_calibrator
    from onnxruntime.tools.symbolic_shape_infer import SymbolicShapeInference

    # libraries inherit while they are imported
    class Reader(CalibrationDataReader):
        def __init__(self, kind=QuantType.QInt8):
            raise AssertionError("never made")

    for use, name in (
        (lambda: quantize_dynamic("a", "b"), "onnxruntime.quantization.quantize_dynamic"),
        (Reader, "onnxruntime.quantization.CalibrationDataReader"),
        (
            SymbolicShapeInference.infer_shapes,
            "onnxruntime.tools.symbolic_shape_infer.SymbolicShapeInference.infer_shapes",
        ),
        (create_calibrator, "calibrate.create_calibrator"),
        (quantize_matmul_4bits, "onnxruntime.quantize_matmul_4bits"),
        (ModelCompiler, "onnxruntime.ModelCompiler"),
        (ort.get_ep_devices, "onnxruntime.get_ep_devices"),
    ):
        for kind in (NotImplemented, NotImplementedError, pelton.Error):
            with pytest.raises(kind, match=f"has no .*{name}"):
                use()
    assert not isinstance(3, QuantType) and "QInt8" in repr(QuantType.QInt8)


def test_every_name_that_is_said_to_be_there_is(ort):
    from pelton.compat.session import __all__ as ours

    for name in (*ort.__all__, *ours, *ort._MISSING):
        assert getattr(ort, name) is not None
        assert (
            getattr(importlib.import_module("onnxruntime.capi._pybind_state"), name) is getattr(ort, name)
            or name in ort._MISSING
        )


def test_element_types_in_other_words(ort):
    from onnxruntime.transformers.io_binding_helper import TypeHelper

    assert (
        TypeHelper.ort_type_to_numpy_type("tensor(float)") is np.float32
        and TypeHelper.ort_type_to_numpy_type("tensor(int64)") is np.int64
    )
    assert TypeHelper.ort_type_to_numpy_type("tensor(bool)") is bool
    for wrong in ("tensor(string)", "float", "tensor(quad)"):
        with pytest.raises(ValueError, match="the type of a tensor of numbers"):
            TypeHelper.ort_type_to_numpy_type(wrong)
    session = ort.InferenceSession(network().SerializeToString())
    assert TypeHelper.get_input_type(session, "x") == TypeHelper.get_output_type(session, "y") == "tensor(float)"
    with pytest.raises(ValueError, match="there is no 'q' among 'x'"):
        TypeHelper.get_input_type(session, "q")


# --- exceptions


def damaged(change) -> bytes:
    made = network()
    change(made.graph)
    return made.SerializeToString()


def test_exceptions_are_caught_by_the_names_that_onnxruntime_has(ort, tmp_path):
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    (tmp_path / "damaged.onnx").write_bytes(b"\x08abc")
    session, x = ort.InferenceSession(network().SerializeToString()), np.ones((2, 4), np.float32)

    def reads_nothing(graph):
        graph.node[0].input[0] = "q"

    def narrow(graph, rows=2):
        graph.input[0].CopyFrom(helper.make_tensor_value_info("x", 1, [rows, 5]))

    # which a session of Pelton's notices when it is asked to run
    def narrow_and_open(graph):
        narrow(graph, "batch")

    for use, *kinds in (
        (lambda: ort.InferenceSession(str(tmp_path / "none.onnx")), state.NoSuchFile, FileNotFoundError),
        (lambda: ort.InferenceSession(str(tmp_path / "damaged.onnx")), state.InvalidProtobuf),
        (lambda: ort.InferenceSession(b"\x08abc"), state.InvalidProtobuf),
        (lambda: ort.InferenceSession(network(op="Nonsense").SerializeToString()), state.InvalidGraph),
        (lambda: ort.InferenceSession(damaged(reads_nothing)), state.InvalidGraph, state.Fail),
        (lambda: ort.InferenceSession(damaged(narrow)), state.Fail),
        (
            lambda: ort.InferenceSession(damaged(narrow_and_open)).run(None, {"x": np.ones((2, 5), np.float32)}),
            state.Fail,
        ),
        (lambda: ort.InferenceSession(3), TypeError),
        (lambda: session.run(None, {"x": x.astype(np.float64)}), state.InvalidArgument),
        (lambda: session.run(None, {"x": x[:, :3]}), state.InvalidArgument),
        (lambda: session.run(None, {"x": x[0]}), state.InvalidArgument),
        (lambda: session.run(["q"], {"x": x}), state.InvalidArgument),
        (lambda: session.run(None, {"x": x, "k": x}), state.InvalidArgument),
        (lambda: session.run(None, {}), ValueError),
        (lambda: session.io_binding().bind_cpu_input("q", x), RuntimeError),
        (lambda: ort.SessionOptions().get_session_config_entry("k"), RuntimeError),
    ):
        for kind in kinds:
            with pytest.raises(kind) as caught:
                use()
            assert str(caught.value) and (kind is TypeError or isinstance(caught.value, pelton.Error))
    assert not issubclass(state.NoSuchFile, (state.InvalidGraph, state.InvalidProtobuf, state.InvalidArgument))


def test_exceptions_say_where_they_come_from(ort):
    with pytest.raises(pelton.ModelError, match="no operator Nonsense") as caught:
        ort.InferenceSession(network(op="Nonsense").SerializeToString())
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is type(caught.value) and str(again) == str(caught.value) and caught.value.values == ()
    assert any("importers" in str(entry.path) or entry.path.name == "sessions.py" for entry in caught.traceback)


# --- classes made from its own


class Kept(pelton.onnxruntime.InferenceSession):
    """As libraries do, to hand sessions to other processes."""

    def __init__(self, model_path, **kwargs):
        super().__init__(model_path, **kwargs)
        self.model_path = model_path

    def __getstate__(self):
        return {"model_path": self.model_path}

    def __setstate__(self, values):
        self.__init__(values["model_path"])


def test_sessions_are_inherited_from_and_pickled(ort, path):
    session, x = Kept(path, providers=ort.get_available_providers()), RNG.standard_normal((2, 4)).astype(np.float32)
    again = pickle.loads(pickle.dumps(session))
    assert isinstance(again, ort.InferenceSession) and right(again.run(None, {"x": x}), x)
