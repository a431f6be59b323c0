"""Runs Schemathesis on the OpenAPI of the Open Inference Protocol against a server."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

SECONDS = 300


def mended(text: str) -> str:
    """Returns the schema with path parameters written as OpenAPI has them, {NAME}: the file has ${NAME}."""
    return re.sub(r"\$\{(\w+)\}", r"{\1}", text)


def check_schema(path: Path, program: str, url: str, examples: int, seed: int) -> list[str]:
    """Returns what Schemathesis finds: answers with 5xx; empty if it finds nothing."""
    with tempfile.TemporaryDirectory(prefix="pelton-schema-") as name:
        schema = Path(name) / "schema.yaml"
        schema.write_text(mended(path.read_text()))
        command = [program, "run", str(schema), "--url", url, "--checks", "not_a_server_error", "--no-color"]
        command += ["--max-examples", str(examples), "--seed", str(seed % 2**32)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, cwd=name)
    print("\n".join(done.stdout.splitlines()[-12:]))
    if done.returncode == 0:
        return []
    return [f"schemathesis ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}"]
