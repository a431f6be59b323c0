"""The tables of docs/migrate-*.md: everything in Pelton's column runs."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

import pelton
from pelton.cli import parser
from test_docs import write_model

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(DOCS.glob("migrate-*.md"))
# names that are no calls: keywords, functions for GPUs, and what needs torch
WORDS = {"load_tactics=", "context.run_async", "max_drop", "metric", "pelton.build(module, example_inputs=x)"}


def snippets(page: Path) -> list[str]:
    rows = re.findall(r"^\| (.*) \| (.*) \|$", page.read_text(), re.M)[2:]
    return [code for _, ours in rows for code in re.findall(r"`([^`]+)`", ours) if code not in WORDS]


CODE = sorted({code for page in PAGES for code in snippets(page)})


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    """What the snippets speak of, in a folder of its own."""
    folder = tmp_path_factory.mktemp("migration")
    write_model(folder / "model.onnx")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("PELTON_CACHE_DIR", str(folder / "cache"))
        patch.setattr(pelton, "build", lambda *a, _build=pelton.build, **k: _build(*a, **k | {"level": 0}))
        engine = pelton.build("model.onnx", threads=1)
        engine.save("model.pelton")
        x, y = np.random.default_rng().random((1, 3, 32, 32), np.float32), np.empty((1, 10), np.float32)
        with pelton.AsyncQueue(engine, 1) as queue:
            yield {"pelton": pelton, "engine": engine, "context": engine.context(), "queue": queue, "x": x, "y": y}


@pytest.mark.parametrize("code", CODE)
def test_ours_runs(code, names):
    if code.startswith("pelton "):
        parser().parse_args(shlex.split(code)[1:])
    else:
        eval(code, dict(names))


def test_there_is_something_to_test():
    assert len(PAGES) == 3 and all(len(snippets(page)) > 20 for page in PAGES)
