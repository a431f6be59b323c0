"""Pipelines of scikit-learn, by skl2onnx: pip install scikit-learn skl2onnx onnxruntime; python scikit.py [NAME…]"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import pandas as pd
from keep import Made, export, run
from skl2onnx import to_onnx
from skl2onnx.common.data_types import DictionaryType, DoubleTensorType, FloatTensorType, Int64TensorType, StringTensorType
from sklearn.calibration import CalibratedClassifierCV
from sklearn.cluster import KMeans, MiniBatchKMeans
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from sklearn.ensemble import (AdaBoostClassifier, BaggingClassifier, ExtraTreesRegressor, GradientBoostingClassifier, HistGradientBoostingClassifier,
                              HistGradientBoostingRegressor, IsolationForest, RandomForestClassifier, RandomForestRegressor, StackingRegressor,
                              VotingClassifier)
from sklearn.feature_extraction import DictVectorizer, FeatureHasher
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.feature_selection import SelectKBest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.impute import KNNImputer, SimpleImputer
from sklearn.linear_model import ElasticNet, LinearRegression, LogisticRegression, PoissonRegressor, Ridge, SGDClassifier
from sklearn.mixture import GaussianMixture
from sklearn.multiclass import OneVsRestClassifier
from sklearn.naive_bayes import BernoulliNB, GaussianNB, MultinomialNB
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor, LocalOutlierFactor
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import (Binarizer, FunctionTransformer, KBinsDiscretizer, LabelEncoder, MaxAbsScaler, MinMaxScaler, Normalizer, OneHotEncoder,
                                   OrdinalEncoder, PolynomialFeatures, PowerTransformer, RobustScaler, StandardScaler)
from sklearn.svm import SVC, SVR, LinearSVC, NuSVC, OneClassSVM
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

_attribute = onnx.helper.make_attribute


def _plain_attribute(key: str, value: Any, *rest: Any, **more: Any) -> onnx.AttributeProto:
    """skl2onnx 1.20 gives numbers of trees as numpy's, which onnx 1.23 does not take."""
    return _attribute(key, [v.item() if isinstance(v, np.generic) else v for v in value] if isinstance(value, list) else value, *rest, **more)


onnx.helper.make_attribute = _plain_attribute
ROWS = (1, 7)                                          # of the sets of inputs
WORDS = np.array("a stream of water turns the wheel of the mill , its buckets split the jet in two and send it back".split())
COLOURS, SIZES = np.array(["red", "green", "blue", "grün"]), np.array(["small", "medium", "large"])


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


def made(model: Any, feeds: Sequence[dict], give: Callable[[Any], Sequence[Any]], types: Any = None, **more: Any) -> Made:
    """The model's ONNX form, and what `give` says of each set of inputs."""
    types = types or [("X", FloatTensorType([None, feeds[0]["X"].shape[1]]))]
    return to_onnx(model, initial_types=types, target_opset={"": 18, "ai.onnx.ml": 3}, **more), feeds, [give(next(iter(f.values()))) for f in feeds]


def classifier(model: Any, count: int = 3, zipmap: Any = False, labels: Any = None, features: int = 5, method: str = "predict_proba", **options: Any) -> Made:
    x = table(features=features)
    y = classes(x, count)
    model.fit(x, y if labels is None else np.array(labels)[y])
    chosen = {} if zipmap is None else {"zipmap": zipmap}
    return made(model, fresh(features), lambda x: (model.predict(x), zipped(model, getattr(model, method)(x), zipmap)), options={id(model): {**chosen, **options}})


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
    return made(model, fresh(), lambda x: (model.predict(x), *model.predict_proba(x).T), options={id(model): {"zipmap": "columns"}})


@export
def sgd() -> Made:
    return classifier(SGDClassifier(loss="log_loss", random_state=0))


@export
def svc_probabilities() -> Made:
    return classifier(SVC(probability=True, random_state=0), zipmap=True, features=4)


@export
def svc_scores() -> Made:
    return classifier(SVC(kernel="poly", degree=2, decision_function_shape="ovr"), method="decision_function", features=4)


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
    return made(model, [{"X": f["X"].astype(np.float64)} for f in fresh()], lambda x: (model.predict(x).reshape(-1, 1),), [("X", DoubleTensorType([None, 5]))])


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
    model = HistGradientBoostingClassifier(max_iter=6, max_leaf_nodes=6, random_state=0).fit(x, classes(np.nan_to_num(x), 2))
    feeds = fresh()
    for f in feeds:
        f["X"][:, 1] = np.nan
    return made(model, feeds, lambda x: (model.predict(x), model.predict_proba(x)), options={id(model): {"zipmap": False}})


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
    return classifier(VotingClassifier([("a", LogisticRegression()), ("b", DecisionTreeClassifier(max_depth=3, random_state=0))], voting="soft",
                                       flatten_transform=False))


