"""Makes `import onnxruntime` import pelton.onnxruntime, in this process and those that multiprocessing starts."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Sequence
from importlib import metadata
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from pelton.logs import Logger

from .about import VERSION
from .missing import MissingModule

log = Logger("pelton.onnxruntime")

NAME = "onnxruntime"
HOME = "pelton.onnxruntime"
TOOLS = ("backend", "datasets", "quantization", "tools", "transformers")
# a folder on sys.path where child processes find the stand-in without calling `install`
CHILDREN = str(Path(__file__).parent / "children")


class _AliasLoader(Loader):
    """Loads a module that exists under another name."""

    def __init__(self, name: str):
        self.name = name

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self.name)
        self.spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec  # the import system has replaced it; relative imports need its own


class _MissingLoader(Loader):
    """Loads a module in which every name is missing."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return MissingModule(spec.name, "A module of ONNX Runtime that Pelton does not have.")

    def exec_module(self, module: ModuleType) -> None:
        pass


class _Distribution(metadata.Distribution):
    """The distribution `onnxruntime` of importlib.metadata: a version and the module's name."""

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
    """Finds the stand-in's modules. ONNX Runtime's tools, which are pure Python, are its own if installed, else modules
    in which all names are missing."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        top, _, rest = name.partition(".")
        if top != NAME:
            return None
        tool = rest.partition(".")[0] in TOOLS
        if tool and (folder := _real_folder()) is not None:
            return PathFinder.find_spec(name, [os.path.join(folder, *rest.split(".")[:-1])])
        ours = f"{HOME}.{rest}" if rest else HOME
        try:
            spec = importlib.util.find_spec(ours)
        except ModuleNotFoundError:  # Pelton has no parent module
            spec = None
        if spec is not None:
            return ModuleSpec(
                name, _AliasLoader(ours), origin=spec.origin, is_package=spec.submodule_search_locations is not None
            )
        return ModuleSpec(name, _MissingLoader(), is_package=True) if tool else None

    def find_distributions(
        self,
        context: metadata.DistributionFinder.Context = metadata.DistributionFinder.Context(),  # noqa: B008
    ) -> Iterable[metadata.Distribution]:
        elsewhere = "path" in vars(context)  # the search is limited to certain folders
        return [_Distribution()] if not elsewhere and (context.name or NAME).lower() == NAME else []


_finder = _Finder()
_replaced: dict[str, ModuleType] = {}  # modules of ONNX Runtime imported before `install`


def _real_folder() -> str | None:
    """Returns the folder of ONNX Runtime; None if it is not installed."""
    spec = PathFinder.find_spec(NAME, [folder for folder in sys.path if folder != CHILDREN])
    return next(iter(spec.submodule_search_locations or ()), None) if spec is not None else None


def _imported_modules() -> list[str]:
    return [name for name in sys.modules if name == NAME or name.startswith(NAME + ".")]


def installed() -> bool:
    """True if `import onnxruntime` imports the stand-in."""
    return _finder in sys.meta_path


def install() -> None:
    """Redirects `import onnxruntime` to pelton.onnxruntime, in this process and in its multiprocessing children.

    Modules that imported ONNX Runtime before keep it, so call this first. Calling it again changes nothing.
    """
    if installed():
        return
    for name in _imported_modules():
        _replaced[name] = sys.modules.pop(name)
    if NAME in _replaced:
        log.warning(
            "onnxruntime was imported before Pelton replaced it; modules that imported it still use it. Call"
            " pelton.onnxruntime.install() first"
        )
    sys.meta_path.insert(0, _finder)
    sys.path.insert(0, CHILDREN)
    importlib.invalidate_caches()


def uninstall() -> None:
    """Restores `import onnxruntime` to its state before `install`; modules that imported the stand-in keep it."""
    if not installed():
        return
    sys.meta_path.remove(_finder)
    sys.path.remove(CHILDREN)
    for name in _imported_modules():
        del sys.modules[name]
    for tool in TOOLS:  # which importing sets as attributes of the parent package
        vars(sys.modules[HOME]).pop(tool, None)
    sys.modules.update(_replaced)
    _replaced.clear()
    importlib.invalidate_caches()
