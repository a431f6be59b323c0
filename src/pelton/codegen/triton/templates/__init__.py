"""The templates of kernels for NVIDIA GPUs."""
