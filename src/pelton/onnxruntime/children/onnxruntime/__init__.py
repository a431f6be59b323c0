"""Met where multiprocessing has handed `sys.path` on to a new process: puts Pelton in ONNX Runtime's place there,
too."""

import sys

import pelton.onnxruntime

pelton.onnxruntime.install()
sys.modules[__name__] = pelton.onnxruntime
