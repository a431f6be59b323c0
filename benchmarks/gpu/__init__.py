"""All GPU benchmarks in one command: kernel checks, machine limits, and models beside torch and JAX."""
