"""Locations of NVIDIA's libraries, from wheels or the system."""

from __future__ import annotations

from pelton.errors import EngineError


def located(name: str, title: str, package: str) -> str:
    """Returns the file of a library, loaded. Raises EngineError, with the package to install, if it is missing."""
    try:
        # comes with cuda-bindings from 12.9 on
        from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib
    except ImportError:
        raise EngineError(
            f"finding {title} needs the package cuda-pathfinder: pip install cuda-pathfinder {package}"
        ) from None
    try:
        path = load_nvidia_dynamic_lib(name).abs_path
    except (DynamicLibNotFoundError, ValueError):
        # the latter if this pathfinder does not know it
        raise EngineError(f"{title} is not installed: pip install {package}") from None
    if path is None:
        raise EngineError(f"{title} is here, but not where; install it by pip install {package}")
    return path
