"""The CPU back end: machine code loaded from memory, a step walker and the threads of the process."""

from pelton.system.share import cores, default_threads

from .code import LoadedCode, load_code
from .machine import describe, target
from .program import MAX_THREADS, NativeProgram

__all__ = ["MAX_THREADS", "LoadedCode", "NativeProgram", "cores", "default_threads", "describe", "load_code", "target"]
