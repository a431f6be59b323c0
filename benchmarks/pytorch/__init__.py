"""Networks of PyTorch on Pelton: beside eager and inductor, and as `docs/formats.md` shows them."""
