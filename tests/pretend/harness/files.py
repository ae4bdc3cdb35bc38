"""`torch.save` and `torch.load` of CudaTensors.

Their files are those of CUDA tensors.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.pretend.harness.tensors import CudaTensor, check_index


def install() -> None:
    """Tag storages `cuda:0`, and read them as tagged or mapped."""
    # They come before those of the CPU and CUDA.
    torch.serialization.register_package(5, _tag, _restore)
    torch._utils._rebuild_tensor = _rebuilding(torch._utils._rebuild_tensor)


def _tag(storage: Any) -> str | None:
    return "cuda:0" if getattr(storage, "on_cuda", False) else None


def _restore(storage: Any, location: str) -> Any:
    if not location.startswith("cuda"):
        return None
    check_index(torch.device(location))
    storage.on_cuda = True
    return storage


def _rebuilding(rebuild: Any) -> Any:
    def rebuilding(storage: Any, *args: object) -> Tensor:
        real: Tensor = rebuild(storage, *args)
        return CudaTensor(real) if getattr(storage._untyped_storage, "on_cuda", False) else real

    return rebuilding
