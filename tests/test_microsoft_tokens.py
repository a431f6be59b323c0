"""ONNX Runtime's hashes, n-grams and words, beside loops over Python's numbers."""

from __future__ import annotations

import numpy as np
import pytest
from microsoft import Cases, check_refusal, floats, judge, node
from onnx_models import MICROSOFT, one_node

import pelton
from pelton.reference.functions import FUNCTIONS

CASES = Cases()
WORD = (1 << 32) - 1


# --- MurmurHash3


def murmur(data: bytes, seed: int) -> int:
    def turn(v: int, by: int) -> int:
        return (v << by | v >> 32 - by) & WORD

    h = seed
    for i in range(0, len(data), 4):
        k = int.from_bytes(data[i : i + 4], "little")
        h ^= turn(k * 0xCC9E2D51 & WORD, 15) * 0x1B873593 & WORD
        h = (turn(h, 13) * 5 + 0xE6546B64) & WORD
    h ^= len(data)
    h = (h ^ h >> 16) * 0x85EBCA6B & WORD
    h = (h ^ h >> 13) * 0xC2B2AE35 & WORD
    return h ^ h >> 16


def test_the_loop_gives_what_is_published():
    """Values of Appleby's MurmurHash3_x86_32, as scikit-learn's tests have them."""
    assert murmur((3).to_bytes(4, "little"), 0) == 847579505
    assert murmur((3).to_bytes(4, "little"), 42) == 2471885347


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64", "float32", "float64"])
@pytest.mark.parametrize("positive", [0, 1])
def test_hashes_of_all_types(dtype, positive):
    def make(rng):
        x = (rng.standard_normal((3, 5)) * 1e6).astype(np.int64).astype(dtype)
        want = np.array([murmur(v.tobytes(), 77) for v in x.reshape(-1)], np.uint32).reshape(x.shape)
        attrs = {"seed": 77} | ({} if positive else {"positive": 0})
        return node("MurmurHash3", [("fed", x)], [want if positive else want.view(np.int32)], **attrs)

    judge(make)


@CASES.add
def hashes_without_a_seed(rng):
    return node("MurmurHash3", [("fed", np.array([3], np.int32))], [np.array([847579505], np.uint32)])


def test_hashes_of_strings_are_refused():
    m = one_node("MurmurHash3", "string[2]", domain=MICROSOFT)
    check_refusal(lambda rng: (m, None, None), "of strings is not supported")


# --- n-grams


@pytest.mark.parametrize("length", [1, 2, 3, 12, 14])
def test_no_n_gram_repeats(length):
    def make(rng):
        ids, scores = rng.integers(0, 3, (3, 12)), floats(rng, 3, 9)
        want = scores.copy()
        for row, found in zip(ids, want):
            for i in range(len(row) - length + 1):
                if (row[i : i + length - 1] == row[len(row) - length + 1 :]).all():
                    found[row[i + length - 1]] = -np.inf
        return node("NGramRepeatBlock", [("fed", ids), ("fed", scores)], [want], ngram_size=length)

    judge(make)


@CASES.add
def n_gram_repeat_block(rng):
    scores, want = np.zeros((1, 3), np.float32), np.array([[0, 0, -np.inf]])
    return node("NGramRepeatBlock", [("fed", np.array([[0, 1, 2, 0, 1]])), ("fed", scores)], [want], ngram_size=3)


def hashed(ids, past, factors, sizes, offsets, missing, eos=None, segments=None, heads=2):
    """By loops: the hashes of a sequence, and what is kept of it. segments: of the past and the sequence."""
    history = len(factors) - 1
    whole = [*([missing] * history if past is None else past), *ids]
    rows = []
    for t in range(len(ids)):
        tokens, gone = [int(ids[t])], False
        for k in range(1, history + 1):
            at = history + t - k
            gone = gone or eos is not None and whole[at] == eos
            if segments is not None:
                gone = gone or segments[at + 1] != segments[at]
            tokens.append(int(missing if gone else whole[at]))
        row, bits = [], 64 if ids.dtype == np.int64 else 32
        for k in range(1, history + 1):
            mix = 0
            for token, factor in zip(tokens[: k + 1], factors):
                mix ^= int(token) * int(factor)
            mix = (mix + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)  # as integers of so many bits wrap
            row += [mix % int(sizes[(k - 1) * heads + h]) for h in range(heads)]
        rows.append(row)
    offsets = 0 if offsets is None else offsets
    return np.array(rows) + offsets, np.array(whole[len(whole) - history :])


