"""Calibration: accepted data, its batches, and the resulting ranges."""

import tracemalloc

import numpy as np
import pytest
from models import model, small_cnn
from onnx import TensorProto, helper

import pelton
from pelton.calibration import CalibrationTable, EntropyCalibrator, MinMaxCalibrator, calibrate
from pelton.calibration.batches import CalibrationBatches
from pelton.calibration.sources import open_source
from pelton.compiler.compilation import Compilation
from pelton.compiler.stages import run_stages
from pelton.ir.evaluate import evaluate
from pelton.options import Options

RNG = np.random.default_rng(0)
X = RNG.standard_normal((11, 2, 3)).astype(np.float32)


def program(inputs, nodes=None, outputs=None, constants=None, **options):
    """The optimized graph of a model, by default y = relu(x)."""
    nodes = nodes or [helper.make_node("Relu", ["x"], ["y"])]
    m = model(nodes, inputs, outputs or {"y": next(iter(inputs.values()))}, constants or {})
    return run_stages(Compilation(Options(**options), m), "optimize").graph


FIXED = program({"x": (4, 2, 3)})
OPEN = program({"x": ("n", 2, 3)}, shapes={"x": "2..4..8x2x3"})
PAIR = program({"a": (2, 3), "b": (1, 3)}, [helper.make_node("Add", ["a", "b"], ["sum"])], {"sum": (2, 3)})
CNN = run_stages(Compilation(Options(), small_cnn()), "optimize").graph


@pytest.fixture
def options(tmp_path):
    return Options(cache_dir=tmp_path / "cache", threads=1)


def cut(graph, data, image=None):
    return list(CalibrationBatches(open_source(data, graph, image), graph))


def lengths(graph, data):
    return [len(next(iter(feed.values()))) for feed in cut(graph, data)]


@pytest.mark.parametrize(
    "graph, data, want",
    [
        (FIXED, {"x": X[:8]}, [4, 4]),
        (FIXED, {"x": X}, [4, 4, 4]),  # the last one filled up
        (FIXED, [{"x": X[:4]}, {"x": X[:4]}], [4, 4]),
        (FIXED, [{"x": X[:3]}, {"x": X[:3]}, {"x": X[:2]}], [4, 4]),
        (FIXED, [{"x": X[:4]}, {"x": X[:1]}], [4, 4]),
        (FIXED, [X[:4], X[4:8]], [4, 4]),
        (FIXED, ((X[:4],) for _ in range(3)), [4, 4, 4]),
        (FIXED, {"x": np.stack([X[:4]] * 5)}, [4] * 5),
        (OPEN, {"x": X}, [4, 4, 3]),
        (OPEN, {"x": X[:9]}, [4, 4, 4]),  # one sample is fewer than it takes
        (OPEN, {"x": X[:3]}, [3]),
        (OPEN, [X[:7], X[:2], X[:8]], [7, 2, 8]),  # what fits is not cut
        (OPEN, [X[:7], X, X[:2]], [7, 4, 4, 4, 4]),
    ],
)
def test_batches_are_cut_and_joined(graph, data, want):
    assert lengths(graph, data) == want


def test_every_sample_is_there_and_the_last_batch_is_filled_with_those_before():
    found = np.concatenate([feed["x"] for feed in cut(FIXED, {"x": X})])
    assert np.array_equal(found, np.concatenate([X[:8], X[7:]]))
    found = np.concatenate([feed["x"] for feed in cut(FIXED, [X[:4], X[4:6]])])
    assert np.array_equal(found, np.concatenate([X[:4], X[2:6]]))
    assert all(feed["x"].flags.c_contiguous for feed in cut(FIXED, {"x": X[::-1]}))


