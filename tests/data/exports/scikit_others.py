"""Neighbours, mixtures, clusters and networks of scikit-learn, for scikit.py."""

from __future__ import annotations

from keep import Made, export
from scikit_data import classes, classifier, fresh, made, numbers, regressor, table
from sklearn.cluster import KMeans, MiniBatchKMeans
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from sklearn.mixture import GaussianMixture
from sklearn.naive_bayes import BernoulliNB, GaussianNB
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor, LocalOutlierFactor
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    StandardScaler,
)


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
