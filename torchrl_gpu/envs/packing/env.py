"""Bin packing on heightmaps, batched, on the device."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, replace
from functools import cached_property, partial

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Binary, Bounded, Categorical, Composite, TensorSpec, Unbounded

from torchrl_gpu import native
from torchrl_gpu.envs.base import BatchedEnv, Conflict, ConstructorArguments, NumEnvs
from torchrl_gpu.envs.memory import check_fits, measure_bytes_per_env
from torchrl_gpu.envs.packing.geometry import grid_positions
from torchrl_gpu.envs.packing.items import ItemSequences, ItemSource, item_source
from torchrl_gpu.envs.packing.items.source import SameItems, SortedSequences, check_built
from torchrl_gpu.envs.packing.kernels import Setting, balanced, get_kernels, judge_placements, tested_in
from torchrl_gpu.envs.packing.kernels.transition import skip_first_item
from torchrl_gpu.envs.packing.physics.scene import FRICTION
from torchrl_gpu.envs.packing.reward import REWARDS, WEIGHTS, Weights, reward_of_step
from torchrl_gpu.envs.packing.stability.rule import Pile
from torchrl_gpu.envs.packing.types import (
    BEARING_TILT,
    STABILITY_RULES,
    Bin,
    Catalogue,
    Moved,
    PackingState,
    Placement,
    StoredMaps,
    height_rules,
)
from torchrl_gpu.envs.state_validation import Bounds
from torchrl_gpu.system import arguments
from torchrl_gpu.system.threads import runs_single_threaded

LARGE_KEYS = ("item_top", "item_bottom", "z_map")
INCLUDED_KEYS = (*LARGE_KEYS, "future_items", "packed_items")
# Numbers by which an order has its largest item first, (M,).
SORT_KEYS: dict[str, Callable[[Catalogue, Bin], Tensor]] = {
    "volume": lambda catalogue, bin_: catalogue.volume,
    "box": Catalogue.box_volume,
}
ITEM_ORDERS = ("sequence", *SORT_KEYS)
# Items of an episode, and visible ones: they are drawn by a counter of 32 bits.
MOST_ITEMS = 2**31 - 1
# Fields of the state that observations hold.
_OBSERVED = ("heightmap", "bears", "item_id", "legal", "z_map", "num_packed", "step_count")
_JUDGES = ("rule", "com")
# Cells of the maps of all boxes together up to which the maps are kept.
_MOST_MAP_CELLS = 1 << 20
# Measured: up to here a step of boxes on one thread of torch, next to the kernels' own, is as fast as on all.
_FEW_ENVS_OF_BOXES = 16_384


class PackingEnv(BatchedEnv):
    """Batched bin packing from above.

    Each step places one visible item in an orientation at a grid position. With no arguments but the number of
    environments it is bpp10: a bin of 10×10×10 cells and boxes of whole cells. Keys, shapes and physics are those of
    the table in `docs/environments/packing-reference.md`.

    Args:
        num_envs: N, bins packed side by side; in the config of a run also "auto", see `docs/training.md`.
        bin_size: Length, width and height, metres.
        resolution: Cells along x and y; one number for both.
        grid_step: Cells between neighbouring placements.
        items: An item source, or "random", "cut", "orders", "procedural", or the path of a file of box sequences, of a
            mesh file or of a folder of them.
        num_items: Most items of an episode.
        visible_items: K, items to choose from.
        orientations: "fixed", "yaw", "axis", "cube", or a step in degrees; see `rotations.orientation_set`.
        stability: Rule for legal placements: "none", "corners" (Zhao et al., AAAI 2021), "support" (GOPT, RA-L 2024),
            "com" (the centre of mass lies over the contact cells) or, for boxes, "load_bearing" (the middle lies, by a
            margin, over contact cells that bear load themselves: forces exist that hold every box where its contacts
            are of one height).
        margin: Metres that the middle must lie inside its support, by the rule "load_bearing"; at most a quarter of the
            box's side counts.
        max_tilt: Degrees at which a box may come to lie, by the same rule: the further from its middle, the lower what
            bears it may be. 0 wants what is level, up to 1.5 mm.
        bearing_tilt: Degrees up to which a box that leans passes load on, by the same rule. What leans further bears
            load only over the part that is level.
        fallback: Rule for boxes where none of the visible ones has a stable placement, one of `height_rules`; with None
            the episode ends there.
        reward: "utilization" (gain in packed volume over bin volume) or "objective" (gain in J, Huang et al. 2023).
        stability_judge: Stability test of the last placement, for S in J: "rule" (every legal placement is stable) or
            "com" (by that rule, whatever is legal).
        walls: Whether the bin has walls, as a container, or none, as a pallet: what simulated items can fall off.
        friction: Coulomb's coefficient between any two things in simulations.
        objective_weights: α, β and γ of J: of compactness, pyramidality and stability.
        skip_unplaceable: Continue an episode where no visible item fits: the next step, whatever its action, skips the
            first of them for the reward 0, and the episode ends when no item is left. Until then such states have no
            legal action, so that this is for evaluation, not for training.
        order: "sequence" (as the source gives them), "volume" (largest first) or "box" (largest bounding box first).
        include: Which of `INCLUDED_KEYS` to return: the large observations, `packed_items`, and `future_items`, the
            ids of the items behind the visible ones.
        backend: Kernels, "auto" or a name from `kernels.BACKENDS`.
        incremental: Reuse the maps of visible items wherever the last placement did not change the heightmap below;
            this changes the time of a step, not its maps.
        device: As in `get_device`.
        seed: Decides every episode of every environment; None draws one from torch's global generator.
        first_env: Number of the first environment, so that ranks or shards see different episodes.
        copy_observations: Give observations as copies. Otherwise some of what `reset` and `step` give are the state's
            own tensors, not copies, until the next step: writing into one changes the environment.

    An action that is not legal leaves the bin as it is, ends the episode and gives reward 0.
    """

    outcomes = ("utilization",)
    state: PackingState
    _state: PackingState

    def __init__(
        self,
        num_envs: NumEnvs = 64,
        *,
        bin_size: tuple[float, float, float] = (10.0, 10.0, 10.0),
        resolution: int | tuple[int, int] = 10,
        grid_step: int = 1,
        items: str | ItemSource = "random",
        num_items: int = 100,
        visible_items: int = 1,
        orientations: str | float = "yaw",
        stability: str = "none",
        margin: float = 0.03,
        max_tilt: float = 0.0,
        bearing_tilt: float = BEARING_TILT,
        fallback: str | None = None,
        reward: str = "utilization",
        stability_judge: str = "rule",
        walls: bool = True,
        friction: float = FRICTION,
        objective_weights: Weights = WEIGHTS,
        skip_unplaceable: bool = False,
        order: str = "sequence",
        include: Sequence[str] = LARGE_KEYS,
        backend: str = "auto",
        incremental: bool = True,
        device: str | torch.device = "auto",
        seed: int | None = None,
        first_env: int = 0,
        copy_observations: bool = False,
    ) -> None:
        where = "PackingEnv"
        arguments.choice(where, "reward", reward, REWARDS)
        arguments.choice(where, "stability_judge", stability_judge, _JUDGES)
        arguments.choice(where, "order", order, ITEM_ORDERS)
        num_items = arguments.whole(where, "num_items", num_items, 1, MOST_ITEMS)
        visible_items = arguments.whole(where, "visible_items", visible_items, 1, MOST_ITEMS)
        super().__init__(num_envs, device, seed, first_env)
        num_envs = self.num_envs
        cells: tuple[int, int] = resolution  # type: ignore[assignment]
        self.bin = Bin(bin_size, cells, grid_step, stability, margin, max_tilt, bearing_tilt)
        self.margin = self.bin.margin
        self.max_tilt = self.bin.max_tilt
        self.bearing_tilt = self.bin.bearing_tilt
        self.fallback = None if fallback is None else arguments.choice(where, "fallback", fallback, height_rules())
        self.bin_size = self.bin.size
        self.grid_step = self.bin.step
        self.resolution = self.bin.cells if isinstance(resolution, (tuple, list)) else self.bin.cells[0]
        self.items = item_source(items)
        self.num_items = num_items
        self.visible_items = visible_items
        self.orientations = orientations
        self.stability = stability
        self.reward = reward
        self.order = order
        self.include = arguments.choices(where, "include", include, INCLUDED_KEYS)
        self.backend = backend
        self.incremental = arguments.flag(where, "incremental", incremental)
        self.stability_judge = stability_judge
        self.copy_observations = arguments.flag(where, "copy_observations", copy_observations)
        self.walls = arguments.flag(where, "walls", walls)
        self.skip_unplaceable = arguments.flag(where, "skip_unplaceable", skip_unplaceable)
        self.objective_weights = _weights(objective_weights)
        self.friction = arguments.number(where, "friction", friction, 0)
        self._check_effects()
        if not isinstance(backend, str):
            arguments.refuse(where, "backend", "a word", backend)
        self.kernels = get_kernels(backend, self.device)
        self.catalogue, self.item_sequences = self._build_items()
        check_fits(num_envs, self.least_bytes(), self.device, measure=lambda: self.bytes_per_env)
        self._slots = torch.arange(visible_items, device=self.device, dtype=torch.int64)
        # (M + 1, O, 4); the last row is that of no item.
        self._sizes = self._measure_items()
        self._map_rows = self._make_map_rows()
        self.few_envs = _FEW_ENVS_OF_BOXES if self.catalogue.flat else 0
        # Maps of boxes cost too little to be reused, and with one slot the only visible item is always a new one.
        self._keeps_maps = self.incremental and visible_items > 1 and not self.catalogue.flat
        setting = Setting(f"a bin of {self.bin.cells} cells", self.bin, self.catalogue, visible_items, num_envs, 1e-3)
        self.kernels = tested_in(self.kernels, setting, fall_back=backend == "auto")
        self.is_native = self.kernels.backend == "compiled"
        self._state = PackingState.blank(self.num_envs, visible_items, self.longest_episode, self.catalogue, self.bin)
        self._make_specs()

    def _check_effects(self) -> None:
        """Raise ValueError for an option that is set but has no effect with the others."""
        where = "PackingEnv"
        default = Bin(self.bin_size, self.bin.cells, self.grid_step)
        for rule in STABILITY_RULES.values():
            unread = [name for name in rule.options if name not in self.bin.rule.options]
            given = {name: (getattr(self.bin, name), getattr(default, name)) for name in unread}
            arguments.check_effect(where, f"stability {rule.name}", **given)
        if self.reward != "objective":
            arguments.check_effect(where, "reward objective", objective_weights=(self.objective_weights, WEIGHTS))

    # -- items, memory, sizes ---------------------------------------------------------------------------------------

    def _build_items(self) -> tuple[Catalogue, ItemSequences]:
        catalogue, sequences = self.items.build(self.bin, self.orientations, self.num_items, self.num_envs)
        check_built(f"{type(self.items).__name__}.build", catalogue, sequences)
        if self._tracks_bearing and not catalogue.flat:
            raise ValueError(f"PackingEnv: stability {self.stability} is for boxes; these items have maps")
        if self.fallback is not None and not catalogue.flat:
            raise ValueError(f"PackingEnv: fallback {self.fallback} is for boxes; these items have maps")
        if self.order != "sequence":
            sequences = SortedSequences(sequences, SORT_KEYS[self.order](catalogue, self.bin))
        catalogue = catalogue.to(self.device)
        if self.bin.rule.reads_centre or self.stability_judge == "com":
            catalogue = balanced(catalogue, self.bin)
        return catalogue, sequences.to(self.device)

    @property
    def item_sizes(self) -> Tensor:
        """Sides of each item's bounding box, and its volume: metres and cubic metres.

        (M, O, 4) float32.
        """
        return self._sizes[:-1]

    def _measure_items(self) -> Tensor:
        cell = torch.tensor(self.bin.cell, device=self.device, dtype=torch.float32)
        volume = self.catalogue.volume[:, None].expand_as(self.catalogue.height)
        sides = self.catalogue.extent * cell
        height = self.catalogue.height[..., None]
        sizes = torch.cat([sides, height, volume[..., None]], -1).float()
        return torch.cat([sizes, torch.zeros_like(sizes[:1])])

    def sizes_of(self, item_id: Tensor) -> Tensor:
        # An id outside the catalogue is no item, and −1 and M are both the last row.
        return self._sizes[item_id.clamp(-1, self.catalogue.num_items)]

    def _item_maps(self, item_id: Tensor) -> dict[str, Tensor]:
        """Return those maps of items (B, K) that are included, (B, K, O, P, Q)."""
        names = [name for name in ("item_top", "item_bottom") if name in self.include]
        if not names:
            return {}
        if self._map_rows:
            known = (item_id >= 0) & (item_id < self.catalogue.num_items)
            row = torch.where(known, item_id, self.catalogue.num_items).flatten()
            found: dict[str, Tensor] = {}
            for name in names:
                found[name] = self._map_rows[name].index_select(0, row).unflatten(0, item_id.shape)
            return found
        orientation = torch.arange(self.num_orientations, device=self.device, dtype=torch.int64)
        top, bottom = self.catalogue.maps(item_id[..., None], orientation)
        maps = {"item_top": top, "item_bottom": bottom}
        return {name: maps[name] for name in names}

    def _make_map_rows(self) -> dict[str, Tensor]:
        """Return the maps of every box, and of no item in the last row, (M + 1, O, P, Q).

        To look a map up takes a fifth of the time of making it from the box's sides. There are none for items whose
        maps the catalogue holds, nor where they would be large.
        """
        cells = (self.catalogue.num_items + 1) * self.num_orientations * math.prod(self.catalogue.footprint)
        if not self.catalogue.flat or cells > _MOST_MAP_CELLS:
            return {}
        row = torch.arange(self.catalogue.num_items + 1, device=self.device, dtype=torch.int64)
        orientation = torch.arange(self.num_orientations, device=self.device, dtype=torch.int64)
        top, bottom = self.catalogue.maps(row[:, None], orientation)
        return {"item_top": top, "item_bottom": bottom}

    def least_bytes(self) -> int:
        """Return a lower bound of the bytes of one environment.

        It holds two states, and the item maps of two observations.
        """
        state = 4 * math.prod(self.bin.cells) + 5 * self.num_actions + 20 * self.longest_episode
        maps = 4 * math.prod(self.catalogue.footprint) * self.visible_items * self.num_orientations
        num_maps = ("item_top" in self.include) + ("item_bottom" in self.include)
        return 2 * (state + maps * num_maps)

    def shared_items(self) -> SameItems:
        """Return items and episodes, so that another environment need not build them."""
        return SameItems(self.items, self.orientations, self.catalogue, self.item_sequences)

    @cached_property
    def bytes_per_env(self) -> int:
        """Peak bytes of one environment in a step, measured in a few with the same items."""
        make = partial(PackingEnv.like, self, items=self.shared_items(), seed=0)
        return measure_bytes_per_env(make, lambda shown: shown["action_mask"].int().argmax(1))

    def shard_arguments(self, num_envs: int, first_env: int) -> ConstructorArguments:
        """Return arguments as in the base class, with the same items.

        They are not drawn again for another number of environments.
        """
        given = super().shard_arguments(num_envs, first_env)
        given["items"] = self.shared_items().to(torch.device("cpu"))
        if self.device.type != "cpu":
            given["backend"] = "auto"
        return given

    @property
    def longest_episode(self) -> int:
        """Maximum number of items of an episode, T, at least 1."""
        return max(1, min(self.num_items, self.item_sequences.length))

    @property
    def num_orientations(self) -> int:
        """Number of orientations, O."""
        return self.catalogue.num_orientations

    @property
    def grid(self) -> tuple[int, int]:
        """Placements along x and y, (Gx, Gy)."""
        return self.bin.grid

    @property
    def cell(self) -> tuple[float, float]:
        """Metres per cell along x and y."""
        return self.bin.cell

    @property
    def space_extras(self) -> dict[str, object]:
        """The bin, and the shape that a flat action index unravels to."""
        bin_ = asdict(self.bin)
        for rule in STABILITY_RULES.values():
            for name in rule.options:
                if name not in self.bin.rule.options:
                    bin_.pop(name, None)
        return {"bin": bin_, "action_shape": self.action_shape}

    @property
    def _tracks_bearing(self) -> bool:
        """Whether the state holds which cells bear load."""
        return self.bin.rule.tracks_bearing

    @property
    def action_shape(self) -> tuple[int, int, int, int]:
        """Shape that a flat action index unravels to, (K, O, Gx, Gy)."""
        return self.visible_items, self.num_orientations, *self.grid

    @property
    def num_actions(self) -> int:
        """Number of actions, K·O·Gx·Gy."""
        return self.visible_items * self.num_orientations * self.grid[0] * self.grid[1]

    def sequence_number(self, index: int) -> int:
        """Return the number of a bin's items among the sequences of their source.

        This reads the device back.
        """
        return int(self.state.key[index])

    @property
    def placements(self) -> Tensor:
        """Item, orientation, x and y in cells of each placement, (N, T, 4) int32.

        The first `num_packed` of a row are valid.
        """
        return self.state.placements

    @property
    def placement_z(self) -> Tensor:
        """Base of each placed item, metres, (N, T) float32."""
        return self.state.placement_z

    @property
    def num_packed(self) -> Tensor:
        """Items packed in each bin, (N,) int64."""
        return self.state.num_packed

    def _make_specs(self) -> None:
        n = self.num_envs
        device = self.device
        self.observation_spec = Composite(self._observation_specs(), shape=(n,))
        self.action_spec = Categorical(self.num_actions, shape=(n,), device=device, dtype=torch.int64)
        self.reward_spec = Unbounded((n, 1), device, torch.float32)
        done = Binary(1, (n, 1), device=device, dtype=torch.bool)
        done_specs = {name: done.clone() for name in ("done", "terminated", "truncated")}
        self.done_spec = Composite(done_specs, shape=(n,))

    def _observation_specs(self) -> dict[str, TensorSpec]:
        n = self.num_envs
        device = self.device
        cells = self.bin.cells
        maps = (n, *self.action_shape)
        slots = (n, self.visible_items)
        highest = self.bin.size[2] + self.bin.tolerance
        last_item = self.catalogue.num_items - 1
        # An unbounded spec writes its bounds out: for one environment, and expanded to all. What is left out is not
        # made at all: specs are in reference cycles, and are freed only when the collector comes round.
        sizes = Unbounded((self.visible_items, self.num_orientations, 4), device, torch.float32)
        specs: dict[str, TensorSpec] = {}
        specs["box_heightmap"] = Bounded(0, highest, (n, *cells), device, torch.float32)
        specs["item_id"] = Bounded(-1, last_item, slots, device, torch.int64)
        specs["item_size"] = sizes.expand(n, *sizes.shape)
        if self._tracks_bearing:
            specs["bearing_map"] = Binary(cells[1], (n, *cells), device=device, dtype=torch.bool)
        for name in ("item_top", "item_bottom"):
            if name in self.include:
                shape = (self.visible_items, self.num_orientations, *self.catalogue.footprint)
                item_maps = Unbounded(shape, device, torch.float32)
                specs[name] = item_maps.expand(n, *item_maps.shape)
        if "z_map" in self.include:
            specs["z_map"] = Bounded(0, highest, maps, device, torch.float32)
        if "future_items" in self.include:
            specs["future_items"] = Bounded(-1, last_item, (n, self.longest_episode), device, torch.int64)
        specs["legal_mask"] = Binary(self.grid[1], maps, device=device, dtype=torch.bool)
        specs["action_mask"] = Binary(self.num_actions, (n, self.num_actions), device=device, dtype=torch.bool)
        specs["item_mask"] = Binary(self.visible_items, slots, device=device, dtype=torch.bool)
        specs["utilization"] = Bounded(0, 1 + 1e-4, (n, 1), device, torch.float32)
        specs["num_packed"] = Unbounded((n, 1), device, torch.int64)
        specs["episode_step"] = Unbounded((n, 1), device, torch.int64)
        if "packed_items" in self.include:
            packed = self.state.placements.shape[:2]
            specs["packed_items"] = Bounded(-1, last_item, packed, device, torch.int64)
        return specs

    @property
    def far(self) -> float:  # type: ignore[override]
        """Height of the bin, metres: no item has its bottom there."""
        return self.bin.size[2]

    # -- replay -----------------------------------------------------------------------------------------------------

    @property
    def stored_keys(self) -> list[str]:
        """Observation keys that replay must store: `restore` recomputes the others."""
        if self._tracks_bearing:
            return ["box_heightmap", "bearing_map", "item_id"]
        return ["box_heightmap", "item_id"]

    @property
    def stored_meaning(self) -> str:
        """Hash of the item sizes that `item_id` indexes."""
        return hashlib.sha256(self._sizes.cpu().numpy().tobytes()).hexdigest()[:16]

    def restore(self, tensordict: TensorDictBase, replay: object = None) -> TensorDictBase:
        """Recompute, in place, sizes, maps and masks of stored states (B,).

        Their `stored_keys` are read.
        An id that is no row of the catalogue counts as an empty slot. Values are not read.

        Raises:
            ValueError: One of them is missing, or has another dtype, shape or device than this environment's.
        """
        where = "PackingEnv.restore"
        size = tensordict.shape[:1]
        heightmap = tensordict.get("box_heightmap", None)
        item_id = tensordict.get("item_id", None)
        arguments.tensor(where, "box_heightmap", heightmap, torch.float32, (*size, *self.bin.cells), self.device)
        arguments.tensor(where, "item_id", item_id, torch.int64, (*size, self.visible_items), self.device)
        known = (item_id >= 0) & (item_id < self.catalogue.num_items)
        item_id = torch.where(known, item_id, -1)
        bears = tensordict.get("bearing_map", None)
        if self._tracks_bearing:
            arguments.tensor(where, "bearing_map", bears, torch.bool, (*size, *self.bin.cells), self.device)
        z_map, legal = self._maps(Pile(heightmap, bears), item_id)
        item_mask = self.kernels.any_legal(legal.flatten(0, 1)).view_as(item_id)
        made = {
            "z_map": z_map,
            "legal_mask": legal,
            "action_mask": legal.flatten(1),
            "item_mask": item_mask,
            "item_size": self.sizes_of(item_id),
        }
        return tensordict.update(made)

    def _maps(self, pile: Pile, item_id: Tensor, stored: StoredMaps | None = None) -> tuple[Tensor, Tensor]:
        """Return rest heights and legal placements of items (B, K) on given piles."""
        return self.kernels.maps(pile, item_id, self.catalogue, self.bin, fallback=self.fallback, stored=stored)

    # -- a step -----------------------------------------------------------------------------------------------------

    @runs_single_threaded
    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        before = self.state
        # Environments in which this step skips an item, (N,) bool.
        skips: Tensor | None = None
        if self.skip_unplaceable:
            skips = (before.item_id[:, 0] >= 0) & ~self.kernels.any_legal(before.legal)
        action = self._given_action(tensordict, "action", (self.num_envs,), whole=True)
        self._state, legal = self._advance(action, skips)
        out = self.observe()
        over = ~legal | ~out["item_mask"].any(1)
        if skips is not None:
            over = ~(legal | skips) | (self.state.item_id[:, 0] < 0)
        done = over.unsqueeze(-1)
        gain = reward_of_step(self.reward, self.state, before, self.bin, self.objective_weights)
        out["reward"] = torch.where(legal, gain, 0.0).unsqueeze(-1)
        out["done"] = done
        out["terminated"] = done.clone()
        out["truncated"] = torch.zeros_like(done)
        return TensorDict(out, batch_size=self.batch_size, device=self.device)

    def _advance(self, action: Tensor, skips: Tensor | None) -> tuple[PackingState, Tensor]:
        """Return the next state, maps included, and the mask of legal actions, (N,) bool."""
        s = self.state
        following = self.item_sequences.items(s.key, s.position[:, None]).squeeze(1)
        moved = self.kernels.advance(s, action, following, self.catalogue, self.bin.dropped)
        if skips is not None:
            moved = skip_first_item(moved, skips, following)
        stored = None
        if self._keeps_maps:
            stored = StoredMaps(s.z_map, s.legal, moved.slot, moved.changed)
        after = moved.state
        if self._tracks_bearing:
            pile = Pile(s.heightmap, s.bears)
            bears = self.kernels.bears_after(pile, self._placement(s, moved), self.catalogue, self.bin)
            after = replace(after, bears=bears)
        if self.stability_judge == "com":
            stable = judge_placements(s.heightmap, self._placement(s, moved), self.catalogue, self.bin)
            after = replace(after, stable=torch.where(moved.legal, stable, s.stable))
        z_map, legal = self._maps(Pile(after.heightmap, after.bears), after.item_id, stored)
        return replace(after, z_map=z_map, legal=legal), moved.legal

    def _placement(self, before: PackingState, moved: Moved) -> Placement:
        """Return the last placement of each environment, with item −1 for none."""
        made = moved.state.placements
        row = torch.arange(self.num_envs, device=self.device, dtype=torch.int64)
        at = row, before.num_packed.clamp(0, made.shape[1] - 1)
        item, orientation, x, y = made[at].long().unbind(1)
        item = torch.where(moved.legal, item, -1)
        return Placement(item, orientation, x, y, moved.state.placement_z[at])

    # -- observations and resets ------------------------------------------------------------------------------------

    def observation(self, index: int) -> TensorDictBase:
        """Return the current observation of one environment, batch size (1,)."""
        row = slice(index, index + 1)
        rows = {field.name: getattr(self.state, field.name)[row] for field in fields(PackingState)}
        return TensorDict(self.observe(PackingState(**rows)), batch_size=[1], device=self.device)

    def observe(self, state: PackingState | None = None) -> dict[str, Tensor]:
        """Return the observation of a state, by default the current one."""
        s = self.state if state is None else state
        if self.copy_observations:
            copies = {name: getattr(s, name).clone() for name in _OBSERVED}
            s = replace(s, **copies)
        out: dict[str, Tensor] = {}
        out["box_heightmap"] = s.heightmap
        out["item_id"] = s.item_id
        out["item_size"] = self.sizes_of(s.item_id)
        out["legal_mask"] = s.legal
        out["action_mask"] = s.legal.flatten(1)
        out["item_mask"] = self.kernels.any_legal(s.legal.flatten(0, 1)).view_as(s.item_id)
        out["utilization"] = (s.volume / self.bin.volume).unsqueeze(-1)
        out["num_packed"] = s.num_packed.unsqueeze(-1)
        out["episode_step"] = s.step_count.unsqueeze(-1)
        if self._tracks_bearing:
            out["bearing_map"] = s.bears
        if "z_map" in self.include:
            out["z_map"] = s.z_map
        if "packed_items" in self.include:
            number = torch.arange(s.placements.shape[1], device=self.device, dtype=torch.int64)
            made = number < s.num_packed[:, None]
            out["packed_items"] = torch.where(made, s.placements[..., 0].long(), -1)
        out |= self._item_maps(s.item_id)
        if "future_items" in self.include:
            behind = torch.arange(self.longest_episode, device=self.device, dtype=torch.int64)
            out["future_items"] = self.item_sequences.items(s.key, s.position[:, None] + behind)
        return out

    @runs_single_threaded
    def go_on(self, state: PackingState) -> TensorDictBase:
        """Take over a state that a native function has played to.

        What a reset would show of it is returned.
        """
        self._state = state
        return self._add_done_flags(self.observe())

    @runs_single_threaded
    def _observe_reset(self, mask: Tensor) -> dict[str, Tensor]:
        # Maps of irregular items take long to copy, so on a CPU nothing is copied where nothing is reset.
        if native.runs_on(mask) and not mask.any():
            return self.observe()
        s = self.state
        key = self.item_sequences.begin(self.seed, self._env_index, s.episode)
        item_id = self.item_sequences.items(key, self._slots.expand(self.num_envs, -1))
        if self._tracks_bearing:
            s = replace(s, bears=s.bears | mask[:, None, None])
        self._state = self.kernels.restart(s, mask, key, item_id, self.catalogue, self.bin.dropped)
        return self.observe()

    def _state_bounds(self) -> dict[str, Bounds]:
        # Heights may exceed the ceiling by the tolerance, and are rounded once more when they are saved.
        ceiling = self.bin.size[2] + 2 * self.bin.tolerance
        count = Bounds(0, 2**62)
        last_item = self.catalogue.num_items - 1
        cells_x, cells_y = self.bin.cells
        last = [last_item, self.num_orientations - 1, cells_x - 1, cells_y - 1]
        num_keys = self.item_sequences.num_keys
        bounds = {}
        bounds["heightmap"] = Bounds(0, ceiling)
        bounds["item_id"] = Bounds(-1, last_item)
        bounds["position"] = Bounds(0, self.visible_items + self.item_sequences.length)
        bounds["key"] = Bounds() if num_keys is None else Bounds(0, num_keys - 1)
        bounds["episode"] = count
        bounds["volume"] = Bounds(0, self.bin.volume * (1 + 1e-3))
        bounds["num_packed"] = Bounds(0, self.state.placements.shape[1])
        bounds["step_count"] = count
        bounds["placements"] = Bounds(0, torch.tensor(last, device=self.device, dtype=torch.int64))
        bounds["placement_z"] = Bounds(0, ceiling)
        bounds["z_map"] = Bounds(0, ceiling)
        return bounds

    def env_state(self) -> dict[str, Tensor]:
        state = super().env_state()
        if self._tracks_bearing:
            return state
        return {name: value for name, value in state.items() if name != "bears"}

    def set_env_state(self, state: dict[str, Tensor]) -> None:
        self._state = replace(self._state, **state)

    def _derived_state(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        pile = Pile(state["heightmap"], state.get("bears", self._state.bears))
        z_map, legal = self._maps(pile, state["item_id"])
        return {"z_map": z_map, "legal": legal}

    def _state_conflict(self, state: dict[str, Tensor]) -> Conflict | None:
        """Return the conflict of a state with a placement, legal or made, that cannot be."""
        item_id = state["item_id"]
        legal = state["legal"]
        row = item_id.clamp_min(0)
        cells_x, cells_y = self.bin.cells
        extent_x, extent_y = self.catalogue.extent[row].unbind(-1)
        _, fits_x = grid_positions(extent_x, cells_x, self.bin.step)
        _, fits_y = grid_positions(extent_y, cells_y, self.bin.step)
        fits = fits_x[..., :, None] & fits_y[..., None, :]
        top = state["z_map"] + self.catalogue.height[row][..., None, None]
        is_empty = (item_id < 0)[..., None, None, None]
        if bool((legal & is_empty).any()):
            return Conflict("legal", "false wherever item_id is -1", "a legal placement of an empty slot")
        if bool((legal & ~fits).any()):
            return Conflict("legal", "false wherever the footprint does not fit", "a legal placement beyond the walls")
        ceiling = self.bin.size[2] + 2 * self.bin.tolerance
        if bool((legal & (top > ceiling)).any()):
            return Conflict("legal", "false wherever the item does not fit below the bin's height", "a higher one")

        item, orientation, x, y = state["placements"].long().unbind(-1)  # (N, T)
        extent = self.catalogue.extent[item, orientation]
        number = torch.arange(item.shape[1], device=self.device, dtype=torch.int64)
        made = number < state["num_packed"][:, None]
        beyond_x = x + extent[..., 0] > cells_x
        beyond_y = y + extent[..., 1] > cells_y
        if bool(((beyond_x | beyond_y) & made).any()):
            return Conflict("placements", "inside the bin", "one that reaches beyond the walls")
        return None


def _weights(given: object) -> Weights:
    where = "PackingEnv"
    name = "objective_weights"
    wanted = "three finite numbers from 0 on"
    weights = arguments.listed(where, name, wanted, given)
    if len(weights) != 3:
        arguments.refuse(where, name, wanted, given)
    try:
        alpha = arguments.number(where, name, weights[0], 0)
        beta = arguments.number(where, name, weights[1], 0)
        gamma = arguments.number(where, name, weights[2], 0)
    except ValueError:
        arguments.refuse(where, name, wanted, given)
    return alpha, beta, gamma
