"""Kernels for NVIDIA GPUs: Triton files that compile by themselves, the templates that fit them to a region, and their
compiler to cubins."""
