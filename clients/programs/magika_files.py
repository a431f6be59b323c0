"""magika names five files by their contents."""

import io
import json
import zipfile

from magika import Magika
from report import report


def archive() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as z:
        z.writestr(zipfile.ZipInfo("a.txt"), "text " * 200)
    return out.getvalue()


FILES = {
    "script": (
        b"#!/usr/bin/env python3\nimport sys\n\ndef main(arguments):\n    for a in arguments:\n       "
        b" print(a.upper())\n\nmain(sys.argv[1:])\n" * 3
    ),
    "page": b"<!DOCTYPE html>\n<html><head><title>A page</title></head><body><p>Some words.</p></body></html>\n" * 5,
    "data": json.dumps([{"name": f"n{i}", "value": i, "tags": ["a", "b"]} for i in range(40)]).encode(),
    "source": (
        b'#include <stdio.h>\nint main(int argc, char **argv) {\n  for (int i = 0; i < argc; i++) printf("%s\\n",'
        b" argv[i]);\n  return 0;\n}\n" * 3
    ),
    "archive": archive(),
}


def name(magika: Magika) -> dict:
    found = {key: magika.identify_bytes(data) for key, data in FILES.items()}
    return {key: {"label": str(r.output.label), "score": r.score} for key, r in found.items()}


report("magika", Magika, name)
