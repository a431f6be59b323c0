"""Kernels: C files that compile by themselves, the templates that fit them to a region, and the compiler that runs on them."""
