"""Tests of others that are to fail, and why."""

KNOWN: dict[str, str] = {}
