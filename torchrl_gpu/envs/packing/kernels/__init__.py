"""The kernels of packing: one function per job, one file per backend.

- `drop_map`: where every item comes to rest on every placement, and whether it may stay there.
- `place`: the heightmap after a placement.
- `pile_growth`: by how much each placement would raise the heightmap.

`reference` (NumPy) is the definition; the others must agree with it.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

from torch import Tensor

from torchrl_gpu.envs.packing.kernels import eager, reference
from torchrl_gpu.envs.packing.types import Bin, Catalogue

BACKENDS: dict[str, ModuleType] = {"eager": eager, "reference": reference}


class Kernels(NamedTuple):
    """The jobs of one backend."""

    backend: str
    drop_map: Callable[[Tensor, Tensor, Catalogue, Bin], tuple[Tensor, Tensor]]
    place: Callable[[Tensor, Placement, Catalogue, Bin], Tensor]
    pile_growth: Callable[[Tensor, Tensor, Tensor, Catalogue, Bin], Tensor]


class Placement(NamedTuple):
    """One placement per environment.

    Attributes:
        item_id: (N,) int64; −1 places nothing.
        orientation: (N,) int64.
        x: (N,) int64, first cell of the footprint.
        y: (N,) int64.
        z: (N,) float32, base of the item, metres.
    """

    item_id: Tensor
    orientation: Tensor
    x: Tensor
    y: Tensor
    z: Tensor


def available_backends() -> dict[str, str]:
    """Every backend by name with the reason why it cannot run here; "" where it can."""
    return dict.fromkeys(BACKENDS, "")


def get_kernels(backend: str = "auto") -> Kernels:
    """The jobs of a backend, "auto" being the fastest that runs here.

    Raises:
        ValueError: There is no such backend.
    """
    name = "eager" if backend == "auto" else backend
    if name not in BACKENDS:
        raise ValueError(f"get_kernels: backend must be auto or one of {', '.join(BACKENDS)}; got {backend!r}")
    module = BACKENDS[name]
    return Kernels(name, module.drop_map, module.place, module.pile_growth)
