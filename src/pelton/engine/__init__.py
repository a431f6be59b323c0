"""Engines as plain data, and their files."""
