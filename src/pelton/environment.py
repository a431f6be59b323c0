"""The environment variables that Pelton reads, and a warning of others that are named like them."""

from __future__ import annotations

import logging
import os
from dataclasses import fields

from .errors import near
from .logs import Logger
from .options import Options

log = Logger("pelton.environment")

PREFIX = "PELTON_"
OF_TESTS = "PELTON_TEST_"
UNREAD = {"metadata", "metric", "refit", "strip_weights"}  # options that no variable gives
NAMES = {f.name for f in fields(Options)} - UNREAD | {"import_timeout", "on_miss", "retune", "unsafe_keras", "usual"}
VARIABLES = sorted(f"{PREFIX}{name.upper()}" for name in NAMES)

_told: set[str] = set()  # unknown variables for which there was a warning


def unknown() -> list[str]:
    """Variables that are set and named as if they were Pelton's, which nothing reads."""
    set_here = (name for name in sorted(os.environ) if name.startswith(PREFIX) and not name.startswith(OF_TESTS))
    return [name for name in set_here if name not in VARIABLES]


def warn_of_unknown() -> None:
    """Warns of each, once in a process."""
    if not log.isEnabledFor(logging.WARNING):
        return
    for name in unknown():
        if name not in _told:
            _told.add(name)
            log.warning("there is no environment variable %s%s: it has no effect", name, near(name, VARIABLES))
