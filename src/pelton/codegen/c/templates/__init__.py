"""The templates of kernels for CPUs."""
