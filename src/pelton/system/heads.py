"""Recognizes, by its first bytes, a file that is not the expected one: an engine, or a pointer of Git LFS."""

from __future__ import annotations

ENGINE = b"\x93PELTON\n"
POINTER = b"version https://git-lfs.github.com/spec/"
LONGEST = max(len(ENGINE), len(POINTER))


def told(head: bytes) -> str:
    """Describes a file with this beginning and the remedy; "" if it is not recognized."""
    if head.startswith(ENGINE):
        return "it is an engine already, which `pelton run`, `bench` and `inspect` take"
    if head.startswith(POINTER):
        return "it is a pointer that Git LFS left in place of the file: `git lfs pull` fetches that"
    return ""
