"""ONNX Runtime loads libraries of CUDA here; Pelton finds those that it needs when it needs them."""
