"""Kernel code: sources that compile as they stand, templates that fit them to a region, and compilers."""
