"""The emulated ONNX Runtime."""

# The release whose interface this follows: libraries ask for at least some version, and compare three numbers.
VERSION = "1.32.0"
