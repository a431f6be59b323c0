"""Pipelines of scikit-learn over texts, tables of several types and dictionaries, by skl2onnx: python scikit_tables.py
[NAME…], with the packages of scikit.py, and pandas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from keep import Made, export, run
from scikit_data import ROWS, made, rng, zipped
from skl2onnx import to_onnx
from skl2onnx.common.data_types import DictionaryType, FloatTensorType, Int64TensorType, StringTensorType
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import RandomForestRegressor
from sklearn.feature_extraction import DictVectorizer
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import MultinomialNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import LabelEncoder, OneHotEncoder, OrdinalEncoder, StandardScaler

WORDS = np.array(
    "a stream of water turns the wheel of the mill , its buckets split the jet in two and send it back".split()
)
COLOURS, SIZES = np.array(["red", "green", "blue", "grün"]), np.array(["small", "medium", "large"])


def people(rows: int, seed: int) -> dict[str, np.ndarray]:
    r = np.random.default_rng(seed)
    return {
        "age": r.uniform(1, 90, (rows, 1)).astype(np.float32),
        "height": r.normal(1.7, 0.2, (rows, 1)).astype(np.float32),
        "children": r.integers(0, 4, (rows, 1)),
        "colour": COLOURS[r.integers(0, 4, (rows, 1))].astype(object),
        "size": SIZES[r.integers(0, 3, (rows, 1))].astype(object),
    }


def frame(columns: dict[str, np.ndarray]) -> pd.DataFrame:
    return pd.DataFrame({k: v[:, 0] for k, v in columns.items()})


PEOPLE = [
    ("age", FloatTensorType([None, 1])),
    ("height", FloatTensorType([None, 1])),
    ("children", Int64TensorType([None, 1])),
    ("colour", StringTensorType([None, 1])),
    ("size", StringTensorType([None, 1])),
]


@export
def columns() -> Made:
    """A table with numbers and texts, an input per column, as the guide of skl2onnx has it."""
    known = frame(people(150, 1))
    steps = ColumnTransformer(
        [
            ("numbers", make_pipeline(SimpleImputer(), StandardScaler()), ["age", "height"]),
            ("words", OneHotEncoder(handle_unknown="ignore"), ["colour", "size"]),
        ],
        remainder="passthrough",
    )
    model = make_pipeline(steps, LogisticRegression())
    model.fit(known, (known.age > 40) ^ (known.colour == "red"))
    feeds = [people(rows, 100 + rows) for rows in ROWS]
    feeds[1]["colour"][2] = "never seen"
    return (
        to_onnx(
            model, initial_types=PEOPLE, target_opset={"": 18, "ai.onnx.ml": 3}, options={id(model): {"zipmap": True}}
        ),
        feeds,
        [(model.predict(frame(f)).astype(np.int64), zipped(model, model.predict_proba(frame(f)))) for f in feeds],
    )


@export
def columns_ordinal() -> Made:
    known = frame(people(150, 1))
    steps = ColumnTransformer(
        [("numbers", "passthrough", ["age", "children"]), ("words", OrdinalEncoder(), ["colour", "size"])]
    )
    model = make_pipeline(steps, RandomForestRegressor(4, max_depth=3, random_state=0)).fit(known, known.height)
    feeds = [people(rows, 100 + rows) for rows in ROWS]
    used = ("age", "children", "colour", "size")
    return (
        to_onnx(model, initial_types=[t for t in PEOPLE if t[0] in used], target_opset={"": 18, "ai.onnx.ml": 3}),
        [{k: f[k] for k in used} for f in feeds],
        [(model.predict(frame(f)).reshape(-1, 1),) for f in feeds],
    )


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
    return np.array(
        [" ".join(WORDS[r.integers(0, WORDS.size, r.integers(3, 9))]) for _ in range(rows)], object
    ).reshape(-1, 1)


def of_texts(model: Any, give: Callable[[Any], Sequence[Any]], **more: Any) -> Made:
    feeds = [{"X": texts(rows, 100 + rows)} for rows in ROWS]
    feeds[1]["X"][4, 0] = "Nothing KNOWN here, Wheel"
    return made(model, feeds, lambda x: give(x[:, 0]), [("X", StringTensorType([None, 1]))], **more)


@export
def word_counts() -> Made:
    model = CountVectorizer(token_pattern=r"\b\w+\b").fit(texts(40, 1)[:, 0])
    return of_texts(
        model,
        lambda x: (model.transform(x).toarray(),),
        options={CountVectorizer: {"tokenexp": "[a-zA-Z0-9_]+", "locale": "C"}},
    )


@export
def word_weights() -> Made:
    """Pairs of words too, and what scikit-learn splits texts by."""
    model = TfidfVectorizer(ngram_range=(1, 2), max_features=60).fit(texts(40, 1)[:, 0])
    return of_texts(model, lambda x: (model.transform(x).toarray(),))


@export
def text_classes() -> Made:
    known = texts(60, 1)[:, 0]
    model = make_pipeline(TfidfVectorizer(sublinear_tf=False), MultinomialNB()).fit(
        known, ["wheel" in t for t in known]
    )
    return of_texts(
        model,
        lambda x: (model.predict(x).astype(np.int64), zipped(model, model.predict_proba(x))),
        options={id(model): {"zipmap": True}, TfidfVectorizer: {"locale": "C"}},
    )


@export
def char_weights() -> Made:
    model = TfidfVectorizer(analyzer="char", ngram_range=(2, 2), max_features=50).fit(texts(40, 1)[:, 0])
    return of_texts(model, lambda x: (model.transform(x).toarray(),), options={TfidfVectorizer: {"locale": "C"}})


@export
def dictionaries() -> Made:
    known = [{"wheel": 1.0, "jet": 2.0}, {"jet": 3.0, "nozzle": 0.5}, {"bucket": 1.5}]
    model = DictVectorizer(sparse=False).fit(known)
    feeds = [{"X": known[1]}]
    return (
        to_onnx(
            model,
            initial_types=[("X", DictionaryType(StringTensorType([1]), FloatTensorType([1])))],
            target_opset={"": 18, "ai.onnx.ml": 3},
        ),
        feeds,
        [(model.transform(known[1]),)],
    )


if __name__ == "__main__":
    run()
