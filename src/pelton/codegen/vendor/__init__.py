"""Vendor libraries in place of our own kernels."""
