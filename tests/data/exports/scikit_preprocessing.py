"""Preprocessing of scikit-learn, for scikit.py."""

from __future__ import annotations

import numpy as np
from keep import Made, export
from scikit_data import classes, fresh, made, rng, table, transformer
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.feature_selection import SelectKBest
from sklearn.impute import KNNImputer, SimpleImputer
from sklearn.linear_model import (
    LogisticRegression,
)
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import (
    Binarizer,
    KBinsDiscretizer,
    MaxAbsScaler,
    Normalizer,
    PowerTransformer,
    StandardScaler,
)


@export
def components() -> Made:
    return transformer(make_pipeline(StandardScaler(), PCA(3, whiten=True)))


@export
def union() -> Made:
    return transformer(
        FeatureUnion(
            [
                ("pca", PCA(2)),
                ("scale", MaxAbsScaler()),
                ("svd", TruncatedSVD(2, random_state=0)),
                ("row", Normalizer("l1")),
            ]
        )
    )


@export
def chosen_features() -> Made:
    return transformer(make_pipeline(SelectKBest(k=3), Normalizer(), Binarizer(threshold=0.2)))


@export
def bins() -> Made:
    return transformer(
        KBinsDiscretizer(4, encode="onehot-dense", strategy="quantile", quantile_method="averaged_inverted_cdf")
    )


@export
def bins_ordinal() -> Made:
    return transformer(KBinsDiscretizer(3, encode="ordinal", strategy="uniform"))


@export
def power() -> Made:
    return transformer(PowerTransformer())


@export
def imputed() -> Made:
    x = table()
    x[rng().random(x.shape) < 0.2] = np.nan
    model = make_pipeline(SimpleImputer(strategy="median"), StandardScaler(), LogisticRegression()).fit(
        x, classes(np.nan_to_num(x))
    )
    feeds = fresh()
    for f in feeds:
        f["X"][::2, 2] = np.nan
    return made(
        model, feeds, lambda x: (model.predict(x), model.predict_proba(x)), options={id(model): {"zipmap": False}}
    )


@export
def imputed_from_neighbours() -> Made:
    x = table(40, 4)
    x[rng().random(x.shape) < 0.2] = np.nan
    model = KNNImputer(n_neighbors=3).fit(x)
    feeds = fresh(4)
    for f in feeds:
        f["X"][::2, 2] = np.nan
    return made(model, feeds, lambda x: (model.transform(x),))
