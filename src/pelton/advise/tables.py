"""TOML files as plain tables, and errors that name the file, the row and the key."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import InputAbsent, InputError

if sys.version_info >= (3, 11):
    import tomllib
else:
    try:
        import tomli as tomllib
    except ImportError:  # Python 3.10 without the extra `build`
        tomllib = None

LARGEST = 16 << 20  # bytes of a file


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the content of a TOML file. Raises InputError if it is absent, too large, not UTF-8 or not TOML."""
    if tomllib is None:
        raise InputError(f"{path}: TOML files need Python 3.11, or the package tomli: pip install 'pelton[build]'")
    path = Path(path)
    try:
        if path.is_file() and path.stat().st_size > LARGEST:
            raise InputError(f"{path}: larger than {LARGEST >> 20} MiB, which no file of devices is")
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputAbsent(f"{path}: there is no such file", path) from None
    except OSError as e:
        raise InputError(f"{path}: {e.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as e:
        raise InputError(f"{path}: not a TOML file: {e}") from None


def rows(path: str | os.PathLike[str], key: str) -> list[dict[str, Any]]:
    """Returns the tables of the array `[[key]]`, the only content of the file. Raises InputError for any other."""
    content = read_toml(path)
    for other in content.keys() - {key}:
        raise InputError(f"{path}: unknown key {other!r} outside the rows; expected [[{key}]]")
    found = content.get(key, [])
    if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
        raise InputError(f"{path}: {key!r} is not an array of tables; write [[{key}]] above each row")
    return found


class RowReader:
    """Reads the fields of one row; every error names the file, the row and the key."""

    def __init__(self, row: Mapping[str, Any], file: str | os.PathLike[str], name: str):
        self.row, self.where = row, f"{file}: row {name!r}"

    def fail(self, key: str, text: str) -> InputError:
        """The error of one key, for `raise`."""
        return InputError(f"{self.where}, key {key!r}: {text}")

    def known(self, keys: set[str]) -> None:
        """Raises InputError for a key that is not in the schema."""
        for key in self.row:
            if key not in keys:
                raise self.fail(key, f"unknown; the keys are {', '.join(sorted(keys))}")

    def text(self, key: str, choices: tuple[str, ...] = ()) -> str | None:
        """A text that is not empty, one of `choices` if there are any; None if absent."""
        value = self.row.get(key)
        if value is None:
            return None
        if not isinstance(value, str) or not value.strip():
            raise self.fail(key, f"expected a text, got {value!r}")
        if choices and value not in choices:
            raise self.fail(key, f"expected one of {', '.join(choices)}, got {value!r}")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts; () if absent."""
        value = self.row.get(key, [])
        if not isinstance(value, list) or not all(isinstance(v, str) and v.strip() for v in value):
            raise self.fail(key, f"expected a list of texts, got {value!r}")
        return tuple(value)

    def number(self, key: str) -> float | None:
        """A finite number above 0; None if absent."""
        return self._positive(key, self.row[key]) if key in self.row else None

    def whole(self, key: str, least: int = 1, most: int = 1 << 31) -> int | None:
        """A whole number within bounds; None if absent."""
        value = self.row.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.fail(key, f"expected a whole number from {least} to {most}, got {value!r}")
        return value

    def numbers(self, key: str, keys: tuple[str, ...]) -> dict[str, float]:
        """A table of finite numbers above 0 whose keys are among `keys`; {} if absent."""
        table = self.row.get(key, {})
        if not isinstance(table, dict):
            raise self.fail(key, f"expected a table such as {{ {keys[0]} = 1.5 }}, got {table!r}")
        for inner in table:
            if inner not in keys:
                raise self.fail(f"{key}.{inner}", f"unknown; the keys are {', '.join(keys)}")
        return {inner: self._positive(f"{key}.{inner}", value) for inner, value in table.items()}

    def _positive(self, key: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.fail(key, f"expected a number, got {value!r}")
        if not math.isfinite(value) or value <= 0:
            raise self.fail(key, f"expected a finite number above 0, got {value}")
        return float(value)
