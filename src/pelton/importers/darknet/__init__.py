"""Networks of Darknet: `.cfg` files, with weights in `.weights` files."""

import os
from typing import Any

from pelton.importers.network import register_network_format
from pelton.importers.registry import About

from .cfg import is_configuration
from .network import read

HEAD = 4096  # bytes that tell a configuration


def recognizes(source: Any) -> bool:
    """Whether a source is a configuration, by how its text begins; or a file that is named like one."""
    if isinstance(source, bytes):
        return is_configuration(source[:HEAD])
    if not isinstance(source, (str, os.PathLike)):
        return False
    path = os.fspath(source)
    try:
        with open(path, "rb") as file:
            return is_configuration(file.read(HEAD))
    except OSError:
        return os.path.splitext(path)[1] in (".cfg", b".cfg")


register_network_format(
    "Darknet",
    recognizes,
    read,
    two_files=True,
    about=About(
        files=".cfg, with .weights",
        export="the files that darknet reads and writes",
        covers="networks of pjreddie's and AlexeyAB's Darknet; detections=True selects boxes",
        checked="OpenCV 4.14, and loops written from Darknet's definitions",
    ),
)
