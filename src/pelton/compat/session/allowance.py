"""A session's budget of time for engines of new shapes and for background tuning."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from pelton.system.forks import survives_fork

PERIOD = 60.0  # seconds
TUNED = 20.0  # seconds of them for builds that time kernels


class Allowance:
    """At most `seconds` of each period. Work that began within it is finished. Thread-safe."""

    def __init__(
        self, seconds: float = TUNED, period: float = PERIOD, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.seconds, self.period, self._clock = seconds, period, clock
        self._spent: deque[tuple[float, float]] = deque()  # (when it ended, seconds)
        self._unlock()
        survives_fork(self)

    def _unlock(self) -> None:
        self._lock = threading.Lock()

    def spend(self, seconds: float) -> None:
        with self._lock:
            self._spent.append((self._clock(), seconds))

    @property
    def is_spent(self) -> bool:
        """True if the current period has no time left. Long work counts until its share of time has passed."""
        with self._lock:
            now = self._clock()
            # with 20 s of each 60 s allowed, a build of 100 s is paid off after 300 s
            while self._spent and now - self._spent[0][0] >= max(
                self.period, self._spent[0][1] * self.period / self.seconds
            ):
                self._spent.popleft()
            return sum(seconds for _, seconds in self._spent) >= self.seconds
