"""Whether something decides as the hierarchical packer does: states that are reached, and what its actions lose."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items.source import SameItems
from torchrl_gpu.policies.packing.hierarchical import POINT, HierarchicalPacker, rows_of

_BINS, _LOOKS = 8, 8  # side by side, and one after another
NUM_STATES = _BINS * _LOOKS
_ROUNDING = 1e-6  # bin volumes: growths that are closer may come in either order


def env_on_cpu(env: PackingEnv) -> PackingEnv:
    """A few bins on the CPU with the items of another environment; nothing is simulated."""
    judge = "rule" if env.stability_judge == "physics" else env.stability_judge
    items = SameItems(env).to(torch.device("cpu"))
    changes = {"device": "cpu", "backend": "auto", "seed": 0, "first_env": 0, "copy_observations": True}
    return PackingEnv.like(env, _BINS, items=items, stability_judge=judge, **changes)


def same_packer(packer: HierarchicalPacker, env: PackingEnv) -> HierarchicalPacker:
    """The same packer in an environment on the CPU; its networks are copied.

    Raises:
        ValueError: The packer knows other items, or another bin, than those of the environment.
    """
    settings = (packer.items, packer.places, packer.margin, packer.views.cells, packer.shortlist, packer.item_shortlist)
    ours = HierarchicalPacker(env, copy.deepcopy(packer.networks).cpu(), *settings)
    known, found = (dict(each.named_buffers()) for each in (packer, ours))
    of_items = [name for name in found if not name.endswith("epsilon")]
    if packer.planes.bin != env.bin or not all(torch.equal(known[name].cpu(), found[name]) for name in of_items):
        raise ValueError(
            "want env to be the environment that the hierarchical packer was loaded with; got one of other items or of"
            " another bin"
        )
    return ours


@torch.no_grad()
def played_states(env: PackingEnv, packer: HierarchicalPacker) -> list[Tensor]:
    """Observations of an environment of 8 bins at 8 times of their episodes, (64, …) each, in the packer's order.

    Bins are packed by heightmap minimisation, largest box first, and the states are in no order.
    """
    rule, looks = packer.choosing("box", "growth"), []
    state = env.reset()
    for look in range(_LOOKS):
        for _ in range(max(1, env.num_items // _LOOKS) if look else 0):
            _, state = env.step_and_maybe_reset(rule(state))
        looks.append([state[name] for name in packer.in_keys])
    order = torch.randperm(NUM_STATES, generator=torch.Generator().manual_seed(0), dtype=torch.int64, device="cpu")
    return [torch.cat(list(each))[order] for each in zip(*looks, strict=True)]


@torch.no_grad()
def shortfall(packer: HierarchicalPacker, observations: list[Tensor], action: Tensor) -> float:
    """By how much actions (B,) are worth less than the packer's own, at most, in hundredths of J; 0 for ties.

    An action is two decisions, and the larger loss counts: the item's score beside the best item's, and the score of
    the placement beside that of the item's best one. What is not legal, or not among what the packer considers, is
    infinitely worse. Growths that rounding alone parts may lie on either side of a margin. Where nothing is legal every
    action is as good.
    """
    heightmap, item_id, item_mask, z_map, legal = observations
    per_item = legal[0, 0].numel()
    in_range = (action >= 0) & (action < legal[0].numel())
    action = torch.where(in_range, action, 0)
    picked = packer.pick(heightmap, item_id, item_mask, (z_map, legal))
    slot, placement = (action // per_item)[:, None], (action % per_item)[:, None]

    item, allowed = (each.gather(1, picked.candidates) for each in (item_id, item_mask))
    waste = torch.where(allowed, picked.waste, 0.0)
    scores = packer.box[item] if packer.items == "box" else packer.item_scores(heightmap, item, waste)
    scores = torch.where(allowed, scores, -torch.inf)
    taken = torch.where(picked.candidates == slot, scores, -torch.inf).amax(1)
    of_item = _behind(scores.amax(1), taken)

    every = copy.copy(packer)
    every.shortlist = None
    row = item_id.gather(1, slot)[:, 0]
    z_map, legal = (rows_of(each, slot)[:, 0] for each in (z_map, legal))
    _, _, legal, growth, scores = every._scored(heightmap, row, z_map, legal)
    surely, perhaps = (_considered(packer, growth, legal, rounding) for rounding in (-_ROUNDING, _ROUNDING))
    best = torch.where(surely, scores, -torch.inf).flatten(1).amax(1)
    taken = torch.where(perhaps, scores, -torch.inf).flatten(1).gather(1, placement)[:, 0]
    of_place = _behind(best, taken)
    loss = torch.where(in_range, torch.maximum(of_item, of_place), torch.inf)
    return float(torch.where(item_mask.any(1), loss, 0.0).max())


def _considered(packer: HierarchicalPacker, growth: Tensor, legal: Tensor, rounding: float) -> Tensor:
    """The placements (B, O, Gx, Gy) that a packer chooses from, with limits that are so much wider."""
    least = torch.where(legal, growth, torch.inf).amin((2, 3))  # (B, O)
    number = min(packer.shortlist or least.shape[1], least.shape[1])
    limit = least.sort(1).values[:, number - 1 : number] + rounding
    listed = (least <= limit) | (number == least.shape[1])
    near = growth <= least.amin(1)[:, None, None, None] + packer.margin + rounding
    return legal & near & listed[..., None, None]


def _behind(best: Tensor, taken: Tensor) -> Tensor:
    """How far behind the best (B,) what was taken (B,) is, in points; infinite for what may not be taken."""
    loss = (best - taken).clamp_min(0) / POINT / (best.abs() / POINT).clamp_min(1)
    return torch.where(taken == -torch.inf, torch.inf, loss)
