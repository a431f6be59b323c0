"""Engines for AArch64 and RISC-V under an emulator: outputs beside x86-64, and instruction counts."""
