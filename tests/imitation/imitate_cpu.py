"""Emulates another CPU in each Python process with this folder on its path: the tests' own, and their children
(sitecustomize.py imports this file). PELTON_TEST_CPU names the level. Two modules are changed at their import: a
process imports nothing for it."""

import os
import sys
from importlib.machinery import PathFinder

LEVEL = os.environ.get("PELTON_TEST_CPU")
HERE = os.path.dirname(os.path.abspath(__file__))


def imitate_machine(machine):
    """The CPU has the features of the level alone; `identity.real` is that of the CPU that there is."""
    real = machine.identity
    machine.identity = lambda: {**real(), "features": machine.LEVELS[LEVEL]}
    machine.identity.real = real


def imitate_compiler(toolchain):
    """Kernels of the level are compiled for the CPU that there is, if it does not run them, and cached apart."""

    def machines():
        tests = os.path.dirname(HERE)
        if tests not in sys.path:
            sys.path.append(tests)
        import machines

        return machines

    kind = toolchain.ClangCompiler
    command, key = kind._command, kind.key
    kind._command = lambda self: machines().imitated(command(self), self.isa)
    kind._command.real = command
    kind.key = lambda self, text: key(self, f"{text}\n// imitated: {not machines().runs(self.isa)}")


CHANGES = {"pelton.backends.cpu.machine": imitate_machine, "pelton.codegen.c.toolchain": imitate_compiler}


class Imitation:
    """A finder that changes modules once they are executed."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        change = CHANGES.get(name)
        spec = PathFinder.find_spec(name, path) if change else None
        if spec:
            execute = spec.loader.exec_module
            spec.loader.exec_module = lambda module: (execute(module), change(module))
        return spec


if LEVEL:
    sys.meta_path.insert(0, Imitation)
    if HERE not in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [HERE, os.environ.get("PYTHONPATH")]))
