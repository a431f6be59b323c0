"""Engines for AArch64 and RISC-V under an emulator, beside x86-64."""
