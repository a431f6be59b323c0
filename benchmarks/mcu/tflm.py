"""Prints the bytes that TensorFlow Lite Micro takes of its arena for a TFLite file: python tflm.py FILE

It runs in a venv of its own, with the package `tflite_micro`, which prints its arena to stderr after a run.
"""

import sys

import numpy as np
from tflite_micro import runtime

interpreter = runtime.Interpreter.from_file(sys.argv[1])
details = interpreter.get_input_details(0)
interpreter.set_input(np.zeros(details["shape"], details["dtype"]), 0)
interpreter.invoke()
interpreter.print_allocations()
