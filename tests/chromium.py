"""Headless Chromium for tests of pages, by playwright."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]


@contextlib.contextmanager
def launched(target: str) -> Iterator[Any]:
    """Yields a browser, or skips the test. target: the make target that installs playwright."""
    api = pytest.importorskip("playwright.sync_api", reason=f"playwright is not installed (make {target})")
    path = shutil.which("chromium")
    if not path:
        pytest.skip("there is no chromium (apt install chromium)")
    with api.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()
