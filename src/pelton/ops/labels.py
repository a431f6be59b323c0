"""Ops of classical models: string lookups, and class probabilities from pairwise ones."""

from __future__ import annotations

import numpy as np

from pelton.ir.types import I64, STRING, TensorType

from .op import expect, structured

ROUNDS = 100  # minimum rounds of `coupled`


@structured(examples=(("string[3, 4]", "string[5]"), ("string[7]", "string[1]")))
class lookup:
    """Y = the index of each string of X among the keys (the last of equal ones), −1 if it is none of them."""

    def infer(x: TensorType, keys: TensorType) -> TensorType:
        expect(x.dtype is keys.dtype is STRING and keys.rank == 1, "needs texts, and a vector of texts")
        return TensorType(I64, x.shape)

    def reference(x, keys):
        places = {key: i for i, key in enumerate(keys.tolist())}
        return np.fromiter((places.get(text, -1) for text in x.reshape(-1).tolist()), np.int64, x.size).reshape(x.shape)


@structured(examples=(("f32[5, 3]", dict(classes=3)), ("f32[7, 1]", dict(classes=2)), ("f32[2, 10]", dict(classes=5))))
class coupled:
    """P[row, class]: the probabilities that fit best to R[row, pair].

    R is the probability of the first class of each pair (0, 1), (0, 2), …, (1, 2), … against the second. Wu, Lin and
    Weng, Probability Estimates for Multi-class Classification by Pairwise Coupling (2004), the second approach, as in
    libsvm: rounds over all classes until no error is larger than 0.005 / classes. That is far from exact, so the number
    of rounds is part of the definition.
    """

    def infer(r: TensorType, *, classes: int) -> TensorType:
        expect(r.rank == 2 and r.dtype.is_float and classes >= 2, "needs rows of probabilities, and 2 classes or more")
        expect(r.shape[1] == classes * (classes - 1) // 2, f"needs a probability for each pair of {classes} classes")
        return r.with_shape((r.shape[0], classes))

    def reference(r, *, classes):
        first, second = np.triu_indices(classes, 1)
        pairs = np.zeros((len(r), classes, classes), r.dtype)
        pairs[:, first, second] = np.clip(r, 1e-7, 1 - 1e-7)
        pairs[:, second, first] = 1 - pairs[:, first, second]
        q = -pairs.transpose(0, 2, 1) * pairs
        every = np.arange(classes)
        q[:, every, every] = (pairs**2).sum(1)
        p = np.full((len(r), classes), 1 / classes, r.dtype)
        going = np.arange(len(r))
        for _ in range(max(ROUNDS, classes)):
            at, of = p[going], q[going]
            qp = np.einsum("rij,rj->ri", of, at)
            pqp = (at * qp).sum(1)
            left = np.abs(qp - pqp[:, None]).max(1, initial=0) >= 0.005 / classes
            going, at, of, qp, pqp = going[left], at[left], of[left], qp[left], pqp[left]
            if not going.size:
                break
            for t in range(classes):
                step = (pqp - qp[:, t]) / of[:, t, t]
                at[:, t] += step
                pqp = (pqp + step * (step * of[:, t, t] + 2 * qp[:, t])) / (1 + step) ** 2
                qp = (qp + step[:, None] * of[:, t]) / (1 + step)[:, None]
                at /= (1 + step)[:, None]
            p[going] = at
        return p

    def flops(r: TensorType, *, classes: int) -> int:
        """Counts a product with the matrix and two updates of it per class, for an estimated ten rounds."""
        return r.shape[0] * 10 * 8 * classes * classes
