"""The operators with CPU kernels in ONNX Runtime, by domain: of the installed package, and a list of one version.
`python tests/onnxruntime_kernels.py`, with onnxruntime installed, rewrites the list."""

from __future__ import annotations

import json
from pathlib import Path

COMMITTED = Path(__file__).parent / "data" / "onnxruntime_kernels.json"


def installed() -> dict[str, list[str]]:
    """What the installed onnxruntime has; AttributeError if its build does not say."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    by_domain: dict[str, set[str]] = {}
    for kernel in state.get_all_opkernel_def():
        if kernel.provider == "CPUExecutionProvider":
            by_domain.setdefault(kernel.domain, set()).add(kernel.op_name)
    return {domain: sorted(operators) for domain, operators in sorted(by_domain.items())}


def committed() -> tuple[str, dict[str, list[str]]]:
    """The version, and what it has."""
    found = json.loads(COMMITTED.read_text())
    return found["version"], found["kernels"]


if __name__ == "__main__":
    import onnxruntime

    text = json.dumps({"version": onnxruntime.__version__, "kernels": installed()}, indent=1)
    COMMITTED.write_text(text + "\n")
