"""docs/onnxruntime.md lists every case of ONNX Runtime's own Python tests: each row has a test of the same name, and
each such test a row. GPU cases, which no test here can run, are marked."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs/onnxruntime.md"
CASES = [f"test_onnxruntime_{subject}" for subject in ("runs", "rest", "mlops", "iobinding")]
GPU = {
    "test_set_providers",
    "test_set_providers_with_options",
    "test_ort_value_gh_issue9799",
    "test_run_model_with_cuda_copy_stream",
    "test_multiple_devices",
}


def rows() -> dict[str, str]:
    """Case → verdict."""
    return dict(re.findall(r"^\| `(\w+)`(?: \([^|]*\))? \| (same|differs|missing|GPU) \|", PAGE.read_text(), re.M))


def test_every_row_of_the_page_is_run():
    here = {
        name
        for module in CASES
        for name, value in vars(importlib.import_module(module)).items()
        if inspect.isfunction(value) and name.startswith("test")
    }
    assert rows().keys() == here | GPU
    assert {case for case, verdict in rows().items() if verdict == "GPU"} == GPU


def test_every_entry_is_on_the_page():
    from pelton.compat.session.config import READERS

    assert (
        set(re.findall(r"`pelton\.([a-z_]+)`", PAGE.read_text().split("## Config entries")[1].split("## ")[0]))
        == READERS.keys()
    )


def test_what_is_said_to_differ_says_how():
    for case, verdict, how in re.findall(r"^\| `(\w+)`[^|]*\| (\w+) \| (.*) \|$", PAGE.read_text(), re.M):
        assert verdict == "same" or how, case
