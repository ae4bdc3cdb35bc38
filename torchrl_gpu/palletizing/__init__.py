"""Orders of boxes onto pallets, and pallets that are packed one box at a time.

Read `pallet` and `prepared_boxes` first, then `packing`. Whole orders go through `known_orders`: `layered` stacks full
layers of one article, `blocks` packs the rest on `flat_tops`, and `search` stands in for rules that blocks do not
satisfy. `packer` decides where a box goes that comes alone. `plan` and `page` are what comes out. `session` offers
places for one box at a time and is told where it lies; `sessions` keeps many of them in a folder, as JSON messages ask.
A session that is given its whole order follows an `order_plan`, whose exact places `planned_places` tests on cells.

Not here are the commands (`cli.packing`), the port that takes messages (`serving.packing`), the lists of boxes
(`envs.packing.items`), and the policies that choose places (`policies.packing`).
"""

from torchrl_gpu.palletizing.packer import Packer
from torchrl_gpu.palletizing.packing import pack
from torchrl_gpu.palletizing.pallet import Pallet
from torchrl_gpu.palletizing.plan import PalletPlans
from torchrl_gpu.palletizing.prepared_boxes import Boxes

__all__ = ["Boxes", "Packer", "Pallet", "PalletPlans", "pack"]
