"""Fixtures of tests with PyTorch: a cache of each module's own, and the messages of its backend."""

from __future__ import annotations

import logging

import pytest


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory):
    """A cache of these tests' own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PELTON_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def said(caplog):
    """What the backend says: which graphs became engines, and which run eagerly, and why."""
    caplog.set_level(logging.INFO, "pelton.torch")
    return lambda what: [r.getMessage() for r in caplog.records if r.name == "pelton.torch" and what in r.getMessage()]
