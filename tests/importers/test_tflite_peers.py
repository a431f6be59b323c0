"""TFLite models beside LiteRT: every case of one operator, and models from packages.

LiteRT runs with its default kernels (XNNPACK) and with its reference kernels, which round differently; if one of them
lacks an operator, the other counts. LiteRT runs models with MediaPipe's operators up to these, which run in numpy
(tests/tflite_mediapipe.py). PELTON_TFLITE_MODELS names a folder of .tflite files; `make test-importers` fills it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert", reason="needs ai-edge-litert")

from ai_edge_litert.interpreter import Interpreter, OpResolverType  # noqa: E402
import tflite_blocks  # noqa: E402
import tflite_detection  # noqa: E402
import tflite_fourier  # noqa: E402
from tflite_mediapipe import REFERENCES  # noqa: E402
from tflite_models import ModelWriter  # noqa: E402
from tflite_operators import CASES  # noqa: E402
from tflite_sizes import SIZES  # noqa: E402
from tflite_values_computed import VALUES  # noqa: E402

import pelton  # noqa: E402
from pelton.importers import tflite  # noqa: E402
from pelton.importers.network import imported  # noqa: E402
from pelton.importers.tflite import flexbuffer  # noqa: E402
from pelton.importers.tflite.file import opened  # noqa: E402
from pelton.importers.tflite.flatbuffer import SCALARS  # noqa: E402
from pelton.importers.tflite.schema import OPERATORS, OPTIONS, OPTIONS2, SCHEMA  # noqa: E402
from pelton.ir.evaluate import evaluate  # noqa: E402

FOLDER = Path(os.environ.get("PELTON_TFLITE_MODELS", "build/importers/tflite"))
MODELS = sorted(FOLDER.rglob("*.tflite"))
EXPECTED = 25  # models of mediapipe 0.10.21, pyopen-wakeword and pymicro-wakeword
KERNELS = (OpResolverType.AUTO, OpResolverType.BUILTIN_REF)
# LiteRT's reference kernel is off by as much as its optimized one is right
WRONG = {("LOCAL_RESPONSE_NORMALIZATION", OpResolverType.BUILTIN_REF)}
FRAMES = 40  # that streaming models hear
SAMPLES = (1, 16000)  # of the model of mel spectrograms, whose file says 1 × 1


def interpreter(model, kernels, shape=None, threads=2, **more):
    given = dict(model_content=model) if isinstance(model, bytes) else dict(model_path=str(model))
    found = Interpreter(**given, num_threads=threads, experimental_op_resolver_type=kernels, **more)
    if shape is not None:
        found.resize_tensor_input(found.get_input_details()[0]["index"], shape)
    found.allocate_tensors()
    return found


def outputs(found, feeds):
    for detail, array in zip(found.get_input_details(), feeds):
        found.set_tensor(detail["index"], array)
    found.invoke()
    return [found.get_tensor(d["index"]) for d in found.get_output_details()]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_cases_are_what_litert_gives(case):
    """The expectations of the cases themselves, which tests/test_tflite_operators.py holds the importer against."""
    feeds = case.feeds()
    expected = case.results(feeds)
    data, compared = case.model(expected), 0
    for kernels in KERNELS:
        if (case.op, kernels) in WRONG:
            continue
        try:
            found = outputs(interpreter(data, kernels), feeds)
        except (RuntimeError, ValueError):
            continue  # it lacks this operator, or this version of it
        compared += 1
        for got, want in zip(found, expected):
            assert got.shape == want.shape
            if got.dtype.kind == "f":
                np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)
            else:
                assert np.abs(got.astype(np.int64) - want.astype(np.int64)).max() <= (
                    1 if got.dtype.itemsize < 4 else 0
                )
    assert compared


def resized_run(data, feeds, kernels):
    """What LiteRT gives for inputs of these sizes; None where it lacks the operator, or this form of it."""
    try:
        it = Interpreter(model_content=data, experimental_op_resolver_type=kernels)
        details = sorted(it.get_input_details(), key=lambda d: d["index"])
        for detail, array in zip(details, feeds):
            it.resize_tensor_input(detail["index"], array.shape)
        it.allocate_tensors()
        for detail, array in zip(details, feeds):
            it.set_tensor(detail["index"], array)
        it.invoke()
        return [it.get_tensor(detail["index"]) for detail in it.get_output_details()]
    except (RuntimeError, ValueError):
        return None


def assert_close(found, expected):
    for got, want in zip(found, expected):
        assert got.shape == want.shape
        if got.dtype.kind == "f":
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
        else:
            assert np.abs(got.astype(np.int64) - want.astype(np.int64)).max(initial=0) <= (got.dtype.itemsize < 4)


@pytest.mark.parametrize("case", VALUES, ids=lambda c: c.name)
def test_values_are_what_litert_gives(case):
    """The expectations of operands that are inputs, which tests/test_tflite_values.py holds the importer against."""
    compared = 0
    for feed in case.feeds:
        expected = case.results(feed)
        runs = [resized_run(case.model(), feed, kernels) for kernels in KERNELS]
        for found in filter(None, runs):
            assert_close(found, expected)
        compared += any(runs) or not expected[0].size  # it does not give tensors without elements
    assert compared == len(case.feeds)


@pytest.mark.parametrize("case", SIZES, ids=lambda c: c.name)
def test_sizes_are_what_litert_gives(case):
    for shape in case.shapes:
        x = np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)
        runs = [resized_run(case.model(), [x], kernels) for kernels in KERNELS]
        for found in filter(None, runs):
            assert_close(found, [np.asarray(case.expected(x))])
        assert any(runs) or 0 in np.shape(case.expected(x))


@pytest.mark.parametrize("block", [32, 64, 128])
def test_products_of_blocks(block):
    """LiteRT rounds the numbers that it multiplies blocks with to bytes."""
    data, *_ = tflite_blocks.fully_connected(4, 256, 16, block=block)
    x = np.random.default_rng(block).standard_normal((4, 256)).astype(np.float32)
    (want,) = outputs(interpreter(data, OpResolverType.AUTO), [x])
    found = evaluate(imported(tflite.read(data)).graph, {"x": x})["y"]
    assert np.abs(found - want).max() < 2e-2 * np.abs(want).max()


def drawn(detail, rng):
    shape, dtype = tuple(detail["shape"]), detail["dtype"]
    if np.dtype(dtype).kind == "f":
        return (picture(shape, rng) if len(shape) == 4 else rng.standard_normal(shape)).astype(dtype)
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def picture(shape, rng):
    """Something as smooth as a photograph, with a little noise, from 0 to 1: of noise alone, some outputs are what is
    left of numbers a thousand times as large."""
    batch, height, width, channels = shape
    coarse = rng.random((batch, 6, 6, channels))
    rows, columns = (np.linspace(0, 5, n)[:, None] - np.arange(6) for n in (height, width))
    along, across = (np.maximum(1 - np.abs(t), 0) for t in (rows, columns))
    return 0.95 * np.einsum("hi,wj,nijc->nhwc", along, across, coarse) + 0.05 * rng.random(shape)


def assert_agrees(got, want, exact=None):
    """Integers differ by one step on 99.9 % of the elements at most. Floats differ by 1e-4 of the largest element, or,
    where LiteRT itself is off by that (exact: a function that gives what is right), are nearer to what is right."""
    assert got.shape == want.shape and got.dtype == want.dtype
    if got.dtype.kind != "f":
        off = np.abs(got.astype(np.int64) - want.astype(np.int64))
        assert (off <= 1).mean() >= 0.999, np.bincount(off.reshape(-1))
    elif np.abs(got - want).max() > 1e-4 * max(np.abs(want).max(), 1e-30):
        right = want if exact is None else exact()
        assert np.abs(got - right).max() < np.abs(want - right).max()


def test_all_models_are_here():
    if not MODELS:
        pytest.skip(f"no models in {FOLDER}; make test-importers fetches them")
    assert len(MODELS) == EXPECTED


@pytest.mark.parametrize("path", MODELS, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_models_of_packages(path, tmp_path):
    """What a model gives, and each state that it leaves, over frames where it has state."""
    shape = SAMPLES if path.stem == "melspectrogram" else None
    engine = pelton.build(path, level=0, threads=2, shapes={"input": shape} if shape else None, cache_dir=tmp_path)
    compared = 0
    for kernels in KERNELS:
        try:
            found = interpreter(path, kernels, shape, experimental_preserve_all_tensors=bool(engine.state_outputs))
        except RuntimeError as e:
            assert "custom op" in str(e)
            continue
        compared += 1
        rng, states, after = np.random.default_rng(5), engine.initial_states(), engine.state_outputs
        assigned, names = assigned_tensors(path), [p.name for p in engine.inputs if p.name not in after]
        for _ in range(FRAMES if after else 1):
            feeds = [drawn(d, rng) for d in found.get_input_details()]
            want = outputs(found, feeds)
            got = engine.run({**dict(zip(names, feeds)), **states})
            states = {name: got.pop(output) for name, output in after.items()}
            for name, w in zip(list(got), want):
                given = dict(zip(names, feeds))
                assert_agrees(got[name], w, lambda name=name, given=given: in_float64(path, given)[name])
            # its reference kernels round twice, so that from layer to layer they are off from its own default ones
            for name, state in states.items() if kernels is OpResolverType.AUTO else ():
                assert_agrees(state, found.get_tensor(assigned[name]))
    assert compared or path.stem == "face_landmark_with_attention"


def test_a_model_with_operators_of_mediapipe(tmp_path):
    """LiteRT runs all between the custom operators, numpy these."""
    (path,) = [p for p in MODELS if p.stem == "face_landmark_with_attention"] or pytest.skip("the model is not here")
    main, image = opened(path).subgraph(0), np.random.default_rng(5).random((1, 192, 192, 3)).astype(np.float32)
    values, waiting = {main.inputs[0]: image}, []
    for n in (*main.operators, None):
        if n is not None and not n.custom:
            waiting.append(n)
            continue
        values |= run_part(main, waiting, values)
        waiting = []
        if n is not None:
            options = flexbuffer.loads(n.custom_options) if n.custom_options else {}
            values[n.outputs[0]] = REFERENCES[n.name](*(values[i] for i in n.inputs), options).astype(np.float32)
    found = pelton.build(path, level=0, threads=2, cache_dir=tmp_path).run({"input_1": image})
    for got, i in zip(found.values(), main.outputs):
        assert_agrees(got, values[i])


def run_part(main, operators, values):
    """What LiteRT gives for some operators of a subgraph: tensor → array."""
    part, numbers = ModelWriter(), {}
    made = [i for n in operators for i in n.outputs]
    for i in sorted({i for n in operators for i in (*n.inputs, *n.outputs)}):
        spec = main.tensors[i]
        if spec.data is not None:
            numbers[i] = part.main.constant(spec.data)
        else:
            numbers[i] = (part.main.tensor if i in made else part.main.input)(spec.shape, spec.dtype.value)
    part.main.outputs = [numbers[i] for i in made]
    for n in operators:
        kind = n.options.kind if n.options else ""
        options = {k: n.options.get(k) for k in SCHEMA[kind]} if kind else {}
        ends = ([numbers[i] for i in side] for side in (n.inputs, n.outputs))
        part.main.op(n.name, *ends, kind, version=n.version, **options)
    given = [values[i] for i in sorted(numbers) if numbers[i] in part.main.inputs]
    return dict(zip(made, outputs(interpreter(part.bytes(), OpResolverType.BUILTIN_REF), given))) if operators else {}


def in_float64(path, given):
    """What a model without state gives where nothing is rounded."""
    return evaluate(imported(tflite.read(path)).graph, given, round=False)


def assigned_tensors(path):
    """Variable → the tensor that is assigned to it."""
    main = opened(path).subgraph(0)
    handles = {n.outputs[0]: n.options.get("shared_name") for n in main.operators if n.name == "VAR_HANDLE"}
    return {handles[n.inputs[0]]: n.inputs[1] for n in main.operators if n.name == "ASSIGN_VARIABLE"}


def test_the_schema_is_that_of_the_package():
    """Fields, numbers and defaults of every table that is read, in what flatc made of schema.fbs."""
    package = pytest.importorskip("tflite", reason="needs the package tflite")
    folder = Path(package.__file__).parent
    names = dict(Quantization="QuantizationParameters", Sparsity="SparsityParameters", SparseAxis="DimensionMetadata")
    flags = {"bool": "Bool", "f32": "Float32", **{f"i{n}": f"Int{n}" for n in (8, 16, 32, 64)}}
    flags |= {f"u{n}": f"Uint{n}" for n in (8, 16, 32, 64)}
    for kind, fields in SCHEMA.items():
        text = (folder / f"{names.get(kind, kind)}.py").read_text().partition("(object):")[2]
        getters = re.findall(r"    def \w+\(self(?:, j)?\):\n(?:        .*\n)+", text)
        for name, (number, of, default) in fields.items():
            found = [g for g in getters if f"self._tab.Offset({4 + 2 * number})" in g]
            assert found, f"{kind}.{name}"
            element = of.strip("[]")
            if element in SCALARS:
                assert f"number_types.{flags[element]}Flags" in found[0], f"{kind}.{name}"
            if of in SCALARS:
                stated = re.findall(r"return ([-.\w]+)\n", found[0])[-1]
                number_of = {"False": 0, "True": 1, "o": 0}  # o: an enum that begins with 0
                assert float(number_of.get(stated, stated)) == default, f"{kind}.{name}"
    unions = (vars(package.BuiltinOptions), OPTIONS), (vars(package.BuiltinOptions2), OPTIONS2)
    for numbers, kinds in unions:
        assert {kind: numbers[kind] for kind in kinds.values()} == {kind: i for i, kind in kinds.items()}
    codes = {k: v for k, v in vars(package.BuiltinOperator).items() if isinstance(v, int)}
    assert {name: i for i, name in enumerate(OPERATORS)} == codes


@pytest.mark.parametrize("background", [0, 1])
@pytest.mark.parametrize("case", tflite_detection.CASES)
def test_detections(case, background):
    """The reference of tests/test_tflite_detection.py is right. With two threads, LiteRT 2.3 loses a class."""
    data, feeds, anchors, options = tflite_detection.detector(background, **tflite_detection.CASES[case])
    found, classes, scores, number = outputs(interpreter(data, OpResolverType.AUTO, threads=1), feeds.values())
    want = tflite_detection.detected(**feeds, anchors=anchors, o=options)
    count = len(want["classes"])
    assert number.tolist() == [count]
    for got, name in ((found, "found"), (classes, "classes"), (scores, "probabilities")):
        np.testing.assert_allclose(got[0, :count], want[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("version", [4, 5])
def test_suppression(version):
    data, feeds, threshold = tflite_detection.suppression(version)
    got = outputs(interpreter(data, OpResolverType.AUTO), feeds.values())
    want = tflite_detection.suppressed(**feeds, threshold=threshold)
    assert got[-1] == len(want) and got[0].tolist() == want + [0] * (20 - len(want))


@pytest.mark.parametrize("case", tflite_fourier.CASES)
def test_spectra(case):
    w, x, want = tflite_fourier.spectrum(case)
    found = outputs(interpreter(w.bytes(), OpResolverType.AUTO), [x])
    for got, expected in zip(found, want.values()):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
