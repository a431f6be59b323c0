"""Boosted trees of LightGBM and XGBoost, by onnxmltools: pip install lightgbm xgboost onnxmltools onnxruntime; python
boosted.py [NAME…]"""

from __future__ import annotations

from typing import Any

import lightgbm
import numpy as np
import xgboost
from keep import Made, export, run
from onnxmltools.convert import convert_lightgbm, convert_xgboost
from onnxmltools.convert.common.data_types import FloatTensorType

TYPES: Any = [("X", FloatTensorType([None, 5]))]


def table(rows: int, seed: int) -> np.ndarray:
    x = np.random.default_rng(seed).standard_normal((rows, 5)).astype(np.float32)
    x[1::5, 2] = np.nan  # trees know what is missing
    return x


X = table(200, 7)
SCORE = np.nan_to_num(X[:, 0] + X[:, 1] * X[:, 2])
FRESH = [{"X": table(rows, 100 + rows)} for rows in (1, 7)]
SMALL: Any = dict(n_estimators=5, max_depth=3, random_state=0)


def classes(count: int) -> np.ndarray:
    return np.digitize(SCORE, np.quantile(SCORE, np.linspace(0, 1, count + 1)[1:-1]))


def of_lightgbm(model: Any, probabilities: bool, **more: Any) -> Made:
    proto = convert_lightgbm(model, initial_types=TYPES, target_opset=15, **more)
    if probabilities:
        return proto, FRESH, [(model.predict(f["X"]), zipped(model.predict_proba(f["X"]), **more)) for f in FRESH]
    return proto, FRESH, [(model.predict(f["X"]).reshape(-1, 1),) for f in FRESH]


def zipped(scores: np.ndarray, zipmap: bool) -> Any:
    return [dict(enumerate(row)) for row in scores.tolist()] if zipmap else scores


def of_xgboost(model: Any, probabilities: bool) -> Made:
    proto = convert_xgboost(model, initial_types=TYPES, target_opset=15)
    return (
        proto,
        FRESH,
        [(model.predict(f["X"]), *([model.predict_proba(f["X"])] if probabilities else [])) for f in FRESH],
    )


@export
def lightgbm_classes() -> Made:
    return of_lightgbm(lightgbm.LGBMClassifier(**SMALL, verbose=-1).fit(X, classes(3)), True, zipmap=True)


@export
def lightgbm_two() -> Made:
    return of_lightgbm(lightgbm.LGBMClassifier(**SMALL, verbose=-1).fit(X, classes(2)), True, zipmap=False)


@export
def lightgbm_regressor() -> Made:
    return of_lightgbm(lightgbm.LGBMRegressor(**SMALL, verbose=-1).fit(X, SCORE), False)


@export
def xgboost_classes() -> Made:
    return of_xgboost(xgboost.XGBClassifier(**SMALL).fit(X, classes(3)), True)


@export
def xgboost_two() -> Made:
    return of_xgboost(xgboost.XGBClassifier(**SMALL).fit(X, classes(2)), True)


@export
def xgboost_regressor() -> Made:
    return of_xgboost(xgboost.XGBRegressor(**SMALL).fit(X, SCORE), False)


if __name__ == "__main__":
    run()
