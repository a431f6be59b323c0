"""Counts of instructions, code and memory on Cortex-M micro-controllers."""
