"""Whole rollouts of greedy tables in bins of boxes: one C++ call, see `native/rollout.h`, or one launch in Triton.

`GREEDY_ROLLOUTS` is what `training.collect.fused.WholePlayer` describes. It gives the bits of single steps. What it
does not cover is named by `problem`; single steps play that.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref, c_float, c_int64, c_void_p
from dataclasses import replace
from typing import Any, final

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from torch import Tensor

from torchrl_gpu import native
from torchrl_gpu.envs import BatchedEnv, PackingEnv
from torchrl_gpu.envs.counter_rng import seed_bits
from torchrl_gpu.envs.packing.items.cutting import CutSequences
from torchrl_gpu.envs.packing.items.source import EndlessSequences, ItemSequences, PooledSequences
from torchrl_gpu.envs.packing.kernels.balance import standing_height
from torchrl_gpu.envs.packing.kernels.compiled import described_problem
from torchrl_gpu.envs.packing.types import DROP_RULES, PackingState
from torchrl_gpu.policies.packing.ntuple.tables import PatchTables
from torchrl_gpu.policies.packing.ntuple.values import TRITON_ROLLOUTS, PatchArguments, in_triton
from torchrl_gpu.policies.packing.pretrained import PackingPolicy
from torchrl_gpu.policies.policy import Policy

_KEPT = ("box_heightmap", "action", "reward", "done", "terminated", "utilization")
_SOURCES = (CutSequences, EndlessSequences, PooledSequences)
_STATE = ("heightmap", "item_id", "position", "key", "episode", "num_packed", "step_count", "volume", "stable")
_MAPS = ("z_map", "legal")


class _Source(native.Arguments):
    """`struct Source` of rollout.h."""

    _fields_ = (
        *native.of_type(c_int64, "kind length seed types pool places stride"),
        *native.of_type(c_void_p, "sequences cuts"),
    )


class _Rollout(native.Arguments):
    """`struct Rollout` of rollout.h."""

    _fields_ = (
        ("steps", c_int64),
        *native.of_type(c_void_p, "env_number standing item_volume gain"),
        *native.of_type(c_float, "bin_volume scale"),
        ("pool", c_int64),
        *native.of_type(c_void_p, " ".join(_STATE)),
        *native.of_type(c_void_p, "placements placement_z"),
        ("longest", c_int64),
        *native.of_type(c_void_p, " ".join(_MAPS)),
        *native.of_type(c_void_p, "before action after reward utilization done value chosen"),
    )


@final
class GreedyRollouts:
    """Plays whole rollouts of `PackingPolicy` with plain `PatchTables` in a `PackingEnv` of boxes."""

    def problem(self, env: BatchedEnv, policy: Policy, keys: Sequence[NestedKey], more: Sequence[NestedKey]) -> str:
        """Reason why it does not play this policy in this environment, in one line; "" where it does."""
        if type(env) is not PackingEnv or not env.catalogue.flat:
            return "whole rollouts are of a PackingEnv of boxes"
        if type(policy) is not PackingPolicy or type(policy.tables) is not PatchTables:
            return "whole rollouts are of plain PatchTables"
        if left_out := [key for key in (*keys, *more) if key not in _KEPT]:
            return f"whole rollouts do not keep {left_out[0]}"
        problem = _uncovered_option(env) or _other_bin(env, policy.tables)
        if problem or (native.runs_on(policy.tables.weight) and env.is_native):
            return problem
        kernels = in_triton(TRITON_ROLLOUTS, env.device) if env.kernels.backend == "triton" else None
        if kernels is None:
            return f"whole rollouts are C++ or Triton; got {env.device} and the kernels {env.kernels.backend!r}"
        return str(kernels.problem(env))

    def play(
        self, env: BatchedEnv, policy: Policy, current: TensorDictBase, steps: int
    ) -> tuple[TensorDictBase, TensorDictBase]:
        """As `training.collect.steps.play_steps`: steps (N, T), and what the environment shows then."""
        assert isinstance(env, PackingEnv)
        assert isinstance(policy, PackingPolicy)
        assert isinstance(policy.tables, PatchTables)
        state = _copied(env.state)
        if env.is_native:
            made = _outputs(env, steps)
            _play(env, policy.tables, state, made, steps)
        else:
            made = in_triton(TRITON_ROLLOUTS, env.device).play(env, policy.tables, state, steps)
        shown = current.copy()
        decided = {"action_value": made["value"], "chosen_action_value": made["chosen"]}
        decided["action"] = made["action"][:, -1].clone()
        shown.update(decided | dict(env.go_on(state).items()))
        return _steps(made, env.num_envs), shown


GREEDY_ROLLOUTS = GreedyRollouts()


def _uncovered_option(env: PackingEnv) -> str:
    """The first option of an environment that no whole rollout covers, in one line."""
    covered = {
        "stability": env.stability in DROP_RULES,
        "fallback": env.fallback is None,
        "reward": env.reward == "utilization",
        "stability_judge": env.stability_judge == "rule",
        "skip_unplaceable": not env.skip_unplaceable,
        "items": type(env.item_sequences) in _SOURCES,
    }
    for name, is_covered in covered.items():
        if not is_covered:
            value = type(env.item_sequences).__name__ if name == "items" else repr(getattr(env, name))
            return f"whole rollouts do not cover {name} {value}"
    return ""


def _other_bin(env: PackingEnv, tables: PatchTables) -> str:
    """Difference of the bin of the tables from that of the environment; "" for none."""
    ours = env.bin
    theirs = tables.bin
    if (ours.size, ours.cells, ours.step) == (theirs.size, theirs.cells, theirs.step):
        return ""
    return f"whole rollouts want tables of the bin {ours.size} in {ours.cells} cells; got {theirs.size}, {theirs.cells}"


def _copied(state: PackingState) -> PackingState:
    """A state to write into; `placements` are written in place by single steps, too."""
    copied = {name: getattr(state, name).clone() for name in (*_STATE, *_MAPS)}
    return replace(state, **copied)


def _outputs(env: PackingEnv, steps: int) -> dict[str, Tensor]:
    """Uninitialised tensors of what is kept of a rollout, by the names of rollout.h."""
    rows = env.num_envs
    numbers = ("reward", "utilization")
    made = {name: native.output(rows, steps, 1, dtype=torch.float32) for name in numbers}
    heights = (rows, steps, *env.bin.cells)
    made |= {name: native.output(*heights, dtype=torch.float32) for name in ("before", "after")}
    made["action"] = native.output(rows, steps, dtype=torch.int64)
    made["done"] = native.output(rows, steps, 1, dtype=torch.bool)
    made["value"] = native.output(rows, env.num_actions, dtype=torch.float32)
    made["chosen"] = native.output(rows, 1, dtype=torch.float32)
    return made


def _play(env: PackingEnv, tables: PatchTables, state: PackingState, made: dict[str, Tensor], steps: int) -> None:
    catalogue = env.catalogue
    bin_ = env.bin
    levels = state.heightmap.new_zeros(0, *tables.seen, dtype=torch.uint8)
    weight = tables.weight.contiguous()
    patches = PatchArguments.of(tables.plan, levels, weight)
    problem = described_problem(state.heightmap, state.item_id, catalogue, bin_)
    tensors = {
        "env_number": env.env_numbers,
        "standing": standing_height(catalogue, bin_),
        "item_volume": catalogue.volume,
        "gain": env.item_sizes[..., 3] / tables.bin.volume,
    }
    tensors |= {name: getattr(state, name) for name in (*_STATE, *_MAPS, "placements", "placement_z")}
    assert all(tensors[name].is_contiguous() for name in tensors if name != "gain")
    rollout = _Rollout.of(
        tensors | made,
        steps=steps,
        bin_volume=bin_.volume,
        scale=tables.plan.levels / tables.bin.size[2],
        pool=tables.pool,
        longest=state.placements.shape[1],
    )
    source = _described_source(env.item_sequences, env.seed)
    native.library().play_rollout(byref(problem), byref(rollout), byref(source), byref(patches))


def _described_source(sequences: ItemSequences, seed: int) -> _Source:
    seed = seed_bits(seed)
    if isinstance(sequences, CutSequences):
        cuts = torch.tensor(sequences.numbers, dtype=torch.int64, device="cpu")
        return _Source.of({"cuts": cuts}, kind=0, length=sequences.length, seed=seed)
    if isinstance(sequences, EndlessSequences):
        return _Source.of({}, kind=1, length=sequences.length, seed=seed, types=sequences.num_types)
    assert isinstance(sequences, PooledSequences)
    pool, places = sequences.sequences.shape
    size = {"length": sequences.length, "pool": pool, "places": places, "stride": sequences.stride}
    return _Source.of({"sequences": sequences.sequences}, kind=3 if sequences.in_order else 2, seed=seed, **size)


def _steps(made: dict[str, Tensor], rows: int) -> TensorDictBase:
    """What is kept of every step, (N, T)."""
    steps = made["action"].shape[1]
    after: dict[str, Any] = {name: made[name] for name in ("reward", "done", "utilization")}
    after |= {"box_heightmap": made["after"], "terminated": made["done"].clone()}
    kept: dict[str, Any] = {"box_heightmap": made["before"], "action": made["action"]}
    device = made["action"].device
    kept["next"] = TensorDict(after, batch_size=[rows, steps], device=device)
    return TensorDict(kept, batch_size=[rows, steps], device=device)
