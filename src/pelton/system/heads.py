"""Recognizes, by its first bytes, a file that is not the expected one: an engine, or a pointer of Git LFS."""

from __future__ import annotations

ENGINE = b"\x93PELTON\n"
POINTER = b"version https://git-lfs.github.com/spec/"
LONGEST = max(len(ENGINE), len(POINTER))


def describe_foreign_file(head: bytes) -> str:
    """Describes a file with this beginning and the remedy; "" if it is not recognized."""
    if head.startswith(ENGINE):
        return "it is already an engine; use it with `pelton run`, `bench` or `inspect`"
    if head.startswith(POINTER):
        return "it is a Git LFS pointer, not the file; fetch the file by `git lfs pull`"
    return ""
