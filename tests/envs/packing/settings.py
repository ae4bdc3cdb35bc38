"""The environments that the tests run, and how they are driven."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torch import Tensor

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import CutBoxes, ItemSource, ProceduralSolids, RandomBoxes


def small_solids() -> ItemSource:
    return ProceduralSolids(num_objects=6, min_size=0.02, max_size=0.06)


IRREGULAR = {"bin_size": (0.1, 0.1, 0.1), "resolution": 25, "grid_step": 4, "orientations": "cube", "num_items": 8}
COARSER = {**IRREGULAR, "resolution": 10, "grid_step": 3, "orientations": "yaw"}

SETTINGS: dict[str, dict[str, object]] = {}
SETTINGS["bpp10"] = {}
SETTINGS["corners"] = {"stability": "corners", "orientations": "axis"}
SETTINGS["support"] = {"stability": "support", "items": RandomBoxes(1, 5)}
SETTINGS["three visible"] = {"visible_items": 3, "num_items": 12}
SETTINGS["coarse grid"] = {"grid_step": 3, "visible_items": 2, "stability": "support"}
SETTINGS["oblong"] = {"bin_size": (3.5, 2.5, 2.0), "resolution": (7, 5), "grid_step": 2, "items": RandomBoxes(1, 3)}
SETTINGS["cut"] = {"items": CutBoxes(pool=8), "stability": "corners", "reward": "objective"}
SETTINGS["cut anew"] = {"items": CutBoxes(pool=None), "orientations": "fixed"}
SETTINGS["by volume"] = {"items": CutBoxes(pool=8), "order": "volume"}
SETTINGS["objective"] = {"reward": "objective", "visible_items": 2}
SETTINGS["on what bears"] = {"stability": "load_bearing", "margin": 1.5, "max_tilt": 6, "items": RandomBoxes(1, 5)}
SETTINGS["on corners at last"] = {"stability": "load_bearing", "fallback": "corners", "items": RandomBoxes(1, 5)}
SETTINGS["masks only"] = {"include": ()}
SETTINGS["irregular"] = {**IRREGULAR, "visible_items": 2}
SETTINGS["irregular, on its support"] = {
    **COARSER,
    "orientations": "axis",
    "stability": "support",
    "reward": "objective",
}
SETTINGS["irregular, on its corners"] = {**COARSER, "visible_items": 2, "stability": "corners", "order": "volume"}
SETTINGS["irregular, on its balance"] = {**COARSER, "visible_items": 2, "stability": "com"}
SETTINGS["irregular, judged"] = {**COARSER, "reward": "objective", "stability_judge": "com"}
SETTINGS["passing over"] = {"num_items": 16, "reward": "objective", "skip_unplaceable": True}
SETTINGS["irregular, passing over"] = {**COARSER, "num_items": 14, "visible_items": 2, "skip_unplaceable": True}


def packing(setting: str = "bpp10", num_envs: int = 3, **changes: object) -> PackingEnv:
    arguments = {"device": "cpu", "seed": 0} | SETTINGS[setting] | changes
    if "bin_size" in arguments and arguments["bin_size"] == IRREGULAR["bin_size"]:
        arguments.setdefault("items", small_solids())
    return PackingEnv(num_envs, **arguments)


def legal_action(mask: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Draw one of the legal actions (N, A) of each row, or 0 where there is none.

    The host reads nothing.
    """
    draw = torch.rand(mask.shape, generator=generator, device=mask.device)
    return torch.where(mask, draw, -1.0).argmax(1)


def play(
    env: PackingEnv, steps: int, seed: int = 0, start: TensorDictBase | None = None
) -> tuple[list[TensorDictBase], TensorDictBase]:
    """Play random legal actions, and restart finished rows.

    Returns what each step saw and gave, and where it ended.
    """
    generator = torch.Generator(env.device).manual_seed(seed)
    current, seen = env.reset() if start is None else start, []
    for _ in range(steps):
        current.set("action", legal_action(current["action_mask"], generator))
        step, current = env.step_and_maybe_reset(current)
        seen.append(step.clone())
    return seen, current


def assert_same(first: TensorDictBase, second: TensorDictBase) -> None:
    assert set(first.keys(True, True)) == set(second.keys(True, True))
    for key in first.keys(True, True):
        assert torch.equal(first[key], second[key]), key
