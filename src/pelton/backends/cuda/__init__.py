"""The CUDA back end: cubins, the driver and what stands for it where there is none."""
