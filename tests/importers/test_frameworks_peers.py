"""Models of Keras, TensorFlow, JAX and PaddlePaddle beside their frameworks, on random inputs of two batches."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import time
from datetime import date
from pathlib import Path

import numpy as np
import pytest

import pelton
from pelton.importers import load
from pelton.importers.frameworks import conversion
from pelton.system import environments
from pelton.ir.imported import OnData
from pelton.system import cache

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "build" / "importers" / "frameworks"  # what benchmarks/formats.py writes to the page
CLOSE = 1e-4  # of the largest element
CASES = {
    "tensorflow": {
        **{f"{name}.keras": "Keras" for name in ("mobilenet_v2", "resnet50", "efficientnet_b0", "lstm")},
        **{f"{name}.keras": "Keras" for name in ("two_inputs", "attention")},
        **{f"{name}.h5": "Keras" for name in ("mobilenet_v2", "lstm")},
        **{f"{name}.keras": "Keras" for name in ("text", "masked")},
        **dict.fromkeys(("resnet50_saved", "two_inputs_saved", "module_saved", "text_saved"), "TensorFlow"),
        **dict.fromkeys(("several_saved#encode", "several_saved#decode", "loop_saved"), "TensorFlow"),
        **dict.fromkeys(("tensorflow1_saved", "frozen.pb"), "TensorFlow"),
    },
    "jax": dict.fromkeys(("cnn", "transformer_block", "flax"), "JAX"),
    "paddle": dict.fromkeys(("resnet50", "mobilenet_v2", "words", "old"), "PaddlePaddle"),
}
SHOWN = {
    "tensorflow": ("tensorflow-cpu", "keras", "tf2onnx", "onnx"),
    "jax": ("jax", "flax", "jax2onnx", "onnx"),
    "paddle": ("paddlepaddle", "paddle2onnx", "onnx"),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """name of an environment → the folder with the models that its Python wrote."""
    written = {}

    def of(name):
        python = environments.made(name)
        if python is None:
            pytest.skip(f"needs `pelton import-env {name}`")
        if name not in written:
            folder = tmp_path_factory.mktemp(name)
            environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
            environment |= {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}
            script = HERE / "frameworks" / f"of_{name}.py"
            done = subprocess.run([python.path, script, folder], capture_output=True, text=True, env=environment)
            written[name] = folder, done.stderr[-3000:] if done.returncode else ""
        folder, error = written[name]
        assert not error, error
        return folder

    return of


@pytest.mark.parametrize(
    "name, case",
    [
        pytest.param(name, case, marks=pytest.mark.xdist_group(name), id=f"{name}-{case}")
        for name, cases in CASES.items()
        for case in cases
    ],
)
def test_what_a_framework_gives(models, tmp_path, name, case):
    folder = models(name)
    with np.load(folder / f"{case}.npz") as file:
        arrays = dict(file)
    model = os.path.join(folder, str(arrays["model"]))
    shutil.rmtree(cache.directory() / conversion.PART, ignore_errors=True)  # what other runs have converted
    start = time.monotonic()
    with contextlib.suppress(OnData):  # builds make scripts of such models
        load(model)
    seconds = time.monotonic() - start
    engine = pelton.build(model, level=0)
    if "_saved" in case:  # signatures have no order of their own
        assert [p.name for p in engine.inputs] == sorted(p.name for p in engine.inputs)
    far = 0.0
    for batch in (1, 3):
        given = {key.split("/", 2)[2]: x for key, x in arrays.items() if key.startswith(f"{batch}/in/")}
        if len(given) == 1:  # Keras may give it another name when it loads it
            given = dict(zip((p.name for p in engine.inputs), given.values()))
        found = list(engine.run(given).values())
        wanted = [arrays[f"{batch}/out/{i}"] for i in range(len(found))]
        assert f"{batch}/out/{len(found)}" not in arrays
        for y, want in zip(found, wanted):
            assert y.shape == want.shape and want.any()
            far = max(far, float(np.abs(y - want).max() / np.abs(want).max()))
    listed = json.loads((environments.folder(name) / environments.VERSIONS).read_text())
    versions = {p.lower().replace("_", "-"): version for p, version in listed.items()}
    result = {
        "format": CASES[name][case],
        "model": str(arrays["model"]),
        "far": far,
        "seconds": seconds,
        "versions": ", ".join(f"{p} {versions[p]}" for p in SHOWN[name]),
        "date": date.today().isoformat(),
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}-{case}.json").write_text(json.dumps(result))
    assert far < CLOSE


@pytest.mark.parametrize(
    "model, expected",
    [
        ("lambda.keras", "Lambda layers"),
        ("lambda.h5", "Lambda layers.*PELTON_UNSAFE_KERAS"),
        ("own.keras", "Keras cannot load 'Doubled' from .keras: .*model.export"),
        ("own.h5", "Keras cannot load '.*Doubled' from .h5: it is a layer of its own.*model.export"),
        ("masked.h5", "Keras cannot load 'NotEqual' from .h5, .*keras.ops.not_equal.*save the model as .keras"),
        ("numbers.weights.h5", "weights without a model"),
        ("unfrozen.pb", "not frozen.*convert_variables_to_constants"),
        ("module_saved/variables/variables.index", "only the values of variables"),
        ("several_saved", "signatures decode, encode, parse; .*several_saved#decode"),
        ("several_saved#code", "signatures decode, encode, parse, not 'code'.*did you mean '"),
        ("several_saved#parse", "input 'text' is of type string"),
        ("unsigned_saved", "no signature"),
        ("table_saved", "hash table"),
        ("counting_saved", "changes variables .*AssignAddVariableOp"),
        ("strings.keras", "input 'words' is of type string"),
        ("strings_saved", "input 'words' is of type string"),
        ("truncated_saved", "truncated or damaged"),
        ("without_variables_saved", "without_variables_saved: variables/ is missing, or cut off; [^\\n]*$"),
        ("truncated_variables_saved", "truncated_variables_saved: variables/ is missing, or cut off; [^\\n]*$"),
        ("truncated.pb", "truncated or damaged"),
        ("truncated.keras", "damaged"),
        ("truncated.h5", "truncated"),
    ],
)
@pytest.mark.xdist_group("tensorflow")
def test_what_is_refused(models, model, expected):
    with pytest.raises(pelton.ModelError) as e:
        pelton.build(os.path.join(models("tensorflow"), model), level=0)
    assert re.search(expected, str(e.value), re.S), str(e.value)


@pytest.mark.parametrize("model", ["lambda.keras", "lambda.h5"])
@pytest.mark.xdist_group("tensorflow")
def test_code_runs_if_asked_for(models, monkeypatch, model):
    monkeypatch.setenv("PELTON_UNSAFE_KERAS", "1")
    x = np.arange(4, dtype=np.float32)[None]
    np.testing.assert_allclose(pelton.build(models("tensorflow") / model, level=0)(x), x + 1)
