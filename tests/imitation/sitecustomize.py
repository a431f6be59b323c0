"""Imported by every Python process with this folder on its path."""

import imitate_cpu  # noqa: F401
