"""Sizes known at run time: arithmetic against numbers, canonical forms, bounds, decisions, and the text form."""

from __future__ import annotations

import random

import pytest

from pelton.ir import dims
from pelton.ir.dims import Dim, Undecided, at, bounds, equal, maximum, minimum, symbol, symbols, optimum
from pelton.ir.dims_text import parse

N, B, S, P = symbol("n", 1, 8, 64), symbol("batch"), symbol("s", 1, 16), symbol("p", 0, 0)
KNOWN = {"n": N, "batch": B, "s": S, "p": P, "h": symbol("h", 3, 224, 1024)}


def drawn(rng: random.Random, depth: int):
    """(size, the function of numbers that it should be): built side by side."""
    if depth == 0 or rng.random() < 0.2:
        if rng.random() < 0.4:
            k = rng.randrange(-3, 8)
            return k, lambda v: k
        name = rng.choice(list(KNOWN))
        return KNOWN[name], lambda v: v[name]
    (a, f), (b, g) = drawn(rng, depth - 1), drawn(rng, depth - 1)
    k = rng.randrange(1, 7)
    return rng.choice(
        [
            (a + b, lambda v: f(v) + g(v)),
            (a - b, lambda v: f(v) - g(v)),
            (a * b, lambda v: f(v) * g(v)),
            (-a, lambda v: -f(v)),
            (a // k, lambda v: f(v) // k),
            (a % k, lambda v: f(v) % k),
            (maximum(a, b), lambda v: max(f(v), g(v))),
            (minimum(a, b, k), lambda v: min(f(v), g(v), k)),
        ]
    )


def values(rng: random.Random) -> dict[str, int]:
    return {
        s.name: rng.choice([s.minimum, rng.randint(s.minimum, min(s.maximum, 40)), min(s.maximum, 40)])
        for d in KNOWN.values()
        for s in symbols(d)
    }


@pytest.mark.parametrize("seed", range(400))
def test_arithmetic_is_that_of_numbers_within_the_bounds(seed):
    rng = random.Random(seed)
    size, number = drawn(rng, 4)
    low, high = bounds(size)
    for _ in range(20):
        v = values(rng)
        assert at(size, v) == number(v), f"{size} at {v}"
        assert low <= at(size, v) <= high, f"{size} at {v} is outside of {low} to {high}"


@pytest.mark.parametrize("seed", range(200))
def test_texts_parse_back(seed):
    size, _ = drawn(random.Random(seed), 4)
    assert parse(str(size), KNOWN) == size


@pytest.mark.parametrize("seed", range(200))
def test_the_ring_is_canonical(seed):
    rng = random.Random(seed)
    (a, _), (b, _), (c, _) = (drawn(rng, 2) for _ in range(3))
    assert a * (b + c) == c * a + b * a and a - a == 0 and (a + b) - b == a and hash(a + b) == hash(b + a)
    if isinstance(b, Dim) and bounds(b)[0] >= 1:
        assert (a * b) // b == a and (a * b) % b == 0


@pytest.mark.parametrize(
    "one, other",
    [
        ("n // 2 // 3", "n // 6"),
        ("(2*n + 1) // 2", "n"),
        ("(4*n + 3) // 6", "(2*n + 1) // 3"),
        ("-n // 4", "-((n + 3) // 4)"),
        ("max(n, n + 1, 3)", "max(n + 1, 3)"),
        ("min(n, 64)", "n"),
        ("(s + p)*(n + 2) // (s + p)", "n + 2"),
        ("n + (5 - n % 5) % 5", "((n + 4) // 5) * 5"),
        ("(n - 1) // 2 + 1", "(n + 1) // 2"),
        ("min(n // 2, (n + 1) // 2)", "n // 2"),
        ("max(min(n, s), s)", "s"),
        ("(n + 6) % 4", "(n + 2) % 4"),
        ("mod(n, 100)", "n"),
    ],
)
def test_equal_sizes_have_one_form(one, other):
    assert parse(one, KNOWN) == parse(other, KNOWN)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("n", (1, 64)),
        ("h - 2*(h // 2)", (0, 1)),
        ("n - 4*((n + 3) // 4)", (-3, 0)),
        ("max(n, s) - s", (0, 63)),
        ("min(s, n) - n", (-63, 0)),
        ("h // 2 - (h + 1) // 2", (-1, 0)),
        ("(h - 1) // 2", (1, 511)),
        ("n*h - 3*n", (0, 64 * 1021)),
        ("n*h*h - 9*n", (0, 64 * (1024**2 - 9))),
    ],
)
def test_bounds_know_what_belongs_together(text, expected):
    low, high = bounds(parse(text, KNOWN))
    assert (low, high) == expected


def test_comparisons_are_decided_by_bounds_or_not_at_all():
    assert N > 0 and N <= 64 and not N > 64 and 2 * N >= N and S + P >= P and N != S and N != 4 and bool(N - 1)
    assert equal(N + 1, 1 + N) and not equal(N, 0) and not equal(2 * N, N - 1)
    for ask in (
        lambda: N > 1,
        lambda: N < S,
        lambda: max(N, S),
        lambda: sorted([S, N]),
        lambda: range(N),
        lambda: int(N),
        lambda: [0][N],
    ):
        with pytest.raises(Undecided, match=r"\bn\b"):
            ask()
    with pytest.raises(Undecided) as found:
        equal(N, S)
    assert found.value.difference == N - S and found.value.relation == "="
    with pytest.raises(Undecided, match="p >= 1"):
        N // P


def test_symbols_have_names_and_rising_bounds():
    assert (
        symbol("x", 4, 4, 4) == 4
        and optimum(3 * N + S) == 40
        and list(symbols((N, (S * N, 3)))) == list(symbols([N * S]))
    )
    with pytest.raises(ValueError, match="no name"):
        symbol("2n")
    with pytest.raises(ValueError, match="must be minimum ≤ optimum ≤ maximum"):
        symbol("n", 4, 2, 8)
    with pytest.raises(ValueError, match="is no size"):
        parse("n ** 2", KNOWN)
    with pytest.raises(ValueError, match="is no size"):
        parse("other + 1", KNOWN)
    for text in ("n // 0", "7 % 0", "mod(7, 0)"):
        with pytest.raises(ValueError):
            parse(text, KNOWN)
    assert dims.map_dims(((N, 2), "n", 3), optimum) == ((8, 2), "n", 3)
