"""The environment variables that Pelton reads, and a warning about other PELTON_ variables."""

from __future__ import annotations

import logging
import os
from dataclasses import fields

from .errors import near
from .logs import Logger
from .options import Options

log = Logger("pelton.variables")

PREFIX = "PELTON_"
OF_TESTS = "PELTON_TEST_"
# options without a variable
UNREAD = {"cache_capacity", "kv_cache", "metadata", "metric", "profiles", "refit", "strip_weights"}
NAMES = {f.name for f in fields(Options)} - UNREAD | {"import_timeout", "on_miss", "retune", "unsafe_keras", "usual"}
VARIABLES = sorted(f"{PREFIX}{name.upper()}" for name in NAMES)

_warned: set[str] = set()  # unknown variables already warned about


def unknown() -> list[str]:
    """Returns the PELTON_ variables in the environment that nothing reads."""
    set_here = (name for name in sorted(os.environ) if name.startswith(PREFIX) and not name.startswith(OF_TESTS))
    return [name for name in set_here if name not in VARIABLES]


def warn_of_unknown() -> None:
    """Warns of each unknown variable, once in a process."""
    if not log.isEnabledFor(logging.WARNING):
        return
    for name in unknown():
        if name not in _warned:
            _warned.add(name)
            log.warning("there is no environment variable %s%s: it has no effect", name, near(name, VARIABLES))
