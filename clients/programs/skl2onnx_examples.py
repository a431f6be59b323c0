"""skl2onnx converts what its documentation shows (trees, pipelines with texts and columns, Gaussian processes,
neighbours), and the models predict."""

import numpy as np
import onnxruntime as rt
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType, StringTensorType
from sklearn.cluster import KMeans
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_diabetes, load_iris
from sklearn.decomposition import PCA
from sklearn.ensemble import GradientBoostingRegressor, RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC
from report import report

IRIS, DIABETES = load_iris(return_X_y=True), load_diabetes(return_X_y=True)
X, R = IRIS[0].astype(np.float32), DIABETES[0].astype(np.float32)
TEXTS = np.array([["the engine turns"], ["water drives the wheel"], ["a wheel of water"], ["engines and wheels"]] * 8)
COLUMNS = {"number": np.arange(32, dtype=np.float32).reshape(-1, 1), "kind": np.array([["a"], ["b"], ["c"], ["b"]] * 8)}
HALF = np.arange(32) % 2


def models() -> dict:
    """Name → (model of ONNX, what it is fed)."""
    made = {}
    for estimator in (
        RandomForestClassifier(20, random_state=0),
        LogisticRegression(max_iter=500),
        KNeighborsClassifier(3),
        SVC(probability=True, random_state=0),
        MLPClassifier((16,), max_iter=100, random_state=0),
        make_pipeline(StandardScaler(), PCA(2), LogisticRegression()),
        KMeans(3, n_init=3, random_state=0),
    ):
        made[str(estimator).replace("\n", "")] = to_onnx(estimator.fit(X, IRIS[1]), X[:1]), {"X": X}
    for estimator in (
        GradientBoostingRegressor(n_estimators=20, random_state=0),
        GaussianProcessRegressor(ConstantKernel(1.0) * RBF(1.0), alpha=1.0),
    ):
        made[str(estimator)] = to_onnx(estimator.fit(R[:60], DIABETES[1][:60]), R[:1]), {"X": R[60:90]}
    words = make_pipeline(TfidfVectorizer(lowercase=False), LogisticRegression()).fit(TEXTS[:, 0], HALF)
    made["TfidfVectorizer"] = to_onnx(words, initial_types=[("text", StringTensorType([None, 1]))]), {"text": TEXTS}
    import pandas

    frame = pandas.DataFrame({name: column[:, 0] for name, column in COLUMNS.items()})
    columns = make_pipeline(
        ColumnTransformer([("n", StandardScaler(), ["number"]), ("k", OneHotEncoder(), ["kind"])]), LogisticRegression()
    ).fit(frame, HALF)
    made["ColumnTransformer"] = (
        to_onnx(columns, initial_types=[("number", FloatTensorType([None, 1])), ("kind", StringTensorType([None, 1]))]),
        COLUMNS,
    )
    return made


def make() -> dict:
    return {
        name: (rt.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]), fed)
        for name, (model, fed) in MODELS.items()
    }


MODELS = models()
report("skl2onnx", make, lambda sessions: {name: session.run(None, fed) for name, (session, fed) in sessions.items()})
