"""Containers: the runtime around this process, and the runtimes that are installed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass

from .tree import FileTree

RUNTIMES = ("docker", "podman", "buildah", "nerdctl", "apptainer", "nvidia-ctk")
# parts of the control group of process 1 → the runtime
GROUPS = {"kubepods": "kubernetes", "docker": "docker", "libpod": "podman", "containerd": "containerd", "lxc": "lxc"}


@dataclass(frozen=True)
class ContainerRuntime:
    """inside: the runtime around this process, empty outside of containers. installed: paths of runtimes by their
    names. devices: True if a description of NVIDIA GPUs for containers exists (CDI)."""

    inside: str
    installed: Mapping[str, str]
    devices: bool


def containers(
    tree: FileTree, environment: Mapping[str, str] = os.environ, path: str | None = None
) -> ContainerRuntime:
    found = {name: shutil.which(name, path=path) for name in RUNTIMES}
    return ContainerRuntime(
        _inside(tree, environment),
        {name: where for name, where in found.items() if where},
        any(tree.names(folder, "*nvidia*") for folder in ("etc/cdi", "var/run/cdi")),
    )


def _inside(tree: FileTree, environment: Mapping[str, str]) -> str:
    if "KUBERNETES_SERVICE_HOST" in environment:
        return "kubernetes"
    if tree.exists(".dockerenv"):
        return "docker"
    if tree.exists("run/.containerenv"):
        return "podman"
    if name := environment.get("container", ""):
        return name
    group = tree.text("proc/1/cgroup")
    return next((runtime for part, runtime in GROUPS.items() if part in group), "")
