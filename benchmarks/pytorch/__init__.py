"""PyTorch networks on Pelton, beside eager and inductor, for `docs/formats.md`."""
