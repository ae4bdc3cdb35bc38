"""Packages of the extras, loaded on first use."""

from __future__ import annotations

import importlib
from typing import Any

from torchrl_gpu.system.extras import how_to_install

_PACKAGES = {
    "av": "PyAV",
    "cv2": "OpenCV",
    "cyclonedds": "cyclonedds (wheels for Python 3.11 to 3.13, on ARM for macOS alone)",
    "pyarrow": "pyarrow",
    "foxglove_schemas_protobuf": "foxglove-schemas-protobuf",
}


def load(module: str, extra: str = "stream", where: str = "streaming") -> Any:
    """A module of an optional package; where it is not installed, a ModuleNotFoundError that names the extra."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = _PACKAGES.get(module.partition(".")[0], module)
        raise ModuleNotFoundError(
            f"{where}: want {package}, which an extra brings; got an install without it ({error});"
            f" to bring it: {how_to_install(extra)}",
            name=error.name,
        ) from error
