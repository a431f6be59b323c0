"""What ONNX Runtime asks of its own installation."""

from pelton.onnxruntime.about import VERSION


def check_distro_info() -> None:
    """Nothing to check."""


def get_package_name_and_version_info() -> tuple[str, str, str]:
    """The package that is stood in for, its version, and that of CUDA it is built with: none."""
    return "onnxruntime", VERSION, ""


def check_training_module() -> tuple[bool, str, str]:
    """Whether models can be trained: they cannot."""
    return False, "", ""
