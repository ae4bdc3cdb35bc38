"""`HierarchicalPacker`: a manager picks the item and a worker places it."""

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
from torchrl_gpu.envs.state_validation import ANY, Bounds, Entry
from torchrl_gpu.policies.exploration import random_legal
from torchrl_gpu.policies.indices import indices
from torchrl_gpu.policies.packing.hierarchical.networks import PlacementUNet, StateValue, ViewResNet
from torchrl_gpu.policies.packing.hierarchical.views import ItemViews, PlacementPlanes, known_rows
from torchrl_gpu.policies.packing.placements import checked_entries, join_batch
from torchrl_gpu.policies.weights import float32, register_settings
from torchrl_gpu.system import arguments

# Maps that go through the U-Net at once, which bounds its memory whatever the batch.
_IMAGES = 192
# J that a network's output of 1 stands for: what an item or a placement adds is about a tenth of it.
POINT = 0.01
# Weight of wasted volume against that of the bounding box, in the rule "waste".
WASTE_WEIGHT = 0.5
# Items packed that count as 1 among features of the state.
_USUAL_ITEMS = 50
PICKS = ("learned", "waste", "box", "random")
PLACES = ("learned", "growth")


class Decision(NamedTuple):
    """One decision for each bin.

    Attributes:
        slot: Visible item, (B,) int64.
        variant: item · O + orientation, (B,) int64.
        place: gx · Gy + gy, (B,) int64.
        action: Index of the environment's action, (B,) int64.
        least: Growth of the pile by the item's best placement, (B,) float32, bin volumes.
    """

    slot: Tensor
    variant: Tensor
    place: Tensor
    action: Tensor
    least: Tensor


class ItemPlacements(NamedTuple):
    """Placements of one item for each bin, in J orientations.

    Attributes:
        orientation: (B, J) int64.
        variant: item · O + orientation, (B, J) int64.
        legal: (B, J, Gx, Gy) bool.
        growth: (B, J, Gx, Gy) float32, bin volumes.
        scores: (B, J, Gx, Gy) float32.
    """

    orientation: Tensor
    variant: Tensor
    legal: Tensor
    growth: Tensor
    scores: Tensor


class ItemChoice(NamedTuple):
    """Items that the manager considered, and the one that it picked.

    Attributes:
        slot: Visible item, (B,) int64.
        candidates: Slots that it considered, (B, J) int64.
        waste: See `HierarchicalPacker.waste`, (B, J) float32, bin volumes; infinite if it was not computed.
    """

    slot: Tensor
    candidates: Tensor
    waste: Tensor


def _narrow(images: Tensor) -> AbstractContextManager[object]:
    """Autocast to bfloat16 on a GPU, where convolutions gain by it."""
    return torch.autocast("cuda", torch.bfloat16) if images.is_cuda else nullcontext()


