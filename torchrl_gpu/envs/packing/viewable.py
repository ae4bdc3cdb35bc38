"""Metrics, pictures, 3D shapes and overlays of a `PackingEnv` for viewers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from torchrl_gpu.envs.packing.env import PackingEnv
from torchrl_gpu.envs.packing.geometry import grid_positions
from torchrl_gpu.envs.packing.plan import plan_of
from torchrl_gpu.envs.packing.render.palette import item_colors
from torchrl_gpu.envs.packing.render.top_view import Pile, Placing, draw_action, draw_mask, draw_values
from torchrl_gpu.envs.packing.reward import reward_so_far
from torchrl_gpu.envs.packing.viewer import BinView
from torchrl_gpu.envs.viewable import Decision, Overlay, Shape

# Views that are kept, so that only solids that have come since are drawn. 14 MB each at 640×480.
_MOST_VIEWS = 16

_WALL = (0.45, 0.5, 0.55, 1.0)

OVERLAYS = {
    "mask": Overlay("Legal placements", "env"),
    "action": Overlay("Next placement", "action"),
    "q": Overlay("Q map", "values"),
}


class ViewablePacking:
    """Viewer interface of the bins of a `PackingEnv`, which it reads at every call."""

    def __init__(self, env: PackingEnv) -> None:
        self.env = env
        self._view = lru_cache(_MOST_VIEWS)(partial(BinView, env))

    @property
    def num_envs(self) -> int:
        return self.env.num_envs

    @torch.no_grad()
    def metrics(self) -> Mapping[str, Tensor]:
        """Return `step`, `episode`, `return`, `utilization` and `num_packed`, (N,) each.

        Rewards of a packing are gains, so that their sum follows from the state alone.
        """
        env = self.env
        s = env.state
        found = {"step": s.step_count, "episode": s.episode}
        found["return"] = reward_so_far(env.reward, s, env.bin, env.objective_weights)
        found["utilization"] = s.volume / env.bin.volume
        found["num_packed"] = s.num_packed
        return found

    def pictures(self, index: Sequence[int], width: int, height: int) -> np.ndarray:
        return np.stack([self._view(each, width, height).picture() for each in index])

    def shapes(self, index: int) -> list[Shape]:
        """Return edges of the bin, then items in order of placement.

        Solids are bounding cuboids. This reads the device back.
        """
        plan = plan_of(self.env, index)
        middle = [side / 2 for side in plan.bin_size]
        found = [Shape("outline", middle, plan.bin_size, _WALL)]
        number = torch.arange(len(plan.poses), dtype=torch.int64, device="cpu")
        colors = item_colors(number).tolist()
        for solid, pose, color in zip(plan.solids, plan.poses, colors, strict=True):
            low = solid.vertices.min(0)
            high = solid.vertices.max(0)
            center = pose.rotation @ ((low + high) / 2) + pose.position
            turn = pose.quaternion.tolist()
            found.append(Shape("cuboid", center.tolist(), (high - low).tolist(), (*color, 1.0), turn))
        return found

    @property
    def overlays(self) -> Mapping[str, Overlay]:
        """Overlays on the bin seen from above.

        They are legal placements, the next one, and the Q value of each.
        """
        return OVERLAYS

    def observation(self, index: int) -> TensorDictBase:
        return self.env.observation(index)

    @torch.no_grad()
    def overlay(self, name: str, index: int, width: int, height: int, decision: Decision | None) -> np.ndarray:
        env = self.env
        s = env.state
        heightmap = s.heightmap[index].cpu().numpy()
        utilization = float(s.volume[index]) / env.bin.volume
        unit = env.items.unit
        pile = Pile(heightmap, env.bin.size, env.grid_step, utilization, unit, env.bin.per_unit(unit))
        # (K, O, Gx, Gy)
        legal = s.legal[index].cpu()
        if name == "mask":
            shown = int((s.item_id[index] >= 0).sum())
            ways = legal.sum((0, 1)).numpy()
            return draw_mask(pile, ways, max(1, shown * env.num_orientations), width, height)
        assert decision is not None
        slot, orientation, *place = np.unravel_index(int(decision.action), env.action_shape)
        placing = None
        if legal[slot, orientation, place[0], place[1]]:
            at = int(place[0]), int(place[1])
            placing = self._placing(index, int(slot), int(orientation), at)
        if name == "action":
            return draw_action(pile, placing, width, height)
        assert decision.values is not None
        values = torch.where(legal, decision.values.float().cpu().view(env.action_shape), -torch.inf)
        return draw_values(pile, values[slot].amax(0).numpy(), placing, width, height)

    def _placing(self, index: int, slot: int, orientation: int, place: tuple[int, int]) -> Placing:
        env = self.env
        s = env.state
        item = int(s.item_id[index, slot])
        extent = env.catalogue.extent[item, orientation].cpu()
        at_x, _ = grid_positions(extent[0], env.bin.cells[0], env.grid_step)
        at_y, _ = grid_positions(extent[1], env.bin.cells[1], env.grid_step)
        corner = int(at_x[place[0]]), int(at_y[place[1]])
        z = float(s.z_map[index, slot, orientation, place[0], place[1]])
        height = float(env.catalogue.height[item, orientation])
        return Placing(item, orientation, corner, (int(extent[0]), int(extent[1])), z, height)


def viewable(env: PackingEnv) -> ViewablePacking:
    """Return the viewer interface of an environment.

    `torchrl_gpu.envs.viewable` calls it.
    """
    return ViewablePacking(env)
