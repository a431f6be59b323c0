"""The emulated package and its version."""

from pelton.onnxruntime.about import VERSION as __version__

__all__ = ["__version__", "package_name"]
package_name = "onnxruntime"
