"""Models as exporters write them: sessions equal their frameworks, and `pelton check` foresees the outcome."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pelton
from pelton.diagnose import support

FOLDER = Path(__file__).parent / "data" / "exports"
MODELS = sorted(p.stem for p in FOLDER.glob("*.npz"))
# Whose nodes are much like those of others: left to `make test-all`.
ALIKE = {
    "extra_trees",
    "forest_regressor",
    "bagging",
    "stacking",
    "voting",
    "poisson",
    "log_target",
    "linear_svc",
    "one_vs_rest",
    "elastic_net",
    "sgd",
    "nu_svc",
    "mini_batch_kmeans",
    "neighbours_regressor",
    "outlier_factor",
    "perceptron_regressor",
    "logistic_two",
    "decision_tree",
    "lightgbm_two",
    "xgboost_two",
    "calibrated",
    "chosen_features",
    "bins_ordinal",
    "char_weights",
    "keras_conv3d",
    "keras_masked",
    "keras_rnn",
    "torch_encoder",
    "torch_rope",
    "torch_images_dynamo",
    "torch_decoder",
    "quantized_conv_unsigned",
    "quantized_perceptron_dynamic",
    "svc_linear",
    "gaussian_mixture",
    "linear_discriminant",
    "quadratic_discriminant",
    "ada_boost",
    "hist_regressor",
    "xgboost_regressor",
    "lightgbm_regressor",
    "logistic_columns",
    "svc_scores",
}
CLOSE = 1e-5  # of the largest number: what f32 loses in a few dozen steps
# What is rounded to few bits: quantized networks differ in where sums are rounded, by a step of the last layers, and in
# whether inputs of recurrent layers are rounded at all; halves are only rounded between regions.
LOOSE = {"quantized_speech": 5e-2, "quantized": 2e-2, "torch_half": 1e-3}
DECIDED = {"imputed_from_neighbours"}  # the data decides the sizes within the branches of their If
ON_HOST = {
    "LabelEncoder",
    "OneHotEncoder",
    "DictVectorizer",
    "ArrayFeatureExtractor",
    "StringNormalizer",
    "Tokenizer",
    "TfIdfVectorizer",
    "SVMClassifier",
    "NonZero",
    "Compress",
    "TreeEnsembleClassifier",  # classes that are words
    "LinearClassifier",
    "Reshape",  # words in another shape
    "Gather",
}


def model(name: str) -> bytes:
    with np.load(FOLDER / f"{name}.npz") as kept:
        return kept["model"].tobytes()


def cases(name: str) -> list[tuple[dict[str, Any], list[Any]]]:
    """(what is fed, what the framework gives), several times."""
    with np.load(FOLDER / f"{name}.npz") as kept:
        arrays = dict(kept)
    found: list[tuple[dict[str, Any], dict[int, Any]]] = []
    for key, array in arrays.items():
        if key == "model":
            continue
        side, _, rest = key.partition(":")
        k = int(side.lstrip("inout"))
        while len(found) <= k:
            found.append(({}, {}))
        array = array.astype(object) if array.dtype.kind == "U" else array
        rest, _, part = rest.partition("#")
        if part == "rows":
            labels = arrays[key.replace("#rows", "#keys")].tolist()
            found[k][1][int(rest)] = [dict(zip(labels, row)) for row in array.tolist()]
        elif part == "values":
            found[k][0][rest] = dict(zip(arrays[key.replace("#values", "#keys")].tolist(), array.tolist()))
        elif part:
            continue
        elif side.startswith("out"):
            found[k][1][int(rest)] = array
        else:
            found[k][0][rest] = array
    return [(feeds, [outputs[i] for i in sorted(outputs)]) for feeds, outputs in found]


def same(found: Any, expected: Any, close: float) -> bool:
    if isinstance(expected, list):  # a dict per row
        if [[*row] for row in found] != [[*row] for row in expected]:
            return False
        found, expected = (np.array([[*row.values()] for row in rows]) for rows in (found, expected))
    if found.dtype.hasobject or expected.dtype.hasobject:
        return found.shape == expected.shape and bool((found == expected).all())
    if found.size != expected.size:
        return False
    found, expected = found.reshape(-1).astype(np.float64), expected.reshape(-1).astype(np.float64)
    tolerance = close * max(np.nanmax(np.abs(expected), initial=0), 1e-30)
    return np.allclose(found, expected, rtol=0, atol=tolerance, equal_nan=True)


@pytest.fixture(autouse=True)
def cache(kernel_cache, monkeypatch):
    monkeypatch.setenv("PELTON_CACHE_DIR", str(kernel_cache))
    monkeypatch.setenv("PELTON_LEVEL", "0")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in ALIKE else []) for name in MODELS]
)
def test_sessions_give_what_the_framework_gives(name):
    session = pelton.InferenceSession(model(name), providers=["CPUExecutionProvider"])
    close = next((close for start, close in LOOSE.items() if name.startswith(start)), CLOSE)
    for feeds, expected in cases(name):
        found = session.run(None, feeds)
        assert len(found) == len(expected) == len(session.get_outputs())
        for out, a, b in zip(session.get_outputs(), found, expected):
            assert same(a, b, close), f"{out.name}: got\n{a}\nexpected\n{b}"


@pytest.mark.parametrize("name", MODELS)
def test_what_check_foresees_is_what_happens(name, kernel_cache):
    """No problems, and texts and what the data decides apart nothing on the host."""
    found = support.diagnose(model(name))
    assert found.ok, found.problems
    if name in DECIDED:
        built = pelton.build(model(name), level=0, cache_dir=kernel_cache)
        assert sum(o.host for o in found.operators) == len(built.meta["host_steps"])
    else:
        assert {o.operator for o in found.operators if o.host} <= ON_HOST
