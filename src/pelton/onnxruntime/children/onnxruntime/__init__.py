"""Imported where multiprocessing passes `sys.path` to a new process: installs the stand-in there too."""

import sys

import pelton.onnxruntime

pelton.onnxruntime.install()
sys.modules[__name__] = pelton.onnxruntime
