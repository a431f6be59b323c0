"""ONNX models of every opset."""
