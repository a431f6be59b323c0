"""Benchmarks of serving and scaling."""
