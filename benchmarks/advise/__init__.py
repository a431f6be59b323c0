"""Predictions of `pelton advise` for GPUs beside throughput that MLPerf and NVIDIA have published.

python -m benchmarks.advise.collect CLONES > benchmarks/advise/points.toml    # figures, out of clones of their sources
python -m benchmarks.advise                                                   # fits the profile, writes gpus.md
"""