def test_memory_that_an_iterator_fills_again_does_not_change_what_waits():
    buffer = np.empty((3, 2, 3), np.float32)

    def data():
        for start in (0, 3, 6):
            buffer[:] = X[start : start + 3]
            yield {"x": buffer}

    graph = CalibrationBatches(open_source(data(), FIXED, None), FIXED)
    found = np.concatenate([feed["x"].copy() for feed in graph])
    assert np.array_equal(found, np.concatenate([X[:8], X[5:9]]))


def test_inputs_of_several_kinds():
    """Rows, whole inputs along an axis in front, and one number for all batches."""
    nodes = [helper.make_node("Mul", ["x", "k"], ["y"]), helper.make_node("Add", ["y", "b"], ["z"])]
    graph = program({"x": (1, 3), "k": (), "b": (3,)}, nodes, {"z": (1, 3)})
    x, b = X[:5, 0], X[:5, 1]
    for k, each in ((np.float32(2).reshape(()), [2] * 5), (np.arange(5, dtype=np.float32), range(5))):
        found = cut(graph, {"x": x, "k": k, "b": b})
        assert [float(f["k"]) for f in found] == list(each)
        assert np.array_equal([f["b"] for f in found], b) and np.array_equal([f["x"][0] for f in found], x)


@pytest.mark.parametrize(
    "graph, data, samples, alike",
    [
        (FIXED, {"x": X}, 11, False),  # the last batch filled up
        (OPEN, {"x": X}, 11, False),
        (OPEN, {"x": X[[3] * 9]}, 9, True),
        (OPEN, {"x": X[[3] * 8 + [4]]}, 9, False),
        (PAIR, [{"a": X[0], "b": X[0, :1]}] * 3, 3, True),  # of first axes that are none of samples
        (PAIR, [{"a": X[0], "b": X[i, :1]} for i in range(3)], 3, False),
        (FIXED, [X[[0] * 4], X[[1] * 4]], 8, False),
    ],
)
def test_samples_are_counted_and_compared(graph, data, samples, alike):
    batches = CalibrationBatches(open_source(data, graph, None), graph)
    list(batches)
    assert (batches.samples, batches.alike) == (samples, alike)


@pytest.mark.parametrize(
    "data, said",
    [
        (X[:1], "the calibration data has 1 sample: too few for reliable ranges"),
        (np.tile(X, (9, 1, 1)), "the calibration data has 99 samples: too few for reliable ranges"),
        (np.tile(X[:1], (120, 1, 1)), "the calibration data has 120 samples that are all the same: too few for"),
        (np.tile(X, (10, 1, 1)), ""),
    ],
)
def test_samples_that_cannot_tell_are_a_warning(data, said, options, caplog):
    graph = program({"x": ("n", 2, 3)}, shapes={"x": "1..4..8x2x3"})
    calibrate(graph, {"x": data}, names=["x"], options=options)
    assert said in caplog.text and bool(said) == bool(caplog.text)


def test_files(tmp_path):
    np.savez(tmp_path / "named.npz", x=X)
    np.savez(tmp_path / "one.npz", X)
    np.save(tmp_path / "one.npy", X)
    for name in ("named.npz", "one.npz", "one.npy"):
        assert lengths(FIXED, str(tmp_path / name)) == lengths(FIXED, tmp_path / name) == [4, 4, 4]