class PackerNetworks(nn.Module):
    """Weights of the hierarchical packer.

    They fit any environment with the same bin, and any number and kind of items. Both networks answer for what they add
    to a simple rule, and start at zero: the worker (a U-Net and a linear score of the planes, which a few thousand
    transitions are enough to teach) to heightmap minimisation (Wang & Hauser, ICRA 2019), the manager to the largest
    bounding box first, minus the volume that the item's best placement would waste.

    Scores are advantages: what an item or a placement adds to the value of the state, which is learned as well (Wang et
    al. 2016) and needed in training only. Q-values, the sums, are of the reward `objective`: the J that the packing
    will still gain. On CUDA the networks run in bfloat16 whatever the Trainer's precision: of placements about as good
    it may choose another than a CPU does.

    Args:
        encoder: Encoder of the worker's U-Net.
        channels: Widths of its decoder.
        slope: J that is lost for each bin volume by which the pile grows, at first; then learned.
        box_slope: J gained for each bin volume of the bounding box of the item that the manager picks, at first.
        waste_slope: J lost for each bin volume that its best placement wastes, at first.
    """

    def __init__(
        self,
        encoder: str = "resnet18",
        channels: Sequence[int] = (64, 32, 16),
        slope: float = 0.2,
        box_slope: float = 0.5,
        waste_slope: float = 0.25,
    ) -> None:
        super().__init__()
        for name, value in (("slope", slope), ("box_slope", box_slope), ("waste_slope", waste_slope)):
            arguments.number("PackerNetworks", name, value)
        # A linear score beside the U-Net learns from few transitions what the U-Net learns late.
        self.worker = PlacementUNet(PlacementPlanes.num_planes, encoder, channels)
        self.linear = nn.Conv2d(PlacementPlanes.num_planes, 1, 1, bias=False)
        nn.init.zeros_(self.linear.weight)
        self.manager = ViewResNet(ItemViews.num_views)
        self.value = StateValue()
        first_slope = float32(slope)
        self.slope = nn.Parameter(first_slope)
        self.box_slope = nn.Parameter(float32(box_slope))
        self.waste_slope = nn.Parameter(float32(waste_slope))

    def deep(self) -> list[nn.Parameter]:
        """Weights of U-Net and ResNet, which are most of all."""
        return [*self.worker.parameters(), *self.manager.parameters()]

    def score_places(self, planes: Tensor, growth: Tensor) -> Tensor:
        """Advantages (B, J, Gx, Gy) float32 of placements.

        Args:
            planes: (B, J, C, Gx, Gy).
            growth: (B, J, Gx, Gy).
        """
        images = planes.flatten(0, 1)
        with _narrow(images):
            images_at_once = images.split(_IMAGES)
            parts = [self.worker(part) + self.linear(part)[:, 0] for part in images_at_once]
            scores = torch.cat(parts)
        added = POINT * scores.float().view(growth.shape)
        return added - self.slope * growth

    def score_items(self, views: Tensor, box: Tensor, waste: Tensor) -> Tensor:
        """Advantages (B, K) float32 of items.

        Args:
            views: (B, K, C, V, V).
            box, waste: Bounding boxes and waste, (B, K), bin volumes.
        """
        images = views.flatten(0, 1)
        with _narrow(images):
            parts = [self.manager(part) for part in images.split(_IMAGES)]
            scores = torch.cat(parts)
        learned = POINT * scores.view(box.shape)
        added = learned + self.box_slope * box
        return added - self.waste_slope * waste


