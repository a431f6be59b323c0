"""Imported by every Python process that has this folder on its path."""

import imitate_cpu  # noqa: F401