FACTORS, SIZES, OFFSETS = [10007, 2**30 + 11, 40009], [101, 103, 107, 109], [0, 101, 204, 311]
HOW = dict(pad_id=4, n_head_per_ngram=2, max_ngram_size=3)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("past, eos, cut", [(0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0), (0, 0, 1), (1, 1, 1)])
def test_hashes_of_n_grams(dtype, past, eos, cut):
    def make(rng):
        ids, before = rng.integers(0, 5, (2, 9)).astype(dtype), rng.integers(0, 5, (2, 2)).astype(dtype)
        segments = np.sort(rng.integers(0, 4, (2, 9)), 1).astype(np.int32)
        consts = [np.array(v, dtype) for v in (FACTORS, SIZES)]
        offsets = np.array(OFFSETS, dtype) if past else None
        wants = [
            hashed(
                ids[b],
                before[b] if past else None,
                *consts,
                offsets,
                3 if eos else 4,
                3 if eos else None,
                [segments[b, 0]] * 2 + list(segments[b]) if cut else None,
            )
            for b in range(2)
        ]
        operands = [
            ("fed", ids),
            *consts,
            ("fed", before) if past else None,
            offsets,
            np.array(3, dtype) if eos else None,
            ("fed", segments) if cut else None,
        ]
        return node("NGramHashMapping", operands, [np.stack(w) for w in zip(*wants)], reset_on_eos=eos, **HOW)

    judge(make)


@CASES.add
def n_gram_hash_mapping(rng):
    ids = rng.integers(0, 9, (1, 4))
    want, kept = hashed(ids[0], None, FACTORS, SIZES, None, 4)
    return node("NGramHashMapping", [("fed", ids), np.array(FACTORS), np.array(SIZES)], [want[None], kept[None]], **HOW)


LIMITS = [0, 1, 6, 11]


@pytest.mark.parametrize("past, eos, cut", [(0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 1)])
def test_hashes_of_sequences_in_one(past, eos, cut):
    """Each sequence gives what it gives by itself; captured are the states after its first tokens."""

    def make(rng):
        dtype = np.int32
        ids, before = rng.integers(0, 5, 11).astype(dtype), rng.integers(0, 5, (3, 2)).astype(dtype)
        segments, old = np.sort(rng.integers(0, 4, 11)).astype(dtype), np.zeros((3, 2), dtype)
        count, missing = np.array([1, 0, 9], dtype), 3 if eos else 4
        consts = [np.array(v, dtype) for v in (FACTORS, SIZES)]
        offsets = np.array(OFFSETS, dtype) if past else None
        hashes, kept, kept_segments, states = [], [], [], np.full((3, 4, 2), missing)
        for b, (start, end) in enumerate(zip(LIMITS, LIMITS[1:])):
            own, whole = before[b] if past else None, [*(before[b] if past else [missing] * 2), *ids[start:end]]
            marks = [*(old[b] if past else [segments[start]] * 2), *segments[start:end]]
            found = hashed(ids[start:end], own, *consts, offsets, missing, 3 if eos else None, marks if cut else None)
            hashes.append(found[0])
            kept.append(found[1])
            kept_segments.append(marks[-2:])
            for slot in range(min(count[b], 4, end - start)):
                states[b, slot] = whole[slot + 1 : slot + 3]
        operands = [
            ("fed", ids),
            *consts,
            ("fed", np.array(LIMITS, dtype)),
            ("fed", before) if past else None,
            offsets,
            np.array(3, dtype) if eos else None,
            ("fed", segments) if cut else None,
            ("fed", old) if past and cut else None,
            ("fed", count),
        ]
        wants = [np.concatenate(hashes), np.stack(kept), np.array(kept_segments) if cut else None, states]
        return node("VarlenNGramHashMapping", operands, wants, reset_on_eos=eos, state_update_capacity=4, **HOW)

    judge(make)


@CASES.add
def varlen_n_gram_hash_mapping(rng):
    ids = rng.integers(0, 9, 3).astype(np.int32)
    want, kept = hashed(ids, None, FACTORS, SIZES, None, 4)
    consts = [np.array(v, np.int32) for v in (FACTORS, SIZES, [0, 3])]
    return node("VarlenNGramHashMapping", [("fed", ids), *consts], [want, kept[None]], **HOW)


# --- words


@CASES.add
def words_of_characters(rng):
    """A gap does not end a word; one that begins with a gap is none; a short one has one window."""
    words = rng.integers(1, 20, (6, 9)).astype(np.int32)
    for i, length in enumerate((9, 5, 1, 3, 4)):
        words[i, length:] = 0
    words[1, 2] = words[5, 0] = 0
    w, bias, table = floats(rng, 7, 1, 3, 4), floats(rng, 7), floats(rng, 20, 4)
    want = np.zeros((6, 7))
    for i, word in enumerate(words):
        length = max((word > 0).sum(), 3) if word[0] else 2
        rows = table[word].astype(np.float64)
        for at in range(length - 2):
            y = np.tanh(np.einsum("fke,ke->f", w[:, 0], rows[at : at + 3]) + bias)
            want[i] = y if at == 0 else np.maximum(want[i], y)
    return node("WordConvEmbedding", [("fed", words), w, bias, table], [want], conv_window_size=3, embedding_size=7)


