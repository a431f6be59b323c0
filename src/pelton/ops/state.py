"""Linear attention: a state for each sequence, which each token updates and reads."""

from __future__ import annotations

import numpy as np

from pelton.ir.types import TensorType

from .op import expect, expect_equal, structured


@structured(
    domain=(0.1, 0.9),
    examples=(
        (
            *("f32[5, 2, 3, 4]", "f32[5, 2, 4]", "f32[5, 2, 6]", "f32[5, 2, 4]", "f32[5, 2, 1]"),
            *("f32[9, 2, 4, 6]", "i64[5]"),
            {},
        ),
        (
            *("f32[3, 1, 1, 5]", "f32[3, 1, 5]", "f32[3, 1, 2]", "f32[3, 1, 1]", "f32[3, 1, 1]"),
            *("f32[9, 1, 5, 2]", "i64[3]"),
            dict(retrieve=False),
        ),
    ),
)
class delta_rule:
    """For each token of a sequence in turn, S = decay · S, d = beta · (V − KᵀS), S = S + K dᵀ and Y = Q S.

    Q is [tokens, heads, queries, keys], K [tokens, heads, keys], V [tokens, heads, values]; decay is one factor for
    each key or one for all, beta is [tokens, heads, 1]; states are [sequences, heads, keys, values]. `sequences` says
    which one each token is of, in order. Without `retrieve`, d = beta · V. The results are Y, the states behind the
    last tokens, and d of all tokens.
    """

    def infer(
        q: TensorType,
        k: TensorType,
        v: TensorType,
        decay: TensorType,
        beta: TensorType,
        state: TensorType,
        sequences: TensorType,
        *,
        retrieve: bool = True,
    ) -> tuple[TensorType, TensorType, TensorType]:
        ranks = [t.rank for t in (q, k, v, decay, beta, state, sequences)]
        expect(ranks == [4, 3, 3, 3, 3, 4, 1], "needs queries and states of rank 4, and one sequence for each token")
        expect(
            sequences.dtype.is_integer
            and all(t.dtype is q.dtype for t in (k, v, decay, beta, state))
            and q.dtype.is_float,
            "needs floats of one type, and integers as sequences",
        )
        tokens, heads, queries, keys = q.shape
        values = v.shape[2]
        expect_equal(sequences.shape[0], tokens, "needs a sequence for each token")
        expect_equal(k.shape, (tokens, heads, keys), "needs keys for each token and head")
        expect_equal(v.shape[:2], (tokens, heads), "needs values for each token and head")
        expect_equal(beta.shape, (tokens, heads, 1), "needs one beta for each token and head")
        expect_equal(decay.shape[:2], (tokens, heads), "needs decays for each token and head")
        expect(decay.shape[2] in (1, keys), f"needs one decay or {keys} for each head")
        expect_equal(state.shape[1:], (heads, keys, values), "needs states of keys and values")
        return q.with_shape((tokens, heads, queries, values)), state, v

    def reference(q, k, v, decay, beta, state, sequences, *, retrieve=True):
        state, y, deltas = state.copy(), np.zeros((*q.shape[:3], v.shape[2]), q.dtype), np.zeros_like(v)
        sequences = np.where(sequences < 0, sequences + len(state), sequences)  # negative ones count from the end
        counts = np.bincount(sequences, minlength=len(state))
        order, starts = np.argsort(sequences, kind="stable"), np.cumsum(counts) - counts
        for i in range(counts.max(initial=0)):  # the i-th token of each sequence that has one
            of = np.flatnonzero(counts > i)
            at = order[starts[of] + i]
            s = state[of] * decay[at][..., None]
            held = np.einsum("nhk,nhkv->nhv", k[at], s) if retrieve else 0
            deltas[at] = beta[at] * (v[at] - held)
            s = s + k[at][..., None] * deltas[at][..., None, :]
            y[at], state[of] = np.einsum("nhqk,nhkv->nhqv", q[at], s), s
        return y, state, deltas

    def flops(q: TensorType, k: TensorType, v: TensorType, *others: TensorType, **attrs) -> int:
        return 2 * (q.size + 3 * k.size) * v.shape[2]