def test_pictures(tmp_path):
    pillow = pytest.importorskip("PIL.Image")
    (tmp_path / "b").mkdir()
    colors = {"c.png": 30, "b/a.png": 10, "b/b.bmp": 20}
    for name, value in colors.items():
        pillow.new("RGB", (9, 7), (value, value, value)).save(tmp_path / name)
    (tmp_path / "labels.txt").write_text("no picture")
    graph = program({"x": (2, 3, 4, 4)})
    found = cut(graph, tmp_path, "4x4 scale=1")
    assert [f["x"].shape for f in found] == [(2, 3, 4, 4)] * 2
    assert [f["x"][:, 0, 0, 0].tolist() for f in found] == [[10, 20], [20, 30]]
    batches = CalibrationBatches(open_source(str(tmp_path), graph, "4x4"), graph)
    next(batches)
    assert batches.total == 2
    (tmp_path / "d.png").write_bytes(b"torn")
    with pytest.raises(pelton.InputError, match="d.png cannot be read"):
        cut(graph, tmp_path, "4x4")
    for image, why in ((None, "needs their preprocessing, image="), ("8x8", "pictures of 8x8")):
        with pytest.raises(pelton.InputError, match=why):
            cut(graph, tmp_path, image)
    (tmp_path / "empty").mkdir()
    with pytest.raises(pelton.InputError, match="has no pictures; expected files that end in .jpg"):
        cut(graph, tmp_path / "empty", "4x4")
    with pytest.raises(pelton.InputError, match="models with one input, this one has 2"):
        cut(PAIR, tmp_path, "4x4")


NAN, INF = X[:8].copy(), X[:8].copy()
NAN[5, 1, 2], INF[0, 0, 0] = np.nan, -np.inf


@pytest.mark.parametrize(
    "graph, data, why",
    [
        (FIXED, {"y": X}, "no input 'y'.*inputs are 'x'"),
        (PAIR, {"a": X[:2, 0]}, "input 'b' is missing"),
        (FIXED, {"x": X.astype(np.float64)}, r"'x' of the calibration data has type float64, .*astype\(np.float32\)"),
        (FIXED, [X[:4], X[:4].astype(np.uint8)], "'x' of calibration batch 2 has type uint8"),
        (FIXED, {"x": X[:, :1]}, r"shape \[11, 1, 3\], but the model needs f32\[4, 2, 3\]; pass f32\[samples, 2, 3\]"),
        (FIXED, {"x": X[0]}, r"shape \[2, 3\]"),
        (FIXED, {"x": X[:, None, None]}, r"shape \[11, 1, 1, 2, 3\]"),
        (FIXED, [X[:4], X[:4, :, :2]], r"calibration batch 2 has shape \[4, 2, 2\]"),
        (FIXED, [X[:3], np.stack([X[:4]] * 2)], "batch 2 has 4 axes, the batches before had 3"),
        (FIXED, {"x": X[:0]}, r"'x' of the calibration data is empty: \[0, 2, 3\]"),
        (FIXED, {"x": X[:3]}, "3 samples of input 'x', but the model's batch is 4"),
        (OPEN, {"x": X[:1]}, "1 samples of input 'x', but the model's batch is 4"),
        (FIXED, {"x": NAN}, r"'x' of the calibration data has nan at \[5, 1, 2\]; .*leave this sample out"),
        (FIXED, [X[:4], INF[:4]], r"'x' of calibration batch 2 has -inf at \[0, 0, 0\]"),
        (FIXED, {"x": np.ma.masked_array(X)}, "masked array"),
        (FIXED, {"x": X.tolist()}, "must be a numpy array, got list"),
        (FIXED, [], "is empty; expected at least one batch"),
        (FIXED, iter(()), "is empty; expected at least one batch"),
        (FIXED, [(X[:4], np.arange(4))], "batch has 2 arrays, but the model has 1 inputs.*without labels"),
        (PAIR, [X[:2, 0]], "a calibration batch is ndarray, but the model has 2 inputs"),
        (PAIR, {"a": X[:4, 0], "b": X[:3, 0]}, "different numbers of batches: 2 of 'a', 3 of 'b'"),
        (PAIR, {"a": X[:6, 0], "b": X[:2, 0]}, "different numbers of batches: 3 of 'a', 2 of 'b'"),
        (FIXED, 7, "calibration must be a dict of arrays.*got int$"),
        (FIXED, lambda: iter([X]), "got function; it is a function: call it"),
        (FIXED, None, "got NoneType"),
    ],
)
def test_data_that_does_not_fit(graph, data, why, options):
    with pytest.raises(pelton.InputError, match=why):
        cut(graph, data)


