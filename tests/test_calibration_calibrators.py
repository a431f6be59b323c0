"""Calibrators: scripts written for TensorRT, with arrays and with addresses, and their mistakes."""

import os
from dataclasses import replace

import numpy as np
import pytest
from models import model
from onnx import helper

import pelton
import pelton.calibration as trt
from pelton.calibration import CalibrationTable, calibrate
from pelton.compiler.compilation import Compilation
from pelton.compiler.stages import run_stages
from pelton.options import Options

X = np.random.default_rng(0).standard_normal((10, 2, 3)).astype(np.float32)

# Inputs a [2, 2, 3] and b [2, 3]; sum = a + 2 b, y = relu(sum).
NODES = [
    helper.make_node("Mul", ["b", "two"], ["twice"]),
    helper.make_node("Add", ["a", "twice"], ["sum"]),
    helper.make_node("Relu", ["sum"], ["y"]),
]


def graph(inputs=None, nodes=NODES, outputs=None):
    m = model(nodes, inputs or {"a": (2, 2, 3), "b": (2, 3)}, outputs or {"y": (2, 2, 3)}, {"two": np.float32([2])})
    return run_stages(Compilation(Options(), m), "optimize").graph


ONE = graph({"a": (2, 2, 3)}, [helper.make_node("Relu", ["a"], ["y"])])


@pytest.fixture
def options(tmp_path):
    return Options(cache_dir=tmp_path / "cache", threads=1)


SCRIPT = '''
class ImageEntropyCalibrator(trt.IInt8EntropyCalibrator2):
    """As in the samples of TensorRT, but for the memory, which is the CPU's."""

    def __init__(self, training_data, cache_file, batch_size=64):
        # Whenever you specify a custom constructor for a TensorRT class,
        # you MUST call the constructor of the parent explicitly.
        trt.IInt8EntropyCalibrator2.__init__(self)
        self.cache_file = cache_file
        self.data = training_data
        self.batch_size = batch_size
        self.current_index = 0
        self.device_input = np.empty_like(self.data[0:self.batch_size])

    def get_batch_size(self):
        return self.batch_size

    def get_batch(self, names):
        if self.current_index + self.batch_size > self.data.shape[0]:
            return None
        batch = self.data[self.current_index : self.current_index + self.batch_size].ravel()
        np.copyto(self.device_input.ravel(), batch)
        self.current_index += self.batch_size
        return [int(self.device_input.ctypes.data)]

    def read_calibration_cache(self):
        # If there is a cache, use it instead of calibrating again. Otherwise, implicitly return None.
        if os.path.exists(self.cache_file):
            with open(self.cache_file, "rb") as f:
                return f.read()

    def write_calibration_cache(self, cache):
        with open(self.cache_file, "wb") as f:
            f.write(cache)
'''


def test_a_script_written_for_tensorrt(tmp_path, options):
    """As it stands, with the import changed."""
    names = {"np": np, "os": os, "trt": trt}
    exec(SCRIPT, names)
    path = tmp_path / "script.cache"
    for size in (2, 4):  # batches of the model, and of two of it
        made = names["ImageEntropyCalibrator"](X, str(path), batch_size=size)
        found = calibrate(ONE, made, names=["a", "y"], options=options)
        # batches that are not full are left out by the script
        rows = len(X) // size * size
        want = calibrate(ONE, trt.EntropyCalibrator({"a": X[:rows]}), names=["a", "y"], options=options)
        assert dict(found.scales) == dict(want.scales) and made.current_index == rows
        assert path.read_bytes() == found.to_bytes()
        again = names["ImageEntropyCalibrator"](X, str(path), batch_size=size)
        assert calibrate(ONE, again, names=["a", "y"], options=options) == replace(found, lows={}, data="")
        assert again.current_index == 0
        path.unlink()