@export
def stacking() -> Made:
    return regressor(StackingRegressor([("a", LinearRegression()), ("b", DecisionTreeRegressor(max_depth=3, random_state=0))], Ridge(), cv=2))


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
    return made(model, fresh(), lambda x: (model.predict(x), model.predict_proba(x)), options={id(model): {"zipmap": False}})


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
    return regressor(make_pipeline(StandardScaler(), MLPRegressor(hidden_layer_sizes=(8,), activation="tanh", max_iter=60, random_state=0)))


# --- preprocessing

@export
def components() -> Made:
    return transformer(make_pipeline(StandardScaler(), PCA(3, whiten=True)))


@export
def union() -> Made:
    return transformer(FeatureUnion([("pca", PCA(2)), ("scale", MaxAbsScaler()), ("svd", TruncatedSVD(2, random_state=0)), ("row", Normalizer("l1"))]))


@export
def chosen_features() -> Made:
    return transformer(make_pipeline(SelectKBest(k=3), Normalizer(), Binarizer(threshold=0.2)))


@export
def bins() -> Made:
    return transformer(KBinsDiscretizer(4, encode="onehot-dense", strategy="quantile", quantile_method="averaged_inverted_cdf"))


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
    model = make_pipeline(SimpleImputer(strategy="median"), StandardScaler(), LogisticRegression()).fit(x, classes(np.nan_to_num(x)))
    feeds = fresh()
    for f in feeds:
        f["X"][::2, 2] = np.nan
    return made(model, feeds, lambda x: (model.predict(x), model.predict_proba(x)), options={id(model): {"zipmap": False}})


@export
def imputed_from_neighbours() -> Made:
    x = table(40, 4)
    x[rng().random(x.shape) < 0.2] = np.nan
    model = KNNImputer(n_neighbors=3).fit(x)
    feeds = fresh(4)
    for f in feeds:
        f["X"][::2, 2] = np.nan
    return made(model, feeds, lambda x: (model.transform(x),))


# --- strings, tables of several types, texts, dictionaries

def people(rows: int, seed: int) -> dict[str, np.ndarray]:
    r = np.random.default_rng(seed)
    return {"age": r.uniform(1, 90, (rows, 1)).astype(np.float32), "height": r.normal(1.7, 0.2, (rows, 1)).astype(np.float32),
            "children": r.integers(0, 4, (rows, 1)), "colour": COLOURS[r.integers(0, 4, (rows, 1))].astype(object),
            "size": SIZES[r.integers(0, 3, (rows, 1))].astype(object)}


def frame(columns: dict[str, np.ndarray]) -> pd.DataFrame:
    return pd.DataFrame({k: v[:, 0] for k, v in columns.items()})


PEOPLE = [("age", FloatTensorType([None, 1])), ("height", FloatTensorType([None, 1])), ("children", Int64TensorType([None, 1])),
          ("colour", StringTensorType([None, 1])), ("size", StringTensorType([None, 1]))]


@export
def columns() -> Made:
    """A table with numbers and texts, an input per column, as the guide of skl2onnx has it."""
    known = frame(people(150, 1))
    steps = ColumnTransformer([("numbers", make_pipeline(SimpleImputer(), StandardScaler()), ["age", "height"]),
                               ("words", OneHotEncoder(handle_unknown="ignore"), ["colour", "size"])], remainder="passthrough")
    model = make_pipeline(steps, LogisticRegression())
    model.fit(known, (known.age > 40) ^ (known.colour == "red"))
    feeds = [people(rows, 100 + rows) for rows in ROWS]
    feeds[1]["colour"][2] = "never seen"
    return (to_onnx(model, initial_types=PEOPLE, target_opset={"": 18, "ai.onnx.ml": 3}, options={id(model): {"zipmap": True}}), feeds,
            [(model.predict(frame(f)).astype(np.int64), zipped(model, model.predict_proba(frame(f)))) for f in feeds])


@export
def columns_ordinal() -> Made:
    known = frame(people(150, 1))
    steps = ColumnTransformer([("numbers", "passthrough", ["age", "children"]), ("words", OrdinalEncoder(), ["colour", "size"])])
    model = make_pipeline(steps, RandomForestRegressor(4, max_depth=3, random_state=0)).fit(known, known.height)
    feeds = [people(rows, 100 + rows) for rows in ROWS]
    used = ("age", "children", "colour", "size")
    return (to_onnx(model, initial_types=[t for t in PEOPLE if t[0] in used], target_opset={"": 18, "ai.onnx.ml": 3}),
            [{k: f[k] for k in used} for f in feeds], [(model.predict(frame(f)).reshape(-1, 1),) for f in feeds])