def test_files_that_are_no_data(tmp_path, options):
    with pytest.raises(FileNotFoundError, match="none.npz cannot be read"):
        calibrate(FIXED, tmp_path / "none.npz", names=["x"], options=options)
    np.savez(tmp_path / "objects.npz", x=np.array([{}], object))
    (tmp_path / "torn.npz").write_bytes(b"PK\x03\x04torn")
    (tmp_path / "text").write_text("x: 3c010a14\n")
    (tmp_path / "nothing").write_bytes(b"")
    for name in ("objects.npz", "torn.npz", "text", "nothing"):
        with pytest.raises(pelton.InputError, match=f"{name} is neither a calibration table nor an .npz file"):
            calibrate(FIXED, str(tmp_path / name), names=["x"], options=options)


def test_ranges_are_those_of_the_program(options):
    """Inner values, outputs and inputs, by name, beside the reference in float64."""
    names = [v.name for v in (*CNN.inputs, *(v for n in CNN.nodes for v in n.outputs))]
    x = RNG.standard_normal((5, 3, 20, 20)).astype(np.float32)
    found = calibrate(CNN, MinMaxCalibrator({"x": x}), names=[*names, "x"], options=options)
    values = [v for n in CNN.nodes for v in n.outputs]
    each = [evaluate(CNN.replace(outputs=tuple(values)), {"x": row[None]}) for row in x]
    want = {"x": np.abs(x).max(), **{v.name: max(np.abs(e[v.name]).max() for e in each) for v in values}}
    assert list(found.scales) == names and found.notes == {} and len(names) > 8
    for name in names:
        assert found.scales[name] * 127 == pytest.approx(want[name], rel=1e-4), name


@pytest.mark.parametrize("kind", [MinMaxCalibrator, EntropyCalibrator])
def test_splits_and_order_do_not_matter(kind, options):
    graph = program({"x": ("n", 40)}, shapes={"x": "1..8..64x40"})
    x = RNG.standard_normal((60, 40)).astype(np.float32) ** 3
    tables = [
        calibrate(graph, kind(data), names=["x", "y"], options=options)
        for data in ({"x": x}, {"x": x[::-1]}, [x[:1], x[1:31], x[31:]], (row[None] for row in RNG.permutation(x)))
    ]
    assert all(t == tables[0] for t in tables) and len(tables[0].scales) == 2


def test_memory_does_not_grow_with_the_data(options):
    graph = program({"x": (1, 1000, 250)})  # 1 MB

    def peak(count):
        data = (np.full((1, 1000, 250), i + 1, np.float32) for i in range(count))
        tracemalloc.start()
        try:
            calibrate(graph, data, names=["x", "y"], options=options)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(2)
    assert peak(60) < peak(6) + 2e6


def test_tensors_without_a_range(options):
    """What is 0, constant, infinite or too small has no scale, and the table says why."""
    nodes = [
        helper.make_node("Mul", ["x", "none"], ["zero"]),
        helper.make_node("Add", ["zero", "three"], ["three_always"]),
        helper.make_node("Div", ["x", "none"], ["infinite"]),
        helper.make_node("Mul", ["x", "least"], ["small"]),
        helper.make_node("Relu", ["x"], ["y"]),
    ]
    inputs = {"x": (1, 3), "none": (1, 3)}
    outputs = {n: (1, 3) for n in ("zero", "three_always", "infinite", "small", "y")}
    graph = program(inputs, nodes, outputs, {"three": np.float32([3]), "least": np.float32([1e-37])})
    data = {"x": X[:, 0], "none": np.zeros((11, 3), np.float32)}
    for kind in (MinMaxCalibrator, EntropyCalibrator):
        found = calibrate(graph, kind(data), names=["x", "none", *outputs], options=options)
        assert list(found.scales) == ["x", "y"]
        assert dict(found.notes) == {
            "none": "it is 0 on all calibration data",
            "zero": "it is 0 on all calibration data",
            "three_always": "it is 3 on all calibration data",
            "infinite": "it has infinite values or NaN on calibration data",
            "small": found.notes["small"],
        }
        assert "no scale that is a normal float32" in found.notes["small"]
        assert found.missing(["zero", "x"]) == []


