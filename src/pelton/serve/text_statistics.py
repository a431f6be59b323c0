"""Counts and durations of a served language model: tokens, and when the first and the following ones came."""

from __future__ import annotations

from bisect import bisect_left

from pelton.language import Usage

from .statistics import Statistics

# upper bounds of buckets, in seconds
FIRST_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
NEXT_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
TOKENS = ("prompt", "cached", "completion", "drafted", "accepted")
RECENT = 0.2  # of the latest answer in the mean of seconds


class TextStatistics(Statistics):
    """Statistics of one version of a language model since it was loaded.

    tokens: of prompts, those of them that lay in caches, of answers; of speculation: proposed, and right ones.
    answers: reason of the end → number. first, following: buckets of the seconds to the first token, and of those for
    each of the following ones, with their sums.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tokens = dict.fromkeys(TOKENS, 0)
        self.answers: dict[str, int] = {}
        self.first, self.following = [0] * (len(FIRST_BUCKETS) + 1), [0] * (len(NEXT_BUCKETS) + 1)
        self.first_sum = self.following_sum = 0.0
        self._seconds = 0.0

    def answered(self, usage: Usage, reason: str) -> None:
        """Counts an answer that is over."""
        with self._lock:
            self.answers[reason] = self.answers.get(reason, 0) + 1
            for name in TOKENS:
                self.tokens[name] += getattr(usage, name)
            if reason in ("stop", "length"):
                self._seconds += RECENT * (usage.seconds - self._seconds)
            if not usage.completion:
                return
            self.first[bisect_left(FIRST_BUCKETS, usage.first)] += 1
            self.first_sum += usage.first
            if usage.completion > 1:
                each = (usage.seconds - usage.first) / (usage.completion - 1)
                self.following[bisect_left(NEXT_BUCKETS, each)] += 1
                self.following_sum += each

    def seconds(self) -> float:
        """Returns about how long an answer takes; 1 s as long as there was none."""
        return self._seconds or 1.0