def calibrator(batches, size=2, base=trt.IInt8MinMaxCalibrator, **methods):
    """A calibrator of these batches; `written` gets its table."""
    rest = iter(batches)

    class Made(base):
        written = None

        def get_batch_size(self):
            return size

        def get_batch(self, names):
            self.names = names
            return next(rest, None)

        def write_calibration_cache(self, cache):
            type(self).written = cache

    for name, method in methods.items():
        setattr(Made, name, method)
    return Made()


B = np.arange(6, dtype=np.float32).reshape(2, 3)
MINUS = -B


@pytest.mark.parametrize(
    "batch",
    [
        lambda a, b: [a, b],
        lambda a, b: (a.ctypes.data, b.ctypes.data),
        lambda a, b: [np.int64(a.ctypes.data), b],
        lambda a, b: {"b": b, "a": a},
    ],
)
def test_batches_of_arrays_and_addresses(batch, options):
    made = calibrator([batch(X[:2], B), batch(X[2:4], MINUS)])
    found = calibrate(graph(), made, names=["a", "sum", "y"], options=options)
    sums = [X[:2] + 2 * B, X[2:4] - 2 * B]
    want = {"a": np.abs(X[:4]).max(), "sum": np.abs(sums).max(), "y": np.max(sums)}
    assert {n: float(s) for n, s in found.scales.items()} == pytest.approx({n: v / 127 for n, v in want.items()})
    assert made.names == ["a", "b"] and made.written == found.to_bytes()
    assert found.algorithm == "MinMaxCalibration" and found.to_bytes().startswith(b"TRT-100300-MinMaxCalibration\na: ")


def test_an_empty_list_ends_the_data(options):
    assert calibrate(ONE, calibrator([[X[:2]], [], [X[:2] * 9]]), names=["a"], options=options).scales["a"] == (
        np.float32(np.abs(X[:2]).max() / 127)
    )


def test_memory_that_is_filled_again_is_read_before(options):
    """One buffer for all batches, of which each has one sample for a model that takes two."""
    buffer = np.empty((1, 2, 3), np.float32)

    def batches():
        for row in X[:3]:
            buffer[0] = row
            yield [buffer]

    found = calibrate(ONE, calibrator(batches(), size=1), names=["a"], options=options)
    assert found.scales["a"] == np.float32(np.abs(X[:3]).max() / 127)


@pytest.mark.parametrize(
    "base, header",
    [
        (trt.IInt8EntropyCalibrator2, "EntropyCalibration2"),
        (trt.IInt8EntropyCalibrator, "EntropyCalibration"),
        (trt.IInt8MinMaxCalibrator, "MinMaxCalibration"),
        (trt.IInt8LegacyCalibrator, "LegacyCalibration"),
    ],
)
def test_each_names_its_algorithm(base, header, options):
    made = calibrator([[X[:2]]], base=base)
    assert isinstance(made, trt.IInt8Calibrator) and made.get_algorithm() in trt.CalibrationAlgoType
    assert calibrate(ONE, made, names=["a"], options=options).algorithm == header


def test_a_cache_of_another_algorithm_is_not_used(options, caplog):
    cache = lambda self: CalibrationTable({"a": 7.0}, "EntropyCalibration2").to_bytes()  # noqa: E731
    made = calibrator([[X[:2]]], read_calibration_cache=cache)
    assert calibrate(ONE, made, names=["a"], options=options).scales["a"] < 1
    assert "of Made is of EntropyCalibration2, not of MinMaxCalibration" in caplog.text
    made = calibrator([], base=trt.IInt8EntropyCalibrator2, read_calibration_cache=cache)
    assert calibrate(ONE, made, names=["a"], options=options).scales["a"] == 7


@pytest.mark.parametrize(
    "base",
    [trt.IInt8EntropyCalibrator2, trt.IInt8EntropyCalibrator, trt.IInt8MinMaxCalibrator, trt.IInt8LegacyCalibrator],
)
def test_all_other_names_are_the_scripts(base, options):
    class Own(type(calibrator([], base=base))):
        def __init__(self):
            base.__init__(self)
            self.data = self.algorithm = self.batches = self.cache = self.title = self.amax = "mine"

    with pytest.raises(pelton.InputError, match="data is empty"):
        calibrate(ONE, Own(), names=["a"], options=options)
    public = {name for name in vars(trt.IInt8Calibrator) if name[0] != "_"}
    assert public == {
        "get_batch_size", "get_batch", "read_calibration_cache", "write_calibration_cache", "get_algorithm"
    }  # fmt: skip