@export
def one_hot_words() -> Made:
    def words(rows: int, seed: int) -> np.ndarray:
        f = people(rows, seed)
        return np.concatenate([f["colour"], f["size"]], 1)
    model = OneHotEncoder(handle_unknown="ignore", sparse_output=False).fit(words(100, 1))
    feeds = [{"X": words(rows, 100 + rows)} for rows in ROWS]
    feeds[1]["X"][3, 0] = "violet"
    return made(model, feeds, lambda x: (model.transform(x),), [("X", StringTensorType([None, 2]))])


@export
def one_hot_numbers() -> Made:
    x = rng().integers(0, 5, (100, 3))
    model = OneHotEncoder(sparse_output=False, drop="first").fit(x)
    feeds = [{"X": np.random.default_rng(rows).integers(0, 5, (rows, 3))} for rows in ROWS]
    return made(model, feeds, lambda x: (model.transform(x),), [("X", Int64TensorType([None, 3]))])


@export
def ordinal_words() -> Made:
    x = SIZES[rng().integers(0, 3, (50, 1))].astype(object)
    model = OrdinalEncoder(categories=[[*SIZES]], handle_unknown="use_encoded_value", unknown_value=-1).fit(x)
    feeds = [{"X": SIZES[np.random.default_rng(rows).integers(0, 3, (rows, 1))].astype(object)} for rows in ROWS]
    feeds[1]["X"][0] = "enormous"
    return made(model, feeds, lambda x: (model.transform(x),), [("X", StringTensorType([None, 1]))])


@export
def label_words() -> Made:
    model = LabelEncoder().fit(COLOURS)
    feeds = [{"X": COLOURS[np.random.default_rng(rows).integers(0, 4, (rows,))].astype(object)} for rows in ROWS]
    return made(model, feeds, lambda x: (model.transform(x),), [("X", StringTensorType([None]))])


def texts(rows: int, seed: int) -> np.ndarray:
    r = np.random.default_rng(seed)
    return np.array([" ".join(WORDS[r.integers(0, WORDS.size, r.integers(3, 9))]) for _ in range(rows)], object).reshape(-1, 1)


def of_texts(model: Any, give: Callable[[Any], Sequence[Any]], **more: Any) -> Made:
    feeds = [{"X": texts(rows, 100 + rows)} for rows in ROWS]
    feeds[1]["X"][4, 0] = "Nothing KNOWN here, Wheel"
    return made(model, feeds, lambda x: give(x[:, 0]), [("X", StringTensorType([None, 1]))], **more)


@export
def word_counts() -> Made:
    model = CountVectorizer(token_pattern=r"\b\w+\b").fit(texts(40, 1)[:, 0])
    return of_texts(model, lambda x: (model.transform(x).toarray(),), options={CountVectorizer: {"tokenexp": "[a-zA-Z0-9_]+", "locale": "C"}})


@export
def word_weights() -> Made:
    """Pairs of words too, and what scikit-learn splits texts by."""
    model = TfidfVectorizer(ngram_range=(1, 2), max_features=60).fit(texts(40, 1)[:, 0])
    return of_texts(model, lambda x: (model.transform(x).toarray(),))


@export
def text_classes() -> Made:
    known = texts(60, 1)[:, 0]
    model = make_pipeline(TfidfVectorizer(sublinear_tf=False), MultinomialNB()).fit(known, ["wheel" in t for t in known])
    return of_texts(model, lambda x: (model.predict(x).astype(np.int64), zipped(model, model.predict_proba(x))), options={id(model): {"zipmap": True}, TfidfVectorizer: {"locale": "C"}})


@export
def char_weights() -> Made:
    model = TfidfVectorizer(analyzer="char", ngram_range=(2, 2), max_features=50).fit(texts(40, 1)[:, 0])
    return of_texts(model, lambda x: (model.transform(x).toarray(),), options={TfidfVectorizer: {"locale": "C"}})


@export
def dictionaries() -> Made:
    known = [{"wheel": 1.0, "jet": 2.0}, {"jet": 3.0, "nozzle": 0.5}, {"bucket": 1.5}]
    model = DictVectorizer(sparse=False).fit(known)
    feeds = [{"X": known[1]}]
    return (to_onnx(model, initial_types=[("X", DictionaryType(StringTensorType([1]), FloatTensorType([1])))], target_opset={"": 18, "ai.onnx.ml": 3}), feeds,
            [(model.transform(known[1]),)])


if __name__ == "__main__":
    run()
