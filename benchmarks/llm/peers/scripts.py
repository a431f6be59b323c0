"""Lines of text in 13 scripts, with numbers, punctuation, spaces and emoji, by a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator

SCRIPTS = {
    "Latin": ((0x41, 0x5A), (0x61, 0x7A), (0xC0, 0xFF), (0x100, 0x17F)),
    "Greek": ((0x391, 0x3A1), (0x3A3, 0x3C9)),
    "Cyrillic": ((0x410, 0x44F),),
    "Hebrew": ((0x5D0, 0x5EA),),
    "Arabic": ((0x627, 0x63A), (0x641, 0x64A)),
    "Devanagari": ((0x905, 0x939), (0x93E, 0x94D)),
    "Thai": ((0xE01, 0xE2E), (0xE30, 0xE3A)),
    "Georgian": ((0x10D0, 0x10F0),),
    "Ethiopic": ((0x1200, 0x1246),),
    "Hiragana": ((0x3041, 0x3096),),
    "Katakana": ((0x30A1, 0x30FA),),
    "Han": ((0x4E00, 0x9FA0), (0x20000, 0x20040)),
    "Hangul": ((0xAC00, 0xD7A3), (0x1100, 0x1112)),
}
EMOJI = ("🙂", "👩‍👩‍👧‍👦", "🇫🇷", "👍🏽", "❤️", "🏴󠁧󠁢󠁳󠁣󠁴󠁿", "1️⃣")
BETWEEN = (
    " ",
    "  ",
    "\n",
    "\n\n",
    "\t",
    "\r\n",
    "1234567",
    "3.14",
    "٣٤",
    "½",
    "'s",
    "'LL",
    "!?",
    "…",
    "—",
    "<s>",
    "`x`",
    " ",
)
COMMON = "The quick brown fox doesn't jump over 12 lazy dogs; it said: I'll be back at 10:30, won't I?".split()


def lines(count: int, seed: int) -> Iterator[str]:
    """Yields lines, most of them of one script."""
    random_of, ranges = random.Random(seed), list(SCRIPTS.values())
    for i in range(count):
        yield "".join(_part(random_of, ranges, i) for _ in range(random_of.randint(1, 14)))


def _part(random_of: random.Random, ranges: list[tuple[tuple[int, int], ...]], i: int) -> str:
    kind = random_of.random()
    if kind < 0.2:
        return random_of.choice(BETWEEN)
    if kind < 0.27:
        return random_of.choice(EMOJI)
    if kind < 0.4:
        return " " + random_of.choice(COMMON)
    script = random_of.choice(ranges) if kind < 0.5 else ranges[i % len(ranges)]
    word = "".join(chr(random_of.randint(*random_of.choice(script))) for _ in range(random_of.randint(1, 8)))
    return random_of.choice((" ", "")) + word
