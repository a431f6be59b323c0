"""Makes `import onnxruntime` give Pelton's stand-in, in this process and in those that multiprocessing starts, and ends
it."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import sys
from collections.abc import Iterable, Sequence
from importlib import metadata
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from .about import VERSION
from .missing import MissingModule

log = logging.getLogger("pelton.onnxruntime")

NAME = "onnxruntime"
HOME = "pelton.onnxruntime"
TOOLS = ("backend", "datasets", "quantization", "tools", "transformers")
# what processes find on sys.path that do not know of `install`
CHILDREN = str(Path(__file__).parent / "children")


class _Alias(Loader):
    """Loads a module that exists under another name."""

    def __init__(self, name: str):
        self.name = name

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self.name)
        self.spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec  # its own again, by which it imports


class _Absent(Loader):
    """Loads a module in which every name is missing."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return MissingModule(spec.name, "A module of ONNX Runtime that Pelton does not have.")

    def exec_module(self, module: ModuleType) -> None:
        pass


class _Distribution(metadata.Distribution):
    """What importlib.metadata finds for the name: a version, and the module that belongs to it."""

    def read_text(self, filename: str) -> str | None:
        return {
            "METADATA": (
                f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {VERSION}\nSummary: Pelton in place of ONNX Runtime\n"
            ),
            "top_level.txt": NAME + "\n",
        }.get(filename)

    def locate_file(self, path: Any) -> Any:
        return Path(__file__).parents[1] / path


class _Finder(MetaPathFinder):
    """Finds the stand-in, and for ONNX Runtime's tools, which are Python alone: its own where it is installed, else
    modules in which names are missing."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        top, _, rest = name.partition(".")
        if top != NAME:
            return None
        tool = rest.partition(".")[0] in TOOLS
        if tool and (folder := _real()) is not None:
            return PathFinder.find_spec(name, [os.path.join(folder, *rest.split(".")[:-1])])
        ours = f"{HOME}.{rest}" if rest else HOME
        try:
            found = importlib.util.find_spec(ours)
        except ModuleNotFoundError:  # nothing of ours is above it
            found = None
        if found is not None:
            return ModuleSpec(
                name, _Alias(ours), origin=found.origin, is_package=found.submodule_search_locations is not None
            )
        return ModuleSpec(name, _Absent(), is_package=True) if tool else None

    def find_distributions(
        self,
        context: metadata.DistributionFinder.Context = metadata.DistributionFinder.Context(),  # noqa: B008
    ) -> Iterable[metadata.Distribution]:
        elsewhere = "path" in vars(context)  # only what lies in certain folders is asked for
        return [_Distribution()] if not elsewhere and (context.name or NAME).lower() == NAME else []


_finder = _Finder()
_before: dict[str, ModuleType] = {}  # what was imported when the stand-in was put there


def _real() -> str | None:
    """The folder of ONNX Runtime, where it is installed."""
    found = PathFinder.find_spec(NAME, [folder for folder in sys.path if folder != CHILDREN])
    return next(iter(found.submodule_search_locations or ()), None) if found is not None else None


def _theirs() -> list[str]:
    return [name for name in sys.modules if name == NAME or name.startswith(NAME + ".")]


def installed() -> bool:
    """Whether `import onnxruntime` imports the stand-in."""
    return _finder in sys.meta_path


def install() -> None:
    """From now on, `import onnxruntime` imports pelton.onnxruntime, in this process and in those that multiprocessing
    starts from it.

    What has imported ONNX Runtime itself before keeps it: call this first. Calling it again changes nothing.
    """
    if installed():
        return
    for name in _theirs():
        _before[name] = sys.modules.pop(name)
    if NAME in _before:
        log.warning(
            "onnxruntime had been imported before Pelton was put in its place; modules that have it keep it. Call"
            " pelton.onnxruntime.install() first"
        )
    sys.meta_path.insert(0, _finder)
    sys.path.insert(0, CHILDREN)
    importlib.invalidate_caches()


def uninstall() -> None:
    """From now on, `import onnxruntime` imports what it did before `install`; modules that have imported the stand-in
    keep it."""
    if not installed():
        return
    sys.meta_path.remove(_finder)
    sys.path.remove(CHILDREN)
    for name in _theirs():
        del sys.modules[name]
    for tool in TOOLS:  # which an import hangs into the package above it
        vars(sys.modules[HOME]).pop(tool, None)
    sys.modules.update(_before)
    _before.clear()
    importlib.invalidate_caches()
