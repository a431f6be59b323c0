"""Empty: ONNX Runtime loads CUDA libraries here; Pelton finds them on demand."""
