"""Compiles models to engines."""
