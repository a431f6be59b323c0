"""Heads of 4 bits in blocks: rounded to nearest, or by calibration.

Calibration chooses scales that make the squared error small, weighted by the second moments of the rows that the head
multiplies, and then codes by GPTQ (arXiv 2210.17323): column by column, later columns make up for the error of earlier
ones, as far as the rows' elements depend on each other.
"""

from __future__ import annotations

import numpy as np

from benchmarks.llm.llama import BLOCK, Blocks

LEAST, MOST = -8, 7  # codes of 4 bits
FACTORS = np.linspace(0.6, 1.15, 24, dtype=np.float32)  # of the scale by which a block's largest element is −8
DAMPING = 0.01  # of the mean second moment
COLUMNS = 64  # between corrections of all later ones


def _nearest(w: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(w / scale), LEAST, MOST)


def _scales(blocks: np.ndarray) -> np.ndarray:
    """Returns the scales by which the largest elements of blocks, [rows, blocks, 32], are −8."""
    largest = np.abs(blocks).argmax(2)[..., None]
    return _stored(np.take_along_axis(blocks, largest, 2)[..., 0] / LEAST)


def _stored(scales: np.ndarray) -> np.ndarray:
    """Returns scales as f16 holds them, and 1 for 0."""
    half = scales.astype(np.float16).astype(np.float32)
    return np.where(half == 0, np.float32(1), half)


def _searched_scales(blocks: np.ndarray, moments: np.ndarray) -> np.ndarray:
    """Returns the scales with the least error. moments: those of elements, [blocks, 32]."""
    first = _scales(blocks)
    best, least = first, np.full(first.shape, np.inf, np.float32)
    for factor in FACTORS:
        scale = _stored(first * factor)
        error = _nearest(blocks, scale[..., None]) * scale[..., None] - blocks
        weighted = np.einsum("nbk,bk->nb", np.square(error), moments)
        best, least = np.where(weighted < least, scale, best), np.minimum(weighted, least)
    return best


def _compensated(w: np.ndarray, scale: np.ndarray, moments: np.ndarray) -> np.ndarray:
    """Returns codes by GPTQ, in the order of falling second moments. moments: those of pairs of elements."""
    inner = len(moments)
    order = np.argsort(-np.diag(moments))
    damped = moments + np.eye(inner) * DAMPING * np.diag(moments).mean()
    factor = np.linalg.cholesky(np.linalg.inv(damped[np.ix_(order, order)])).T.astype(np.float32)
    columns, scales = np.ascontiguousarray(w.T[order]), np.ascontiguousarray(scale.T)
    codes = np.empty((inner, len(w)), np.float32)
    for start in range(0, inner, COLUMNS):
        end = min(start + COLUMNS, inner)
        errors = np.empty((end - start, len(w)), np.float32)
        for k in range(start, end):
            by = scales[order[k] // BLOCK]
            code = codes[order[k]] = _nearest(columns[k], by)
            errors[k - start] = error = (columns[k] - code * by) / factor[k, k]
            columns[k + 1 : end] -= np.outer(factor[k, k + 1 : end], error)
        columns[end:] -= factor[start:end, end:].T @ errors
    return codes.T


def _blocks(codes: np.ndarray, scale: np.ndarray) -> Blocks:
    return Blocks((codes - LEAST).astype(np.uint8), scale.astype(np.float16), None, 4)


def rounded(head: np.ndarray) -> Blocks:
    """Rounds a head, [tokens, width] in f32, to nearest."""
    scale = _scales(head.reshape(len(head), -1, BLOCK))
    return _blocks(_nearest(head, scale.repeat(BLOCK, 1)), scale)


def calibrated(head: np.ndarray, rows: np.ndarray) -> Blocks:
    """Rounds a head, [tokens, width] in f32. rows: what it multiplies on a text for calibration, [any, width]."""
    wide = rows.astype(np.float64)
    moments = wide.T @ wide / len(rows)
    of_elements = np.diag(moments).astype(np.float32).reshape(-1, BLOCK)
    scale = _searched_scales(head.reshape(len(head), -1, BLOCK), of_elements)
    return _blocks(_compensated(head, scale, moments), scale)
