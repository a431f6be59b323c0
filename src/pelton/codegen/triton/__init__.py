"""Kernels for NVIDIA GPUs: Triton files that compile by themselves, the templates that fit them to a region, and what
makes cubins of them."""
