"""Random graphs as engines for GPUs, interpreted, and as compiled kernels: `make fuzz-gpu` runs more of them."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed (make test-gpu)")

HERE = Path(__file__).parent


@pytest.mark.parametrize("kind, runs", [("cuda", 240), ("cubin", 300)])
@pytest.mark.parametrize("first", [0, random.SystemRandom().randrange(1 << 32)], ids=["known", "fresh"])
def test_random_graphs(kind, runs, first):
    asked = [
        sys.executable,
        "-m",
        "fuzz",
        "--small",
        "--kind",
        kind,
        "--runs",
        str(runs),
        "--seed",
        str(first),
        "--children",
        "1",
    ]
    paths = [str(HERE.parent / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        asked, cwd=HERE, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    )
    assert done.returncode == 0 and f"{kind}: " in done.stdout, done.stdout[-4000:] + done.stderr[-2000:]
