"""Trees and ensembles of scikit-learn, for scikit.py."""

from __future__ import annotations

import numpy as np
from keep import Made, export
from scikit_data import classes, classifier, fresh, made, regressor, rng, table
from sklearn.ensemble import (
    AdaBoostClassifier,
    BaggingClassifier,
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    IsolationForest,
    RandomForestClassifier,
    RandomForestRegressor,
    StackingRegressor,
    VotingClassifier,
)
from sklearn.linear_model import (
    LinearRegression,
    LogisticRegression,
    Ridge,
)
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor


@export
def random_forest() -> Made:
    return classifier(RandomForestClassifier(6, max_depth=4, random_state=0), zipmap=True)


@export
def forest_regressor() -> Made:
    return regressor(RandomForestRegressor(5, max_depth=4, random_state=0))


@export
def extra_trees() -> Made:
    return regressor(ExtraTreesRegressor(5, max_depth=4, random_state=0))


@export
def decision_tree() -> Made:
    return classifier(DecisionTreeClassifier(max_depth=5, random_state=0), labels=["low", "middle", "high"])


@export
def gradient_boosting() -> Made:
    return classifier(GradientBoostingClassifier(n_estimators=6, max_depth=2, random_state=0))


@export
def hist_boosting() -> Made:
    """With values that are missing."""
    x = table()
    x[rng().random(x.shape) < 0.1] = np.nan
    model = HistGradientBoostingClassifier(max_iter=6, max_leaf_nodes=6, random_state=0).fit(
        x, classes(np.nan_to_num(x), 2)
    )
    feeds = fresh()
    for f in feeds:
        f["X"][:, 1] = np.nan
    return made(
        model, feeds, lambda x: (model.predict(x), model.predict_proba(x)), options={id(model): {"zipmap": False}}
    )


@export
def hist_regressor() -> Made:
    return regressor(HistGradientBoostingRegressor(max_iter=8, max_leaf_nodes=6, random_state=0))


@export
def ada_boost() -> Made:
    return classifier(AdaBoostClassifier(DecisionTreeClassifier(max_depth=2), n_estimators=4, random_state=0))


@export
def bagging() -> Made:
    return classifier(BaggingClassifier(DecisionTreeClassifier(max_depth=3), 4, random_state=0))


@export
def isolation_forest() -> Made:
    model = IsolationForest(n_estimators=8, max_samples=32, random_state=0).fit(table())
    return made(model, fresh(), lambda x: (model.predict(x).reshape(-1, 1), model.decision_function(x).reshape(-1, 1)))


@export
def voting() -> Made:
    return classifier(
        VotingClassifier(
            [("a", LogisticRegression()), ("b", DecisionTreeClassifier(max_depth=3, random_state=0))],
            voting="soft",
            flatten_transform=False,
        )
    )


@export
def stacking() -> Made:
    return regressor(
        StackingRegressor(
            [("a", LinearRegression()), ("b", DecisionTreeRegressor(max_depth=3, random_state=0))], Ridge(), cv=2
        )
    )
