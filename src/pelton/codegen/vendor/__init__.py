"""What libraries of the vendor compute instead of kernels of ours."""
