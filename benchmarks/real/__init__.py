"""Trained models that packages ship, through Pelton and ONNX Runtime: `python -m benchmarks.real`."""
