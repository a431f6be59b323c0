"""Kernels for CPUs: C files that compile by themselves, and the templates that fit them to a region."""
