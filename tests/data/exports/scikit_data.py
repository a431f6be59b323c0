"""Training data of the scikit-learn pipelines, and their conversion by skl2onnx."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from keep import Made
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType

_attribute = onnx.helper.make_attribute


def _plain_attribute(key: str, value: Any, *rest: Any, **more: Any) -> onnx.AttributeProto:
    """skl2onnx 1.20 gives numbers of trees as numpy's, and truths, which onnx 1.23 does not take."""
    if isinstance(value, list):
        value = [int(v) if isinstance(v, (bool, np.bool_, np.integer)) else v for v in value]
    return _attribute(key, value, *rest, **more)


onnx.helper.make_attribute = _plain_attribute
ROWS = (1, 7)  # of the sets of inputs


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def table(rows: int = 150, features: int = 5, seed: int = 7) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, features)).astype(np.float32)


def classes(x: np.ndarray, count: int = 3) -> np.ndarray:
    score = x[:, 0] + 0.5 * x[:, 1] * x[:, 2] + np.sin(2 * x[:, -1])
    return np.digitize(score, np.quantile(score, np.linspace(0, 1, count + 1)[1:-1]))


def numbers(x: np.ndarray) -> np.ndarray:
    return (x[:, 0] - 2 * x[:, 1] + x[:, 2] ** 2).astype(np.float64)


def fresh(features: int = 5) -> list[dict[str, np.ndarray]]:
    return [{"X": table(rows, features, 100 + rows)} for rows in ROWS]


def made(
    model: Any, feeds: Sequence[dict], give: Callable[[Any], Sequence[Any]], types: Any = None, **more: Any
) -> Made:
    """The model's ONNX form, and what `give` says of each set of inputs."""
    types = types or [("X", FloatTensorType([None, feeds[0]["X"].shape[1]]))]
    return (
        to_onnx(model, initial_types=types, target_opset={"": 18, "ai.onnx.ml": 3}, **more),
        feeds,
        [give(next(iter(f.values()))) for f in feeds],
    )


def classifier(
    model: Any,
    count: int = 3,
    zipmap: Any = False,
    labels: Any = None,
    features: int = 5,
    method: str = "predict_proba",
    **options: Any,
) -> Made:
    x = table(features=features)
    y = classes(x, count)
    model.fit(x, y if labels is None else np.array(labels)[y])
    chosen = {} if zipmap is None else {"zipmap": zipmap}
    return made(
        model,
        fresh(features),
        lambda x: (model.predict(x), zipped(model, getattr(model, method)(x), zipmap)),
        options={id(model): {**chosen, **options}},
    )


def zipped(model: Any, scores: np.ndarray, zipmap: Any = True) -> Any:
    """What ZipMap makes of scores: a dict per row."""
    return [dict(zip(model.classes_.tolist(), row)) for row in scores.tolist()] if zipmap else scores


def regressor(model: Any, features: int = 5) -> Made:
    x = table(features=features)
    model.fit(x, numbers(x))
    return made(model, fresh(features), lambda x: (model.predict(x).reshape(len(x), -1),))


def transformer(model: Any, **more: Any) -> Made:
    x = table()
    model.fit(x, classes(x))
    return made(model, fresh(), lambda x: (model.transform(x),), **more)
