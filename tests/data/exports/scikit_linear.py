"""Linear models, support vectors and Gaussian processes of scikit-learn, for scikit.py."""

from __future__ import annotations

import numpy as np
from keep import Made, export
from scikit_data import ROWS, classes, classifier, fresh, made, numbers, regressor, table
from skl2onnx.common.data_types import DoubleTensorType
from sklearn.calibration import CalibratedClassifierCV
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.linear_model import (
    ElasticNet,
    LogisticRegression,
    PoissonRegressor,
    Ridge,
    SGDClassifier,
)
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import (
    MinMaxScaler,
    PolynomialFeatures,
    RobustScaler,
    StandardScaler,
)
from sklearn.svm import SVC, SVR, LinearSVC, NuSVC, OneClassSVM


@export
def logistic_zipmap() -> Made:
    return classifier(make_pipeline(StandardScaler(), LogisticRegression()), zipmap=True)


@export
def logistic_words() -> Made:
    return classifier(LogisticRegression(), zipmap=True, labels=["low", "middle", "high"])


@export
def logistic_two() -> Made:
    return classifier(make_pipeline(MinMaxScaler(), LogisticRegression()), 2)


@export
def logistic_columns() -> Made:
    """ZipMap as columns: an output per class."""
    x = table()
    model = LogisticRegression().fit(x, classes(x))
    return made(
        model,
        fresh(),
        lambda x: (model.predict(x), *model.predict_proba(x).T),
        options={id(model): {"zipmap": "columns"}},
    )


@export
def sgd() -> Made:
    return classifier(SGDClassifier(loss="log_loss", random_state=0))


@export
def svc_probabilities() -> Made:
    return classifier(SVC(probability=True, random_state=0), zipmap=True, features=4)


@export
def svc_scores() -> Made:
    return classifier(
        SVC(kernel="poly", degree=2, decision_function_shape="ovr"), method="decision_function", features=4
    )


@export
def svc_two_words() -> Made:
    return classifier(SVC(kernel="sigmoid", probability=True, random_state=0), 2, labels=["no", "yes"], features=4)


@export
def svc_linear() -> Made:
    return classifier(SVC(kernel="linear", break_ties=False), 4, method="decision_function", features=4)


@export
def nu_svc() -> Made:
    return classifier(NuSVC(nu=0.3, probability=True, random_state=0), 2, features=4)


@export
def linear_svc() -> Made:
    return classifier(LinearSVC(), zipmap=None, method="decision_function")


@export
def svr() -> Made:
    return regressor(make_pipeline(StandardScaler(), SVR(C=2.0)), 3)


@export
def one_class() -> Made:
    model = OneClassSVM(nu=0.2).fit(table(60))
    return made(model, fresh(), lambda x: (model.predict(x).reshape(-1, 1), model.decision_function(x).reshape(-1, 1)))


@export
def calibrated() -> Made:
    return classifier(CalibratedClassifierCV(LinearSVC(), cv=2))


@export
def one_vs_rest() -> Made:
    return classifier(OneVsRestClassifier(LogisticRegression()))


@export
def elastic_net() -> Made:
    return regressor(make_pipeline(PolynomialFeatures(2), ElasticNet(alpha=0.01)))


@export
def poisson() -> Made:
    x = table()
    model = PoissonRegressor().fit(x, np.exp(x[:, 0]))
    return made(model, fresh(), lambda x: (model.predict(x).reshape(-1, 1),))


@export
def log_target() -> Made:
    x = table()
    model = Pipeline([("scale", RobustScaler()), ("ridge", Ridge())]).fit(x, numbers(x))
    return made(model, fresh(), lambda x: (model.predict(x).reshape(-1, 1),))


@export
def double_ridge() -> Made:
    """In float64 from end to end."""
    x = table().astype(np.float64)
    model = make_pipeline(StandardScaler(), Ridge()).fit(x, numbers(x))
    return made(
        model,
        [{"X": f["X"].astype(np.float64)} for f in fresh()],
        lambda x: (model.predict(x).reshape(-1, 1),),
        [("X", DoubleTensorType([None, 5]))],
    )


@export
def gaussian_process() -> Made:
    x = table(25, 3).astype(np.float64)
    model = GaussianProcessRegressor(ConstantKernel(1.0) * RBF(1.5), alpha=1e-3, optimizer=None).fit(x, numbers(x))
    feeds = [{"X": table(rows, 3, 100 + rows).astype(np.float64)} for rows in ROWS]
    return made(model, feeds, lambda x: (model.predict(x).reshape(-1, 1),), [("X", DoubleTensorType([None, 3]))])
