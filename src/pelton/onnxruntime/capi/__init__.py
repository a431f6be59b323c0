"""What ONNX Runtime keeps in its package of the same name, where libraries look for exceptions and for classes under
their other names."""