# --- as long as the data says

OF_UNKNOWN_LENGTH = {"Unique": 3, "BifurcationDetector": 2, "DynamicTimeWarping": 1}  # and their outputs


def run(op: str, *feeds: np.ndarray, **attrs) -> list[np.ndarray]:
    names = {"float32": "f32", "int64": "i64"}
    types = [f"{names[a.dtype.name]}{[*a.shape]}" for a in feeds]
    engine = pelton.build(
        one_node(op, *types, outputs=OF_UNKNOWN_LENGTH[op], domain=MICROSOFT, **attrs), level=0, cache_dir=None
    )
    return list(engine.run({f"x{i}": a for i, a in enumerate(feeds)}).values())


def test_values_in_the_order_in_which_they_come():
    values, places, counts = run("Unique", np.array([2, 1, 1, 3, 4, 3], np.float32))
    assert values.tolist() == [2, 1, 3, 4] and places.tolist() == [0, 1, 1, 2, 3, 2] and counts.tolist() == [1, 2, 2, 1]
    assert [a.dtype.name for a in (values, places, counts)] == ["float32", "int64", "int64"]


def warped(costs: np.ndarray) -> np.ndarray:
    rows, columns = costs.shape
    total, came = np.full((rows + 1, columns + 1), np.inf, np.float32), {}
    total[0, 0] = 0
    for i, j in np.ndindex(rows, columns):
        both, above, left = total[i, j], total[i, j + 1], total[i + 1, j]
        came[i, j] = (0, 1)
        if both < min(above, left):
            came[i, j] = (1, 1)
        elif above < min(both, left):
            came[i, j] = (1, 0)
        total[i + 1, j + 1] = costs[i, j] + total[i + 1 - came[i, j][0], j + 1 - came[i, j][1]]
    path, at = [], (rows - 1, columns - 1)
    while min(at) >= 0:
        path.append(at)
        at = at[0] - came[at][0], at[1] - came[at][1]
    return np.array(path[::-1]).T


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (9, 4), (13, 17)])
def test_cheapest_paths(shape):
    rng = np.random.default_rng(0)
    for costs in (floats(rng, *shape), np.round(floats(rng, *shape)), np.zeros(shape, np.float32)):
        (found,) = FUNCTIONS["warped"](costs)
        assert found.dtype == np.int32 and np.array_equal(found, warped(costs))
    (found,) = run("DynamicTimeWarping", costs[None])
    assert found.dtype == np.int32 and np.array_equal(found, warped(costs))


@pytest.mark.parametrize(
    "current, predicted, tokens",
    [
        ([1], None, [1]),
        ([2, 5], None, [2, 5]),
        ([9, 3], None, [9, 3]),
        ([1], [5, 3, 4, 2, 8, 0, 0, 0, 1], [1, 5, 3, 4, 2, 8]),  # the first that differs is kept
        ([1], [5, 3, 4, 2, 7, 5, 3, 9, 6], [1, 5, 3, 4, 2, 7, 5, 3, 9, 6]),  # all of the source, and one more
        ([1], [5, 3, 7, 0, 0, 0, 0, 0, 0], [1, 5, 3, 7]),
    ],
)
def test_predicted_tokens(current, predicted, tokens):
    source, matched = np.array([1, 5, 3, 4, 2, 7, 5, 3, 9]), np.array([1])
    feeds = [source, np.array(current), matched] + ([] if predicted is None else [np.array(predicted)])
    got, at = run("BifurcationDetector", *feeds, min_ngram_size=1, max_ngram_size=3)
    assert got.tolist() == tokens and at.tolist() == [next_place(source.tolist(), tokens)]


def next_place(source: list[int], tokens: list[int]) -> int:
    """Where the source goes on behind the last n-gram, which is longer as long as it is there more than once."""
    found = -1
    for length in range(1, min(3, len(tokens)) + 1):
        places = [i for i in range(len(source) - length + 1) if source[i : i + length] == tokens[-length:]]
        if not places:
            return found
        found = places[0] + length
        if found >= len(source):
            return found
        found = -1 if len(places) > 1 else found
    return found


@pytest.mark.parametrize("name", CASES)
def test_as_documented(name):
    judge(CASES[name])
