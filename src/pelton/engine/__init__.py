"""Engines as plain data, and the file they are kept in."""