def test_legacy_takes_a_quantile(options):
    made = calibrator([[X[:2]]], base=trt.IInt8LegacyCalibrator, get_quantile=lambda self: 0.5)
    scale = calibrate(ONE, made, names=["a"], options=options).scales["a"]
    assert scale * 127 == pytest.approx(np.sort(np.abs(X[:2]).ravel())[5], abs=1e-3)


@pytest.mark.parametrize(
    "made, why",
    [
        (lambda: calibrator([]), "data is empty"),
        (lambda: trt.IInt8MinMaxCalibrator(), "no method get_batch_size"),
        (lambda: calibrator([[X[:2]]], base=trt.IInt8Calibrator), "derives from no calibrator with an algorithm"),
        (lambda: calibrator([], size=0), "get_batch_size of .* returned 0"),
        (lambda: calibrator([], size="2"), "get_batch_size of .* returned '2'"),
        (lambda: calibrator([[X[:2], X[:2]]]), "returned 2 arrays or addresses for 1 inputs"),
        (lambda: calibrator([[0]]), "address 0x0, where there can be no memory"),
        (
            lambda: calibrator([[64]]),
            r"address 0x40 of a batch of 48 bytes, but 0 are readable.*GPU memory",
        ),
        (lambda: calibrator([[1 << 63]]), "where there can be no memory"),
        (lambda: calibrator([[-8]]), "where there can be no memory"),
        (lambda: calibrator([[X.ctypes.data]], size=1), "returned 1 samples, but input 'a'.* has 2 along"),
        (lambda: calibrator([["a"]]), "must be a numpy array, got str"),
        (lambda: calibrator([[X[:2].astype(np.float64)]]), r"type float64, but the model needs .*astype\(np.float32\)"),
        (lambda: calibrator([{"c": X[:2]}]), "no input 'c'"),
        (lambda: calibrator([[X[:2]]], get_algorithm=lambda self: 2), "get_algorithm of .* returned 2"),
        (lambda: calibrator([[X[:2]]], read_calibration_cache=lambda self: b"{}"), "is no calibration table"),
        (
            lambda: calibrator([[X[:2]]], base=trt.IInt8LegacyCalibrator, get_quantile=lambda self: 2),
            "get_quantile of .* returned 2",
        ),
        (
            lambda: calibrator([[X[:2]]], base=trt.IInt8LegacyCalibrator, get_regression_cutoff=lambda self: -1),
            "get_regression_cutoff of .* returned -1",
        ),
        (lambda: trt.MseCalibrator(calibrator([])), "MseCalibrator needs data, got the calibrator Made"),
        (lambda: trt.PercentileCalibrator({"a": X}, 101), "a percentile"),
    ],
)
def test_calibrators_that_do_it_wrong(made, why, options):
    with pytest.raises(pelton.InputError, match=why):
        calibrate(ONE, made(), names=["a", "y"], options=options)


def test_arrays_on_gpus_are_refused(options):
    class OnGpu:
        __cuda_array_interface__ = {"shape": (2, 2, 3), "typestr": "<f4", "data": (1 << 40, False), "version": 3}

    with pytest.raises(pelton.InputError, match=r"is on a GPU.*\.cpu\(\)"):
        calibrate(ONE, calibrator([[OnGpu()]]), names=["a"], options=options)
    with pytest.raises(pelton.InputError, match="is on a GPU"):
        calibrate(ONE, {"a": OnGpu()}, names=["a"], options=options)


def test_what_a_calibrator_raises_is_what_the_caller_gets(options):
    def fail(self, names):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        calibrate(ONE, calibrator([], get_batch=fail), names=["a"], options=options)
