"""Code of kernels: source files that compile by themselves, the templates that fit them to a region, and the compilers
that run on them."""
