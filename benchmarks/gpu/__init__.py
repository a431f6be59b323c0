"""Everything that needs a GPU, in one command: are the kernels right, how fast is the machine, how fast are the models,
beside torch and JAX."""
