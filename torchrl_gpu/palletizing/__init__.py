"""Orders of boxes onto pallets.

`packer` decides where a box goes on any of some open pallets, `packing` does so with whole orders, `plan` and `page`
are what comes out. `session` asks for one box at a time and is told where it lies; `sessions` are many, as messages.
"""

from torchrl_gpu.palletizing.packer import Boxes, Packer, Pallet
from torchrl_gpu.palletizing.packing import pack
from torchrl_gpu.palletizing.plan import PalletPlans

__all__ = ["Boxes", "Packer", "Pallet", "PalletPlans", "pack"]
