"""Partitions models with data-dependent control flow or sizes into graphs and a script that runs their engines."""