@final
class HierarchicalPacker(TensorDictModuleBase):
    """Hierarchical packing policy of one environment.

    One pass decides for all bins of a batch. Huang, Wang, Zhou, Lu, RA-L 8(1), 2023. Departs from the paper: scores are
    given at the placement grid, not at every cell; each network adds to a rule (see `PackerNetworks`); the worker keeps
    to placements that raise the pile by at most `margin` more than the best one does, as its experience is of those
    (Fujimoto et al., ICML 2019).

    Under `ExplorationType.RANDOM` it explores: with probability `epsilon` a placement is drawn uniformly from those
    within the margin, and with probability `item_epsilon` an item from those that fit.

    Args:
        env: Gives the bin, the items and the kernels, which an `AgentSpace` does not hold.
        networks: The weights.
        items: Who picks the item: "learned", "box" (the largest bounding box that fits), "waste" (the largest, minus
            half of the volume that its best placement wastes) or "random".
        places: Who places it: "learned" or "growth" (heightmap minimisation).
        margin: In bin volumes.
        view_cells: Pixels along each side of the manager's views.
        shortlist: Orientations that are looked at, those that raise the pile least; None for all. The margin leaves few
            of the others anyway.
        item_shortlist: Items that the manager looks at, the largest of those that fit; None for all.

    Attributes:
        mask_rule: Which actions it chooses, for manifests.
        why_no_graph: Why it cannot be exported.
    """

    mask_rule = (
        "only placements whose legal_mask is true are chosen, of an item whose item_mask is true; where all are false"
        " the action means nothing: take none"
    )
    why_no_graph = "the hierarchical packer, which needs its environment: `torchrl-gpu serve-policy` serves it"

    def __init__(
        self,
        env: PackingEnv,
        networks: PackerNetworks,
        items: str = "learned",
        places: str = "learned",
        margin: float = 0.002,
        view_cells: int = 32,
        shortlist: int | None = None,
        item_shortlist: int | None = None,
    ) -> None:
        super().__init__()
        where = "HierarchicalPacker"
        self.margin = arguments.number(where, "margin", margin, 0)
        self.shortlist = arguments.optional(arguments.whole, where, "shortlist", shortlist, 1)
        self.item_shortlist = arguments.optional(arguments.whole, where, "item_shortlist", item_shortlist, 1)
        self._set_rules(items, places)
        if "z_map" not in env.include:
            raise ValueError(f"{where}: the environment must include z_map, not only {list(env.include)}")
        self.networks = networks
        self.planes = PlacementPlanes(env)
        self.views = ItemViews(env, view_cells)
        maps = env.action_shape
        slots = maps[:1]
        self._forms = {
            "box_heightmap": (torch.float32, env.bin.cells),
            "item_id": (torch.int64, slots),
            "item_mask": (torch.bool, slots),
            "z_map": (torch.float32, maps),
            "legal_mask": (torch.bool, maps),
        }
        self.in_keys = list(self._forms)
        self.out_keys = ["action", "slot", "variant", "place", "least", "candidates", "waste"]
        self.num_orientations = env.num_orientations
        self.epsilon: Tensor
        self.item_epsilon: Tensor
        self.box: Tensor
        self.volume: Tensor
        box = env.catalogue.box_volume(env.bin) / env.bin.volume
        volume = env.catalogue.volume / env.bin.volume
        # The last row stands for no item.
        box = torch.cat([box, box.new_zeros(1)]).float()
        volume = torch.cat([volume, volume.new_zeros(1)]).float()
        register_settings(self, epsilon=0.0, item_epsilon=0.0, box=box, volume=volume)
        self.height = env.bin.size[2]

    def choosing(self, items: str, places: str) -> HierarchicalPacker:
        """Return the same packer with other rules for items and places.

        Weights, maps of the items and epsilons are shared.
        """
        # A shallow copy of a module shares its parameters and buffers.
        other = copy.copy(self)
        other._set_rules(items, places)
        return other

    def _set_rules(self, items: str, places: str) -> None:
        self.items = arguments.choice("HierarchicalPacker", "items", items, PICKS)
        self.places = arguments.choice("HierarchicalPacker", "places", places, PLACES)

    def written(self) -> dict[str, Entry]:
        """Specs of the outputs besides the action, without batch axes.

        A loaded replay is validated by them.
        """
        k, _, gx, gy = self._forms["z_map"][1]
        num_variants = (len(self.box) - 1) * self.num_orientations
        items = min(self.item_shortlist or k, k)
        slots = Bounds(0, k - 1)
        floats = Entry(torch.float32, (), Bounds(*ANY))
        variants = Bounds(-1, num_variants - 1)
        places = Bounds(0, gx * gy - 1)
        outputs = {
            "slot": Entry(torch.int64, (), slots),
            "variant": Entry(torch.int64, (), variants),
            "place": Entry(torch.int64, (), places),
            "least": floats,
        }
        outputs["candidates"] = Entry(torch.int64, (items,), slots)
        outputs["waste"] = floats.behind(items)
        return outputs

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write the fields of `Decision` and `ItemChoice`, behind the batch shape."""
        return self._decide(tensordict, with_values=False)

    @property
    def has_values(self) -> bool:
        """Whether `decide` writes values of the actions."""
        return self.places == "learned"

    def decide(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write what `forward` writes, and `action_value` (…, K·O·Gx·Gy).

        These are the worker's advantages of the chosen item, −inf for what it does not look at.
        """
        return self._decide(tensordict, self.has_values)

    def _decide(self, tensordict: TensorDictBase, with_values: bool) -> TensorDictBase:
        shape = tensordict.shape
        given = checked_entries("HierarchicalPacker", tensordict, self._forms, self.box.device)
        flat = join_batch(given, len(shape))
        heightmap, item_id, item_mask, z_map, legal = flat
        choice = self.pick(heightmap, item_id, item_mask, (z_map, legal))
        row = indices(len(item_id), item_id.device)
        slot = choice.slot
        item = item_id[row, slot]
        placements = self._placements(heightmap, item, z_map[row, slot], legal[row, slot])
        written = self._choose(slot, placements)._asdict() | choice._asdict()
        if with_values:
            near = self._near(placements.growth, placements.legal)
            scores = torch.where(near, placements.scores, -torch.inf)
            index = placements.orientation[:, :, None, None].expand_as(scores)
            # Other items and orientations were not looked at: they can never be the best.
            values = torch.full_like(z_map, -torch.inf)
            of_item = values[row, slot].scatter(1, index, scores)
            values[row, slot] = of_item
            written["action_value"] = values.flatten(1)
        outputs = {}
        for name, value in written.items():
            rest = value.shape[1:]
            outputs[name] = value.view((*shape, *rest))
        return tensordict.update(outputs)

    def pick(
        self, heightmap: Tensor, item_id: Tensor, item_mask: Tensor, maps: tuple[Tensor, Tensor] | None = None
    ) -> ItemChoice:
        """Pick the item to pack next.

        Args:
            heightmap: (B, X, Y) float32, metres.
            item_id: (B, K) int64.
            item_mask: Items that fit, (B, K) bool.
            maps: z-maps and legal placements, (B, K, O, Gx, Gy); made again if not given.
        """
        box = self.box[self._row(item_id)]
        box = torch.where(item_mask, box, -torch.inf)
        visible = box.shape[1]
        number = min(self.item_shortlist or visible, visible)
        # The largest boxes come first, and those that do not fit, with −∞, last.
        candidates = box.sort(dim=1, descending=True, stable=True).indices[:, :number]
        # Rules that do not look at the waste have none to tell.
        unseen = box.new_full(candidates.shape, torch.inf)
        if self.items == "random":
            slot = random_legal(item_mask)
            return ItemChoice(slot, candidates, unseen)
        if self.items == "box":
            return ItemChoice(candidates[:, 0], candidates, unseen)
        item = item_id.gather(1, candidates)
        allowed = item_mask.gather(1, candidates)
        maps_of_candidates = None
        if maps is not None:
            z_map, legal = maps
            maps_of_candidates = (rows_of(z_map, candidates), rows_of(legal, candidates))
        # An infinite waste would mean that none was computed, and the manager's loss leaves out such rows.
        waste = torch.where(allowed, self.waste(heightmap, item, maps_of_candidates), 0.0)
        scores = self.item_scores(heightmap, item, waste)
        best = torch.where(allowed, scores, -torch.inf).argmax(1)
        if self.items == "learned":
            best = self._explore(best, allowed, self.item_epsilon)
        slot = candidates.gather(1, best[:, None])[:, 0]
        return ItemChoice(slot, candidates, waste)

    def waste(self, heightmap: Tensor, item: Tensor, maps: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """Volume that the best placement of items (B, J) would close off, in bin volumes.

        It is the growth of the pile minus the volume of the item, (B, J); infinite if the item fits nowhere. Arguments
        are those of `pick`.
        """
        variants = self._variants(item)  # (B, J, O)
        if maps is None:
            z_map, legal, growth = self._maps(heightmap, variants.flatten(1))
        else:
            z_map = maps[0].flatten(1, 2)
            legal = maps[1].flatten(1, 2)
            growth = self.planes.growth(heightmap, variants.flatten(1), z_map)
        least = torch.where(legal, growth, torch.inf).amin((2, 3))
        # Of each orientation first, then of the best one.
        least = least.view_as(variants).amin(2)
        return least - self.volume[self._row(item)]

    def item_scores(self, heightmap: Tensor, item_id: Tensor, waste: Tensor) -> Tensor:
        """Scores (B, J) float32 of items on piles (B, X, Y), metres.

        `waste` is (B, J), bin volumes.
        """
        box = self.box[self._row(item_id)]
        if self.items == "waste":
            return box - WASTE_WEIGHT * waste
        return self.networks.score_items(self.views(heightmap, item_id), box, waste)

    def state_features(self, heightmap: Tensor, item_id: Tensor, utilization: Tensor, num_packed: Tensor) -> Tensor:
        """Features (B, 10) float32 for `StateValue`.

        Args:
            heightmap: (B, X, Y), metres.
            item_id: (B, K).
            utilization, num_packed: (B, 1).
        """
        row = self._row(item_id)
        pile = heightmap.flatten(1) / self.height
        box = self.box[row]
        volume = self.volume[row]
        features = [pile.mean(1), pile.amax(1), pile.std(1)]
        count = num_packed[:, 0].float() / _USUAL_ITEMS
        features += [utilization[:, 0], count]
        is_visible = (item_id >= 0).float()
        features += [is_visible.mean(1), box.sum(1), volume.sum(1)]
        largest = 10 * volume.amax(1)
        last = 10 * volume[:, -1]
        features += [largest, last]
        return torch.stack(features, 1)

    def _choose(self, slot: Tensor, placements: ItemPlacements) -> Decision:
        """Choose the placement of the item in `slot` (B,)."""
        growth = placements.growth
        legal = placements.legal
        # What is not looked at raises the pile more.
        least = torch.where(legal, growth, torch.inf).amin((1, 2, 3))
        near = self._near(growth, legal).flatten(1)
        scores = placements.scores.flatten(1)
        best = torch.where(near, scores, -torch.inf).argmax(1)
        best = self._explore(best, near, self.epsilon)
        per_map = legal[0, 0].numel()
        turned = (best // per_map)[:, None]
        place = best % per_map
        variant = placements.variant.gather(1, turned)[:, 0]
        orientation = placements.orientation.gather(1, turned)[:, 0]
        action = (slot * self.num_orientations + orientation) * per_map + place
        return Decision(slot, variant, place, action, least)

    def _placements(self, heightmap: Tensor, item: Tensor, z_map: Tensor, legal: Tensor) -> ItemPlacements:
        """Placements of items (B,) that are looked at, given their maps (B, O, Gx, Gy)."""
        variants = self._variants(item)
        growth = self.planes.growth(heightmap, variants, z_map)
        orientation = self._orientations(growth, legal)  # (B, J)
        variants = rows_of(variants, orientation)
        z_map = rows_of(z_map, orientation)
        legal = rows_of(legal, orientation)
        growth = rows_of(growth, orientation)
        if self.places == "growth":
            scores = -growth
        else:
            planes = self.planes(heightmap, variants, z_map, legal, growth)
            scores = self.networks.score_places(planes, growth)
        return ItemPlacements(orientation, variants, legal, growth, scores)

    def _orientations(self, growth: Tensor, legal: Tensor) -> Tensor:
        """Orientations (B, J) int64 that are looked at, in their own order.

        They are those with the least growth.
        """
        every = indices(self.num_orientations, growth.device)
        every = every.expand(len(growth), -1)
        if self.shortlist is None or self.shortlist >= self.num_orientations:
            return every
        least = torch.where(legal, growth, torch.inf).amin((2, 3))
        order = least.sort(dim=1, stable=True).indices
        return order[:, : self.shortlist].sort(1).values

    def scores_of(self, heightmap: Tensor, variants: Tensor) -> Tensor:
        """Advantages (B, J, Gx, Gy) float32 of variants (B, J) without maps.

        The maps are made, on piles (B, X, Y).
        """
        z_map, legal, growth = self._maps(heightmap, variants)
        planes = self.planes(heightmap, variants, z_map, legal, growth)
        return self.networks.score_places(planes, growth)

    def best_advantage(self, heightmap: Tensor, item: Tensor, targets: PackerNetworks) -> Tensor:
        """Advantage (B,) by `targets` of the placement that this packer chooses.

        It is that of `item` (B,) on piles (B, X, Y), over the advantage of a placement by heightmap minimisation, as
        far as `slope` tells.
        """
        variants = self._variants(item)
        z_map, legal, growth = self._maps(heightmap, variants)
        planes = self.planes(heightmap, variants, z_map, legal, growth)
        scores = self.networks.score_places(planes, growth)
        near = self._near(growth, legal)
        scores = torch.where(near, scores, -torch.inf)
        best = scores.flatten(1).argmax(1, keepdim=True)
        least = torch.where(legal, growth, torch.inf).amin((1, 2, 3))
        advantages = targets.score_places(planes, growth)
        advantage = advantages.flatten(1).gather(1, best)[:, 0]
        return advantage + targets.slope * least

    def _variants(self, item: Tensor) -> Tensor:
        orientation = indices(self.num_orientations, item.device)
        row = self._row(item)[..., None]
        is_none = row == len(self.box) - 1
        return torch.where(is_none, -1, row * self.num_orientations + orientation)

    def _row(self, item_id: Tensor) -> Tensor:
        """Rows of `box` and `volume`, the last one for ids that are not in the catalogue."""
        none = len(self.box) - 1
        return known_rows(item_id, none)

    def _maps(self, heightmap: Tensor, variants: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """z-maps, legal placements and growth of variants (B, J), (B, J, Gx, Gy) each."""
        planes = self.planes
        kernels = planes.kernels
        z_map, legal = kernels.drop_map(heightmap, variants, planes.catalogue, planes.bin)
        z_map = z_map[:, :, 0]
        legal = legal[:, :, 0]
        return z_map, legal, planes.growth(heightmap, variants, z_map)

    def _near(self, growth: Tensor, legal: Tensor) -> Tensor:
        """Whether a placement is legal and within the margin."""
        legal_growth = torch.where(legal, growth, torch.inf)
        least = legal_growth.amin((1, 2, 3), keepdim=True)
        return legal & (growth <= least + self.margin)

    def _explore(self, best: Tensor, allowed: Tensor, epsilon: Tensor) -> Tensor:
        if exploration_type() is not ExplorationType.RANDOM:
            return best
        draw = torch.rand(best.shape, device=best.device, dtype=torch.float32)
        explore = draw < epsilon
        drawn = random_legal(allowed)
        return torch.where(explore, drawn, best)


def rows_of(value: Tensor, index: Tensor) -> Tensor:
    """Select elements `index` (B, J) of `value` (B, O, …) along its second axis."""
    wide = index[(..., *[None] * (value.ndim - 2))]
    rest = value.shape[2:]
    return value.gather(1, wide.expand(-1, -1, *rest))
