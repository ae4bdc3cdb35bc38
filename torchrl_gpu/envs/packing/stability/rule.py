"""What a stability rule answers, and the table of rules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from torchrl_gpu.envs.packing.stability.contacts import Contacts
from torchrl_gpu.envs.packing.stability.footprints import Footprint
from torchrl_gpu.envs.packing.stability.windows import GridWindows
from torchrl_gpu.envs.packing.types import STABILITY_RULES, Bin, BinRule, Catalogue, Placement


class Pile(NamedTuple):
    """What lies in each bin, as far as stability rules read it.

    Attributes:
        heightmap: Metres, (N, X, Y) float32.
        bears: Mask of the cells that bear load, (N, X, Y) bool; read by rules that track it, and (N, 0, 0) or None by
            all others.
    """

    heightmap: Tensor
    bears: Tensor | None = None


class StabilityRule(BinRule, ABC):
    """Decides which placements are stable.

    `judge` defines the rule, for one placement in NumPy. `judge_all` is the same in torch, for all placements at once;
    tests compare the two. Backends have fast forms of the rules that they list, and run `judge_all` for all others.

    A rule that tracks which cells of a pile bear load defines `judge_top` and `bears_after` as well. Its contacts are
    those with cells that bear load, and it is for boxes only.

    Attributes:
        holds_floor: Whether every item is stable on the bare floor; the maps of an empty bin then need no test.
    """

    holds_floor: bool = False

    @abstractmethod
    def judge(self, footprint: Footprint) -> bool:
        """Whether an item is stable on its contact cells."""

    @abstractmethod
    def judge_all(self, contacts: Contacts) -> Tensor:
        """Return the mask of stable placements, (N, J, Gx, Gy) bool."""

    def judge_top(self, footprint: Footprint) -> np.ndarray:
        """Return the mask of the cells of a placed box that bear load, (P, Q) bool."""
        raise NotImplementedError(f"rule {self.name} does not track which cells bear load")

    def bears_after(self, pile: Pile, placement: Placement, catalogue: Catalogue, bin_: Bin) -> Tensor:
        """Return which cells bear load after one placement per environment.

        Shape (N, X, Y) bool.
        """
        raise NotImplementedError(f"rule {self.name} does not track which cells bear load")

    def stable_on_floor(self, catalogue: Catalogue, bin_: Bin) -> Tensor:
        """Return the mask of the items that are stable on the bare floor, (M, O) bool."""
        items = catalogue.num_items
        orientations = catalogue.num_orientations
        device = catalogue.extent.device
        item = torch.arange(items, device=device, dtype=torch.int64).repeat_interleave(orientations)[None]
        orientation = torch.arange(orientations, device=device, dtype=torch.int64).repeat(items)[None]
        floor = torch.zeros((1, *catalogue.footprint), device=device, dtype=torch.float32)
        first_cell = torch.zeros((1, items * orientations, 1), device=device, dtype=torch.int64)
        # Windows of a step of 1 would want a placement on every cell; there is one, at the first.
        windows = GridWindows(floor, first_cell, first_cell, 2, catalogue.footprint)
        z = torch.zeros((1, items * orientations, 1, 1), device=device, dtype=torch.float32)
        stable = self.judge_all(Contacts(windows, z, item, orientation, catalogue, bin_))
        return stable.view(items, orientations)


@final
class AnyPlacement(StabilityRule):
    """The rule "none": every placement is stable."""

    name = "none"
    holds_floor = True

    def judge(self, footprint: Footprint) -> bool:
        return True

    def judge_all(self, contacts: Contacts) -> Tensor:
        return torch.ones_like(contacts.z, dtype=torch.bool)


def register(rule: StabilityRule) -> None:
    """Add a rule to the table, under its name.

    Raises:
        ValueError: There is a rule of this name, or the rule tracks what bears load and refuses boxes on the floor.
    """
    if rule.name in STABILITY_RULES:
        raise ValueError(f"register: there is a stability rule {rule.name!r} already")
    if rule.tracks_bearing and not rule.holds_floor:
        raise ValueError(f"register: rule {rule.name!r} tracks what bears load, so it must hold boxes on the floor")
    STABILITY_RULES[rule.name] = rule


def rule_of(bin_: Bin) -> StabilityRule:
    """Return the stability rule of a bin.

    Raises:
        ValueError: There is no rule of that name.
    """
    rule = bin_.rule
    assert isinstance(rule, StabilityRule)
    return rule


def standing_height(catalogue: Catalogue, bin_: Bin) -> Tensor:
    """Return the height of each item on the bare floor, +inf where unstable.

    Returns:
        (M, O) float32, metres.
    """
    rule = rule_of(bin_)
    if rule.holds_floor:
        return catalogue.height
    return torch.where(rule.stable_on_floor(catalogue, bin_), catalogue.height, torch.inf)
