"""Calls of OpenAI's Python client, unmodified, each judged by what it returns; runs in a venv that has it.

    python cases.py BASE_URL LIMITED_URL METRICS_URL MODEL

LIMITED_URL: a server of one answer at once, none that wait, and the key "secret". Prints a line of JSON for each case:
its group, its name, and what is wrong, "" if nothing is.
"""

from __future__ import annotations

import json
import sys
import time
import traceback

import case_chat  # noqa: F401
import case_limits  # noqa: F401
import case_shapes  # noqa: F401
import openai
from case_servers import CASES, Servers


def main() -> None:
    servers = Servers(*sys.argv[1:5])
    for group, function in CASES:
        problem, begun = "", time.monotonic()
        try:
            function(servers)
        except Exception:
            problem = traceback.format_exc()[-1500:]
        row = {"group": group, "name": function.__name__, "problem": problem, "seconds": time.monotonic() - begun}
        print(json.dumps({**row, "version": openai.__version__}), flush=True)


if __name__ == "__main__":
    main()
