"""Interfaces of other runtimes over Pelton."""
