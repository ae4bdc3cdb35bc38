"""Launches of a training step of n-tuple tables, without those of the environment."""

from __future__ import annotations

from functools import cache

import torch

from benchmarks.gpu import shipped
from benchmarks.gpu.launches import Launch, as_on, recorded
from benchmarks.gpu.steps import environment
from torchrl_gpu.envs import triton_draws
from torchrl_gpu.envs.packing.items import triton_cuts
from torchrl_gpu.envs.packing.items.cutting import CutSequences
from torchrl_gpu.policies import PatchTables
from torchrl_gpu.policies.packing.ntuple import triton_rollouts, triton_tables, triton_values
from torchrl_gpu.policies.packing.ntuple.values import Tables
from torchrl_gpu.policies.spaces import AgentSpace

# The shipped config that learns tables.
CONFIG = "packing"
# Of the sweep: all of them launch the same.
_STEPS = 2


@cache
def tables() -> PatchTables:
    """The tables of the shipped config."""
    made = shipped.tables(CONFIG, AgentSpace.of(environment(CONFIG)))
    # Nothing is run: what is in this tensor does not matter, and to make it takes seconds.
    vars(made.plan)["first_images"] = torch.zeros(made.plan.entries, dtype=torch.int64)
    return made


def launches(capability: int) -> list[Launch]:
    """Launches on a chip: random numbers, boxes cut, values, a rollout and a sweep."""
    env, made = environment(CONFIG), tables()
    rows = env.num_envs
    plan = made.plan
    cells = made.seen
    bins = torch.zeros(rows, _STEPS, *cells, dtype=torch.uint8)
    reward, done = torch.zeros(rows, _STEPS), torch.zeros(rows, _STEPS, dtype=torch.bool)
    legal = env.state.legal.flatten(1, 2)
    extent = torch.ones(rows, legal.shape[1], 2, dtype=torch.int64)
    of_plan = Tables(made.weight, made.drift, made.path)
    seen = torch.zeros(plan.entries, 2, dtype=torch.int64)
    cuts, key = env.item_sequences, env.state.key
    assert isinstance(cuts, CutSequences)
    with as_on(capability), recorded() as found:
        triton_draws.draw("episode", key, key)
        triton_draws.draw("bits", key[:, None], key[None])
        triton_cuts.items(cuts, key, key[:, None], cuts.nothing_kept(rows, key.device))
        top = torch.zeros_like(legal, dtype=torch.uint8)
        triton_values.value_placements(bins[:, 0], extent, top, legal, made.weight, plan, made.bin.step, made.pool)
        triton_tables.value_bins(bins[:, 0], made.weight, plan)
        triton_tables.learn_bins(bins[:, 0], key, done[:, 0], of_plan, plan, 1e-3, seen)
        triton_rollouts.play(env, made, env.state, _STEPS)
        triton_tables.sweep_bins(bins, reward, done, of_plan, plan, 1e-3, 0.8, seen)
    unique = {(each.name, each.options.get("KIND")): each for each in found}
    return list(unique.values())