def test_constant_data_is_refused(options):
    with pytest.raises(pelton.InputError, match="none of 2 tensors can be quantized, such as 'x': it is 1 on all"):
        calibrate(FIXED, {"x": np.ones((8, 2, 3), np.float32)}, names=["x", "y"], options=options)


def test_names_that_cannot_be_calibrated(options):
    nodes = [helper.make_node("Gather", ["x", "i"], ["y"]), helper.make_node("Mul", ["y", "c"], ["z"])]
    graph = program(
        {"x": (4, 3), "i": ((2,), TensorProto.INT64)}, nodes, {"z": (2, 3)}, {"c": np.arange(3, dtype=np.float32)}
    )
    data = {"x": X[:4, 0], "i": np.array([0, 1])}
    for name, why in (("xx", r"is not in the graph \(did you mean 'x'\?\)"), ("i", r"i64\[2\], not of floats")):
        with pytest.raises(pelton.InputError, match=f"tensor '{name}' cannot be calibrated: .*{why}"):
            calibrate(graph, data, names=["x", name], options=options)
    constant = next(iter(graph.constants)).name
    with pytest.raises(pelton.InputError, match="is a constant"):
        calibrate(graph, data, names=[constant], options=options)


def test_tables_need_no_run(tmp_path, options, caplog):
    table = CalibrationTable({"x": 0.5, "y": 0.25}, "MinMaxCalibration", "8601")
    table.save(tmp_path / "t.cache")
    for data in (table, tmp_path / "t.cache", str(tmp_path / "t.cache")):
        assert calibrate(FIXED, data, names=["x", "y"], options=options) == table
    assert not caplog.text
    assert calibrate(FIXED, CalibrationTable({"x": 0.5}), names=["x", "y"], options=options).missing(["y"]) == ["y"]
    assert "has no scale of 'y': they stay unquantized" in caplog.text
    with pytest.raises(pelton.InputError, match="belongs to another model.*'sum'"):
        calibrate(PAIR, table, names=["a", "b", "sum"], options=options)
    assert not (tmp_path / "cache").exists()


def test_progress_and_cancelling(options):
    calls = []
    calibrate(FIXED, {"x": X}, names=["x", "y"], options=options.but(progress=lambda *c: calls.append(c)))
    assert [c for c in calls if c[0] == "calibrate"] == [("calibrate", i, 3) for i in range(3)]
    assert ("done", 1, 1) not in calls and calls[0][0] != "calibrate"
    calls.clear()
    stream = iter([X[:4], X[4:8]])
    calibrate(FIXED, stream, names=["x"], options=options.but(progress=lambda *c: calls.append(c)))
    assert calls == [("calibrate", 0, 0), ("calibrate", 1, 0)]  # inputs alone need no engine
    stop = options.but(progress=lambda stage, done, total: not (stage == "calibrate" and done == 1))
    with pytest.raises(pelton.Cancelled, match="calibrating, behind 1 batches"):
        calibrate(FIXED, {"x": X}, names=["y"], options=stop)


def test_random_access_is_not_needed(options):
    """A generator is read once, in order, and no further than a batch ahead."""
    read = []

    def data():
        for i in range(5):
            read.append(i)
            yield {"x": X[i : i + 4]}

    seen = []
    progress = lambda stage, done, total: seen.append(len(read)) if stage == "calibrate" else None  # noqa: E731
    calibrate(FIXED, data(), names=["y"], options=options.but(progress=progress))
    assert read == list(range(5)) and seen == [1, 2, 3, 4, 5]
