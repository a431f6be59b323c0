"""The catalog of devices: what the makers publish about GPUs, CPUs, modules and accelerators, each row with its source.

catalog = load("mine.toml")        # the catalog, and a file of your own devices and prices
catalog.find("rtx 40*")            # by name, alias or pattern
catalog.device("L4").peak("int8")  # tera-operations per second, dense; None where no source states it
"""

from __future__ import annotations

import difflib
import fnmatch
import os
from collections.abc import Iterator
from dataclasses import dataclass

from ...errors import InputError
from .hardware import FORMS, KINDS, PRECISIONS, Citation, Hardware, Price
from .reader import catalog_files, read

__all__ = ["FORMS", "KINDS", "PRECISIONS", "Catalog", "Citation", "Hardware", "Price", "load"]
NEAR, ALIKE = 5, 0.5  # names that an error lists, and their least likeness


@dataclass(frozen=True)
class Catalog:
    """Devices in the order of their files, found by name, alias or pattern."""

    devices: tuple[Hardware, ...]

    def __iter__(self) -> Iterator[Hardware]:
        return iter(self.devices)

    def __len__(self) -> int:
        return len(self.devices)

    def find(self, pattern: str) -> tuple[Hardware, ...]:
        """Returns the device of a name or alias, else all devices that match a pattern with *, ? or [ ], in any case.

        Raises InputError with near names if there is none.
        """
        wanted = " ".join(pattern.lower().split())
        named = {word.lower(): device for device in self.devices for word in (device.name, *device.aliases)}
        if wanted in named:
            return (named[wanted],)
        matches = tuple(
            device
            for device in self.devices
            if any(fnmatch.fnmatchcase(word.lower(), wanted) for word in (device.name, *device.aliases))
        )
        if not matches:
            near = self.near(wanted)
            hint = f"; near names: {', '.join(near)}" if near else ""
            raise InputError(f"the catalog has no device {pattern!r}{hint}; add it by a file of your own")
        return matches

    def device(self, name: str) -> Hardware:
        """Returns the one device of a name, alias or pattern. Raises InputError if there is none, or more than one."""
        matches = self.find(name)
        if len(matches) > 1:
            first = ", ".join(d.name for d in matches[:NEAR])
            raise InputError(f"{name!r} matches {len(matches)} devices ({first}, …); expected the name of one")
        return matches[0]

    def near(self, name: str) -> list[str]:
        """Names of devices whose name, alias or part of a name resembles a text, the nearest first."""
        words = {word.lower(): device.name for device in self.devices for word in (device.name, *device.aliases)}
        close = difflib.get_close_matches(name.lower(), words, 4 * NEAR, ALIKE)
        inside = [word for word in words if name and name in word]
        return list(dict.fromkeys(words[word] for word in (*inside[:NEAR], *close)))[:NEAR]


def load(extra: str | os.PathLike[str] | None = None) -> Catalog:
    """Returns the catalog, with the devices and prices of a user's own file `extra` of the same form, if there is one.

    A row of `extra` with the name or alias of a device overrides its fields. Raises InputError with file, row and key
    for anything that does not fit the schema.
    """
    return Catalog(tuple(read(catalog_files(), extra)))
