"""Packages of the extras, loaded on first use."""

from __future__ import annotations

import importlib
from types import ModuleType

from torchrl_gpu.system.extras import how_to_install

# Names of packages for people, where the module is called otherwise.
_PACKAGES = {
    "av": "PyAV",
    "cv2": "OpenCV",
    "cyclonedds": "cyclonedds (wheels for Python 3.11 to 3.13, on ARM for macOS alone)",
    "pyarrow": "pyarrow",
    "foxglove_schemas_protobuf": "foxglove-schemas-protobuf",
}


def load(module: str, extra: str = "stream", where: str = "streaming") -> ModuleType:
    """Import a module of an optional package.

    Args:
        module: Its name.
        extra: The extra that brings the package.
        where: Who needs it, for the error.

    Raises:
        ModuleNotFoundError: The package is not installed. The message names the extra.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = _PACKAGES.get(module.partition(".")[0], module)
        raise ModuleNotFoundError(
            f"{where}: {package} is not installed ({error}); an extra brings it: {how_to_install(extra)}",
            name=error.name,
        ) from error
