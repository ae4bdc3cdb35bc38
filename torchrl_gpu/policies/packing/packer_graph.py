"""The hierarchical packer as one graph of plain operators, the maps of its items inside."""

from __future__ import annotations

import copy
from typing import final

from torch import Tensor, nn

from torchrl_gpu.envs.packing.types import Bin, Catalogue
from torchrl_gpu.policies.packing.contact_growth import ContactGrowth
from torchrl_gpu.policies.packing.hierarchical import HierarchicalPacker, rows_of


@final
class PackerGraph(nn.Module):
    """What a packer decides, as a function of tensors that torch.export and the exporter of ONNX take.

    It shares the packer's code but for one kernel: `pile_growth`, which is compiled, is `ContactGrowth` here. That
    wants z-maps as the environment makes them, where items come to rest.

    Args:
        packer: On the CPU; it is copied.
    """

    def __init__(self, packer: HierarchicalPacker) -> None:
        super().__init__()
        planes = packer.planes
        self.growth = ContactGrowth(planes.catalogue, planes.bin)
        self.packer = copy.deepcopy(packer, {id(planes.catalogue): None})  # of which nothing else is asked
        self.packer.planes.kernels = planes.kernels._replace(pile_growth=self._pile_growth)

    def forward(self, *observations: Tensor) -> Tensor:
        """Actions (B,) int64 of what the environment shows, in the order of the packer's `in_keys`."""
        heightmap, item_id, item_mask, *maps = observations
        slot = self.packer.pick(heightmap, item_id, item_mask, (maps[0], maps[1])).slot
        at = slot[:, None]
        z_map, legal = (rows_of(value, at)[:, 0] for value in maps)
        return self.packer.put(heightmap, item_id.gather(1, at)[:, 0], slot, z_map, legal).action

    def _pile_growth(
        self, heightmap: Tensor, variant: Tensor, z_map: Tensor, catalogue: Catalogue, bin_: Bin
    ) -> Tensor:
        return self.growth(heightmap, variant, z_map[:, :, 0])[:, :, None]
