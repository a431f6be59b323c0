"""The package of ONNX Runtime where libraries look for exceptions and for classes under other names."""
