"""A manager that picks the item and a worker that places it, over whole batches of bins."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, final

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn
from torchrl.envs.utils import ExplorationType, exploration_type

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.policies.exploration import random_legal
from torchrl_gpu.policies.packing.networks import PlacementUNet, StateValue, ViewResNet
from torchrl_gpu.policies.packing.views import ItemViews, PlacementPlanes

_IMAGES = 192  # maps that go through the U-Net at once: bounds its memory whatever the batch
PICKS = ("learned", "box", "random")
PLACES = ("learned", "growth")


class Chosen(NamedTuple):
    """One decision for each bin, (B,) int64 each."""

    slot: Tensor  # which visible item
    variant: Tensor  # item · O + orientation
    place: Tensor  # gx · Gy + gy
    action: Tensor  # index of the environment's action


def _narrow(images: Tensor) -> AbstractContextManager[object]:
    """bfloat16 on a GPU, where convolutions gain by it; elsewhere nothing changes."""
    return torch.autocast("cuda", torch.bfloat16) if images.is_cuda else nullcontext()


class PackerNetworks(nn.Module):
    """The weights of the hierarchical packer: they fit any environment with the same bin, items of any number and kind.

    Both networks answer for what they add to a simple rule, and start at zero: the worker (a U-Net beside a linear
    score of the planes, which a few thousand transitions teach already) to heightmap minimisation
    (Wang & Hauser, ICRA 2019), the manager to the largest bounding box first. Scores are advantages: what an item or a
    placement adds to the value of the state, which is learned beside them (Wang et al. 2016) and needed in training
    alone. Q-values, the sums, are of the reward `objective`: what J the packing will still gain. On CUDA the networks
    run in bfloat16 whatever the Trainer's precision: of placements about as good it may choose another than a CPU does.

    Args:
        encoder: Of the worker's U-Net.
        channels: Of its decoder.
        slope: J that is lost for each bin volume by which the pile grows, at first; then learned.
        box_slope: J gained for each bin volume of the bounding box of the item that the manager picks, likewise.
    """

    def __init__(
        self,
        encoder: str = "resnet18",
        channels: Sequence[int] = (64, 32, 16),
        slope: float = 0.2,
        box_slope: float = 0.5,
    ) -> None:
        super().__init__()
        self.worker = PlacementUNet(PlacementPlanes.num_planes, encoder, channels)
        self.linear = nn.Conv2d(PlacementPlanes.num_planes, 1, 1, bias=False)
        nn.init.zeros_(self.linear.weight)
        self.manager = ViewResNet(ItemViews.num_views)
        self.value = StateValue()
        self.slope = nn.Parameter(torch.tensor(float(slope)))
        self.box_slope = nn.Parameter(torch.tensor(float(box_slope)))

    def score_places(self, planes: Tensor, growth: Tensor) -> Tensor:
        """Advantages (B, J, Gx, Gy) float32 of planes (B, J, C, Gx, Gy) and growth (B, J, Gx, Gy)."""
        images = planes.flatten(0, 1)
        with _narrow(images):
            scores = torch.cat([self.worker(part) + self.linear(part)[:, 0] for part in images.split(_IMAGES)])
        return scores.float().view(growth.shape) - self.slope * growth

    def score_items(self, views: Tensor, box: Tensor) -> Tensor:
        """Advantages (B, K) float32 of views (B, K, C, V, V) and bounding boxes (B, K), in bin volumes."""
        images = views.flatten(0, 1)
        with _narrow(images):
            scores = torch.cat([self.manager(part) for part in images.split(_IMAGES)])
        return scores.view(box.shape) + self.box_slope * box


@final
class HierarchicalPacker(TensorDictModuleBase):
    """The packer in one environment: reads what it shows and writes `action`; one pass for all bins of a batch.

    Huang, Wang, Zhou, Lu, RA-L 8(1), 2023. Departs from the paper: scores are given at the placement grid, not at
    every cell; each network adds to a rule (see `PackerNetworks`); the worker keeps to placements that raise the pile
    by at most `margin` more than the best one does, as its experience is about those (Fujimoto et al., ICML 2019).

    Under `ExplorationType.RANDOM` it explores: with probability `epsilon` a placement is drawn uniformly from those
    within the margin, and with probability `item_epsilon` an item from those that fit.

    Args:
        env: Gives the bin, the items and the kernels.
        networks: The weights.
        items: Who picks the item: "learned", "box" (the largest bounding box that fits) or "random".
        places: Who places it: "learned" or "growth" (heightmap minimisation).
        margin: In bin volumes.
        view_cells: Pixels along each side of the manager's views.
        shortlist: Orientations that are looked at, those that raise the pile least; None for all. The margin leaves few
            of the others anyway.
    """

    def __init__(
        self,
        env: PackingEnv,
        networks: PackerNetworks,
        items: str = "learned",
        places: str = "learned",
        margin: float = 0.002,
        view_cells: int = 32,
        shortlist: int | None = None,
    ) -> None:
        super().__init__()
        _check_words(items, places)
        if margin < 0:
            raise ValueError(f"HierarchicalPacker: margin must be at least 0; got {margin}")
        if "z_map" not in env.include:
            raise ValueError(
                f"HierarchicalPacker: want an environment that includes z_map; got one of {list(env.include)}"
            )
        if shortlist is not None and shortlist < 1:
            raise ValueError(f"HierarchicalPacker: shortlist must be at least 1, or None; got {shortlist}")
        self.networks, self.items, self.places, self.margin = networks, items, places, margin
        self.shortlist = shortlist
        self.planes, self.views = PlacementPlanes(env), ItemViews(env, view_cells)
        self.in_keys = ["box_heightmap", "item_id", "item_mask", "z_map", "legal_mask"]
        self.out_keys = ["action", "slot", "variant", "place"]
        self.num_orientations = env.num_orientations
        self.epsilon: Tensor
        self.item_epsilon: Tensor
        self.box: Tensor
        self.volume: Tensor
        self.register_buffer("epsilon", torch.zeros(()), persistent=False)
        self.register_buffer("item_epsilon", torch.zeros(()), persistent=False)
        box = env.catalogue.box_volume(env.bin) / env.bin.volume
        self.register_buffer("box", torch.cat([box, box.new_zeros(1)]).float(), persistent=False)
        volume = env.catalogue.volume / env.bin.volume
        self.register_buffer("volume", torch.cat([volume, volume.new_zeros(1)]).float(), persistent=False)
        self.height = env.bin.size[2]

    def choosing(self, items: str, places: str) -> HierarchicalPacker:
        """The same packer by other words; weights, maps of the items and epsilons are shared."""
        _check_words(items, places)
        other = copy.copy(self)
        other.items, other.places = items, places
        return other

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Writes `action`, `slot`, `variant` and `place`, each of the batch shape of `tensordict`."""
        shape = tensordict.get("item_id").shape[:-1]
        heightmap, item_id, item_mask, z_map, legal = (
            tensordict.get(key).reshape(-1, *tensordict.get(key).shape[len(shape) :]) for key in self.in_keys
        )
        slot = self.pick(heightmap, item_id, item_mask)
        row = torch.arange(len(slot), device=slot.device)
        chosen = self.put(heightmap, item_id[row, slot], slot, z_map[row, slot], legal[row, slot])
        return tensordict.update({name: value.view(shape) for name, value in chosen._asdict().items()})

    def pick(self, heightmap: Tensor, item_id: Tensor, item_mask: Tensor) -> Tensor:
        """Slots (B,) int64 of the items to pack, of `item_id` (B, K) with `item_mask` (B, K)."""
        if self.items == "random":
            return random_legal(item_mask)
        scores = self.item_scores(heightmap, item_id)
        best = torch.where(item_mask, scores, -torch.inf).argmax(1)
        return self._explored(best, item_mask, self.item_epsilon) if self.items == "learned" else best

    def item_scores(self, heightmap: Tensor, item_id: Tensor) -> Tensor:
        """Scores (B, K) float32 of items on a pile (B, X, Y), metres."""
        box = self.box[item_id]  # −1 is the last, of no volume
        if self.items != "learned":
            return box
        return self.networks.score_items(self.views(heightmap, item_id), box)

    def state_figures(self, heightmap: Tensor, item_id: Tensor, utilization: Tensor, num_packed: Tensor) -> Tensor:
        """Figures (B, 10) float32 for `StateValue`: of piles (B, X, Y), visible items (B, K), what is packed (B, 1)."""
        pile, box, volume = heightmap.flatten(1) / self.height, self.box[item_id], self.volume[item_id]
        figures = [pile.mean(1), pile.amax(1), pile.std(1), utilization[:, 0], num_packed[:, 0] / 50]
        figures += [(item_id >= 0).float().mean(1), box.sum(1), volume.sum(1), 10 * volume.amax(1), 10 * volume[:, -1]]
        return torch.stack(figures, 1)

    def put(self, heightmap: Tensor, item: Tensor, slot: Tensor, z_map: Tensor, legal: Tensor) -> Chosen:
        """Places `item` (B,) that is in `slot` (B,), given its maps (B, O, Gx, Gy)."""
        variants = self._variants(item)
        growth = self.planes.growth(heightmap, variants, z_map)
        looked_at = self._looked_at(growth, legal)  # (B, J)
        variants, z_map, legal, growth = (_rows(value, looked_at) for value in (variants, z_map, legal, growth))
        if self.places == "growth":
            scores = -growth
        else:
            scores = self.networks.score_places(self.planes(heightmap, variants, z_map, legal, growth), growth)
        near = self._near(growth, legal).flatten(1)
        best = torch.where(near, scores.flatten(1), -torch.inf).argmax(1)
        best = self._explored(best, near, self.epsilon)
        per_map = legal[0, 0].numel()
        turned = (best // per_map)[:, None]
        variant, orientation = variants.gather(1, turned)[:, 0], looked_at.gather(1, turned)[:, 0]
        place = best % per_map
        return Chosen(slot, variant, place, (slot * self.num_orientations + orientation) * per_map + place)

    def _looked_at(self, growth: Tensor, legal: Tensor) -> Tensor:
        """The orientations (B, J) int64 that come into question, those with the least growth, in their own order."""
        every = torch.arange(self.num_orientations, device=growth.device).expand(len(growth), -1)
        if self.shortlist is None or self.shortlist >= self.num_orientations:
            return every
        least = torch.where(legal, growth, torch.inf).amin((2, 3))
        return least.sort(dim=1, stable=True).indices[:, : self.shortlist].sort(1).values

    def scores_of(self, heightmap: Tensor, variants: Tensor) -> Tensor:
        """Advantages (B, J, Gx, Gy) float32 of variants (B, J) on piles (B, X, Y) whose maps are not at hand."""
        z_map, legal, growth = self._maps(heightmap, variants)
        return self.networks.score_places(self.planes(heightmap, variants, z_map, legal, growth), growth)

    def best_advantage(self, heightmap: Tensor, item: Tensor, targets: PackerNetworks) -> Tensor:
        """Advantage (B,) by `targets` of the placement that this packer chooses for `item` (B,) on piles (B, X, Y)."""
        variants = self._variants(item)
        z_map, legal, growth = self._maps(heightmap, variants)
        planes = self.planes(heightmap, variants, z_map, legal, growth)
        scores, near = self.networks.score_places(planes, growth), self._near(growth, legal)
        best = torch.where(near, scores, -torch.inf).flatten(1).argmax(1, keepdim=True)
        return targets.score_places(planes, growth).flatten(1).gather(1, best)[:, 0]

    def _variants(self, item: Tensor) -> Tensor:
        orientation = torch.arange(self.num_orientations, device=item.device)
        return torch.where(item[:, None] < 0, -1, item[:, None] * self.num_orientations + orientation)

    def _maps(self, heightmap: Tensor, variants: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        planes = self.planes
        z_map, legal = (m[:, :, 0] for m in planes.kernels.drop_map(heightmap, variants, planes.catalogue, planes.bin))
        return z_map, legal, planes.growth(heightmap, variants, z_map)

    def _near(self, growth: Tensor, legal: Tensor) -> Tensor:
        least = torch.where(legal, growth, torch.inf).amin((1, 2, 3), keepdim=True)
        return legal & (growth <= least + self.margin)

    def _explored(self, best: Tensor, allowed: Tensor, epsilon: Tensor) -> Tensor:
        if exploration_type() is not ExplorationType.RANDOM:
            return best
        explore = torch.rand(best.shape, device=best.device) < epsilon
        return torch.where(explore, random_legal(allowed), best)


def _rows(value: Tensor, index: Tensor) -> Tensor:
    """Entries `index` (B, J) of `value` (B, O, …) along its second axis."""
    return value.gather(1, index[(..., *[None] * (value.ndim - 2))].expand(-1, -1, *value.shape[2:]))


def _check_words(items: str, places: str) -> None:
    for name, word, words in (("items", items, PICKS), ("places", places, PLACES)):
        if word not in words:
            raise ValueError(f"HierarchicalPacker: {name} must be one of {', '.join(words)}; got {word!r}")
