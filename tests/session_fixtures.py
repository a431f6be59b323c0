"""Fixtures of tests of sessions: a cache of each test's own, and the builds of sessions."""

from __future__ import annotations

import logging

import pytest

from pelton.compat.session import model as models


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PELTON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PELTON_LEVEL", "0")
    yield tmp_path / "cache"
    logging.getLogger("pelton").setLevel(logging.NOTSET)  # sessions may set it, for the whole process


@pytest.fixture
def builds(monkeypatch) -> list:
    """What engines were built for: (shapes, optimum)."""
    seen = []
    real = models.build_engine

    def built(source, options, optimum, show):
        seen.append((options.shapes, optimum))
        return real(source, options, optimum, show)

    monkeypatch.setattr(models, "build_engine", built)
    return seen
