"""Updates the table of install sizes: packages and megabytes of Pelton and of each extra.

    python -m benchmarks.sizes [--page docs/install.md]

Installs each extra into an empty folder and adds up its files, without .pyc files, which depend on the Python. `torch`
is left out, as its size depends on the chosen build, and `ray` and `spark`, which bring their clusters' packages.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from benchmarks.formats import replaced

ROOT = Path(__file__).parents[1]
LEFT_OUT = ("torch", "ray", "spark", "test", "lint", "docs")  # torch: see above; the others are of developers
USES = {
    "": "run engines",
    "build": "build engines, and read models of ONNX, TFLite, Caffe and Darknet",
    "cuda": "engines for NVIDIA GPUs (building them needs `build` as well)",
    "image": "photographs as inputs",
    "sign": "signatures of engine files",
    "language": "language models",
    "onnxruntime": "`InferenceSession`, in place of ONNX Runtime",
    "serve": "`pelton serve`",
    "telemetry": "traces of `pelton serve`, by OpenTelemetry (needs `serve` as well)",
    "demo": "`pelton demo`",
    "all": "all of these",
}


def extras() -> list[str]:
    """The extras of users, in the order of pyproject.toml."""
    text = (ROOT / "pyproject.toml").read_text()
    section = re.search(r"^\[project\.optional-dependencies\]\n(.*?)^\[", text, re.M | re.S)
    assert section
    return [name for name in re.findall(r"^(\w+) = \[", section[1], re.M) if name not in LEFT_OUT]


def installed(extra: str) -> tuple[int, float]:
    """Packages besides Pelton, and megabytes with it."""
    with tempfile.TemporaryDirectory(prefix="pelton-sizes-") as folder:
        what = f"{ROOT}[{extra}]" if extra else str(ROOT)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--no-compile", "--target", folder, what], check=True)
        packages = len(list(metadata.distributions(path=[folder]))) - 1
        return packages, sum(p.lstat().st_size for p in Path(folder).rglob("*") if p.is_file()) / 1e6


def table() -> str:
    if unknown := set(extras()) - USES.keys():  # before minutes of downloads
        raise SystemExit(f"USES has no text for {', '.join(sorted(unknown))}")
    lines = ["| install | for | packages besides | MB |", "| --- | --- | ---: | ---: |"]
    for extra in ["", *extras()]:
        packages, megabytes = installed(extra)
        lines.append(f"| `{f'.[{extra}]' if extra else '.'}` | {USES[extra]} | {packages} | {megabytes:.0f} |")
    return "\n".join(lines)


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--page", type=Path, help="write the table there, between its marks")
    given = ask.parse_args()
    text = table()
    print(text)
    if given.page:
        given.page.write_text(replaced(given.page.read_text(), "sizes", text))


if __name__ == "__main__":
    main()
