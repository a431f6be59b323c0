"""ONNX Runtime's checks of its own installation."""

from pelton.onnxruntime.about import VERSION


def check_distro_info() -> None:
    """Accepted: there is nothing to check."""


def get_package_name_and_version_info() -> tuple[str, str, str]:
    """Returns the emulated package, its version, and its CUDA version: none."""
    return "onnxruntime", VERSION, ""


def check_training_module() -> tuple[bool, str, str]:
    """Reports that training is unsupported."""
    return False, "", ""
