"""Networks of Darknet: `.cfg` files, with weights in `.weights` files."""

from typing import Any

from pelton.importers import signs
from pelton.importers.network import register_network_format
from pelton.importers.registry import About

from .cfg import is_configuration
from .network import files_of, read


def recognizes(source: Any) -> bool:
    """True if a source begins like a configuration."""
    return is_configuration(signs.head(source))


register_network_format(
    "Darknet",
    recognizes,
    read,
    two_files=True,
    files=files_of,
    suffixes=(".cfg",),
    about=About(
        files=".cfg, with .weights",
        export="the files that darknet reads and writes",
        covers="networks of pjreddie's and AlexeyAB's Darknet; detections=True selects boxes",
        checked="OpenCV 4.14, and loops written from Darknet's definitions",
    ),
)
