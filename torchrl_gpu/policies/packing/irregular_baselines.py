"""Baselines of irregular packing: the rows of its evaluation table."""

from __future__ import annotations

from typing import final

from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.policies.exploration import random_legal
from torchrl_gpu.policies.packing.heuristics import DeepestBottomLeft
from torchrl_gpu.policies.packing.hierarchical.packer import HierarchicalPacker
from torchrl_gpu.policies.packing.hierarchical.pile_values import PileValuePacker
from torchrl_gpu.policies.packing.volume_sorted import VolumeSorted

RANDOM, DEEPEST, RULE = "random", "deepest bottom left", "box order + HM"
LESS_WASTE, VALUES = "least waste + HM", "pile values"
WORKER, MANAGER, BOTH = "box order + worker", "manager + HM", "manager + worker"


@final
class RandomItem(TensorDictModuleBase):
    """A visible item drawn from those that fit, at a placement drawn from its legal ones; 0 where nothing is legal.

    `RandomLegal` draws from the placements of all items at once, and so the small ones, which have more, more often.
    """

    def __init__(self, env: PackingEnv) -> None:
        super().__init__()
        self.in_keys, self.out_keys = ["legal_mask"], ["action"]

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        legal = tensordict.get("legal_mask").flatten(-3)  # (…, K, O·Gx·Gy)
        slot = random_legal(legal.any(-1))
        place = random_legal(legal.take_along_dim(slot[..., None, None], -2).squeeze(-2))
        return tensordict.set("action", slot * legal.shape[-1] + place)


def irregular_baselines(
    env: PackingEnv, packer: HierarchicalPacker, learned: bool = True
) -> dict[str, TensorDictModuleBase]:
    """Policies by name: those that Huang et al., RA-L 8(1), 2023, compare, deepest bottom left and two of ours.

    Args:
        env: Shows the largest items, `order="box"`; with one visible item there is no choice, and no manager.
        packer: Made for `env`; the others share its networks and what it knows of the items.
        learned: Whether the networks are trained; if not they repeat the rules, and their rows are left out.
            Pile values come with the package.
    """
    policies: dict[str, TensorDictModuleBase] = {
        RANDOM: RandomItem(env),
        DEEPEST: VolumeSorted(env, DeepestBottomLeft(env), by="box"),
        RULE: packer.choosing("box", "growth"),
    }
    if env.visible_items > 1:
        policies[LESS_WASTE] = packer.choosing("waste", "growth")
    policies[VALUES] = PileValuePacker(env)
    if learned:
        policies[WORKER] = packer.choosing("box", "learned")
    if learned and env.visible_items > 1:
        policies |= {MANAGER: packer.choosing("learned", "growth"), BOTH: packer.choosing("learned", "learned")}
    return policies
