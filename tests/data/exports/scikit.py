"""Pipelines of scikit-learn, by skl2onnx: pip install scikit-learn skl2onnx onnxruntime; python scikit.py [NAME…]"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from keep import Made, export, run
from skl2onnx import to_onnx
from skl2onnx.common.data_types import DoubleTensorType, FloatTensorType
from sklearn.calibration import CalibratedClassifierCV
from sklearn.cluster import KMeans, MiniBatchKMeans
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
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
from sklearn.feature_selection import SelectKBest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.impute import KNNImputer, SimpleImputer
from sklearn.linear_model import (
    ElasticNet,
    LinearRegression,
    LogisticRegression,
    PoissonRegressor,
    Ridge,
    SGDClassifier,
)
from sklearn.mixture import GaussianMixture
from sklearn.multiclass import OneVsRestClassifier
from sklearn.naive_bayes import BernoulliNB, GaussianNB
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor, LocalOutlierFactor
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import (
    Binarizer,
    KBinsDiscretizer,
    MaxAbsScaler,
    MinMaxScaler,
    Normalizer,
    PolynomialFeatures,
    PowerTransformer,
    RobustScaler,
    StandardScaler,
)
from sklearn.svm import SVC, SVR, LinearSVC, NuSVC, OneClassSVM
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

_attribute = onnx.helper.make_attribute


def _plain_attribute(key: str, value: Any, *rest: Any, **more: Any) -> onnx.AttributeProto:
    """skl2onnx 1.20 gives numbers of trees as numpy's, and truths, which onnx 1.23 does not take."""
    return _attribute(
        key,
        (
            [int(v) if isinstance(v, (bool, np.bool_, np.integer)) else v for v in value]
            if isinstance(value, list)
            else value
        ),
        *rest,
        **more,
    )


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


# --- linear models and support vectors


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


# --- trees


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


# --- neighbours, mixtures, networks


@export
def neighbours() -> Made:
    return classifier(KNeighborsClassifier(5))


@export
def neighbours_regressor() -> Made:
    x = table(60)
    model = KNeighborsRegressor(3).fit(x, numbers(x))
    return made(model, fresh(), lambda x: (model.predict(x).reshape(-1, 1),))


@export
def neighbours_manhattan() -> Made:
    x = table(60)
    model = KNeighborsClassifier(4, metric="manhattan").fit(x, classes(x))
    return made(
        model, fresh(), lambda x: (model.predict(x), model.predict_proba(x)), options={id(model): {"zipmap": False}}
    )


@export
def outlier_factor() -> Made:
    model = LocalOutlierFactor(10, novelty=True).fit(table(60))
    return made(model, fresh(), lambda x: (model.predict(x), model.decision_function(x)))


@export
def gaussian_bayes() -> Made:
    return classifier(GaussianNB())


@export
def bernoulli_bayes() -> Made:
    return classifier(BernoulliNB())


@export
def gaussian_mixture() -> Made:
    model = GaussianMixture(3, random_state=0).fit(table())
    return made(model, fresh(), lambda x: (model.predict(x), model.predict_proba(x)))


@export
def linear_discriminant() -> Made:
    return classifier(LinearDiscriminantAnalysis())


@export
def quadratic_discriminant() -> Made:
    return classifier(QuadraticDiscriminantAnalysis())


@export
def kmeans() -> Made:
    model = KMeans(4, n_init=1, random_state=0).fit(table())
    return made(model, fresh(), lambda x: (model.predict(x), model.transform(x)))


@export
def mini_batch_kmeans() -> Made:
    model = make_pipeline(StandardScaler(), MiniBatchKMeans(3, n_init=1, random_state=0)).fit(table())
    return made(model, fresh(), lambda x: (model.predict(x), model.transform(x)))


@export
def perceptron() -> Made:
    return classifier(MLPClassifier(hidden_layer_sizes=(9, 6), max_iter=60, random_state=0), zipmap=True)


@export
def perceptron_regressor() -> Made:
    return regressor(
        make_pipeline(
            StandardScaler(), MLPRegressor(hidden_layer_sizes=(8,), activation="tanh", max_iter=60, random_state=0)
        )
    )


# --- preprocessing


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


if __name__ == "__main__":
    run()
