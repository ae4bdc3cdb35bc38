"""Whole rollouts of greedy tables in bins of boxes.

A rollout is one C++ call, see `native/rollout.h`, or one launch in Triton. `GREEDY_ROLLOUTS` is what
`training.collect.fused.WholePlayer` describes. It gives the bits of single steps; what it does not cover is named by
`problem`, and single steps play that.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref, c_float, c_int64, c_void_p
from dataclasses import replace
from typing import final

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from torch import Tensor

from torchrl_gpu import native
from torchrl_gpu.envs import BatchedEnv, PackingEnv
from torchrl_gpu.envs.counter_rng import seed_bits
from torchrl_gpu.envs.packing.items.cutting import CutSequences
from torchrl_gpu.envs.packing.items.source import EndlessSequences, ItemSequences, PooledSequences
from torchrl_gpu.envs.packing.kernels.compiled import DROP_RULES, described_problem
from torchrl_gpu.envs.packing.stability.rule import standing_height
from torchrl_gpu.envs.packing.types import PackingState
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

    _settings = (
        ("steps", c_int64),
        *native.of_type(c_void_p, "env_number standing item_volume gain"),
        *native.of_type(c_float, "bin_volume scale"),
        ("pool", c_int64),
    )
    _state = native.of_type(c_void_p, " ".join((*_STATE, "placements", "placement_z")))
    _maps = native.of_type(c_void_p, " ".join(_MAPS))
    _outputs = native.of_type(c_void_p, "before action after reward utilization done value chosen")
    _fields_ = (*_settings, *_state, ("longest", c_int64), *_maps, *_outputs)


@final
class GreedyRollouts:
    """Player of whole rollouts of a `PackingPolicy` with plain `PatchTables`.

    The environment is a `PackingEnv` of boxes.
    """

    def problem(self, env: BatchedEnv, policy: Policy, keys: Sequence[NestedKey], more: Sequence[NestedKey]) -> str:
        """Reason not to play a policy in an environment, in one line, or ""."""
        # Subclasses may override what a rollout does by itself.
        if type(env) is not PackingEnv or not env.catalogue.flat:
            return "whole rollouts are of a PackingEnv of boxes"
        if type(policy) is not PackingPolicy or type(policy.tables) is not PatchTables:
            return "whole rollouts are of plain PatchTables"
        for key in (*keys, *more):
            if key not in _KEPT:
                return f"whole rollouts do not keep {key}"
        # C++ plays on a CPU, Triton on a CUDA device, if they cover the options and the bin is the same.
        problem = _uncovered_option(env) or _other_bin(env, policy.tables)
        if problem or (native.runs_on(policy.tables.weight) and env.is_native):
            return problem
        kernels = in_triton(TRITON_ROLLOUTS, env.device) if env.kernels.backend == "triton" else None
        if kernels is None:
            return f"whole rollouts are C++ or Triton, not {env.device} with the kernels {env.kernels.backend!r}"
        return str(kernels.problem(env))

    def play(
        self, env: BatchedEnv, policy: Policy, current: TensorDictBase, steps: int
    ) -> tuple[TensorDictBase, TensorDictBase]:
        """Play steps (N, T), as `training.collect.steps.play_steps`.

        Returns:
            The steps, and what the environment shows then.
        """
        assert isinstance(env, PackingEnv)
        assert isinstance(policy, PackingPolicy)
        assert isinstance(policy.tables, PatchTables)
        state = copy_state(env.state)
        if env.is_native:
            rollout = _outputs(env, steps)
            _play(env, policy.tables, state, rollout, steps)
        else:
            kernels = in_triton(TRITON_ROLLOUTS, env.device)
            assert kernels is not None, "`problem` has asked for them"
            rollout = kernels.play(env, policy.tables, state, steps)
        # What the environment shows, with the outputs of the policy at the last step, as single steps leave it.
        shown = current.copy()
        decided = {"action_value": rollout["value"], "chosen_action_value": rollout["chosen"]}
        decided["action"] = rollout["action"][:, -1].clone()
        observed = env.go_on(state)
        after = dict(observed.items())
        shown.update(decided | after)
        return _steps(rollout, env.num_envs), shown


GREEDY_ROLLOUTS = GreedyRollouts()


def _uncovered_option(env: PackingEnv) -> str:
    """First option of an environment that whole rollouts do not cover, or ""."""
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
            if name == "items":
                value = type(env.item_sequences).__name__
            else:
                value = repr(getattr(env, name))
            return f"whole rollouts do not cover {name} {value}"
    return ""


def _other_bin(env: PackingEnv, tables: PatchTables) -> str:
    """Difference between the bins of tables and environment, or ""."""
    ours = env.bin
    theirs = tables.bin
    same_size = ours.size == theirs.size and ours.cells == theirs.cells
    if same_size and ours.step == theirs.step:
        return ""
    return f"whole rollouts need tables of the bin {ours.size} in {ours.cells} cells, not {theirs.size}, {theirs.cells}"


def copy_state(state: PackingState) -> PackingState:
    """Copy a state to write into.

    `placements` are shared: single steps write them in place, too.
    """
    names = (*_STATE, *_MAPS)
    copied = {name: getattr(state, name).clone() for name in names}
    return replace(state, **copied)


def _outputs(env: PackingEnv, steps: int) -> dict[str, Tensor]:
    """Uninitialised tensors of what is kept of a rollout, by the names of rollout.h."""
    rows = env.num_envs
    heights = (rows, steps, *env.bin.cells)
    outputs = {}
    for name in ("reward", "utilization"):
        outputs[name] = native.output(rows, steps, 1, dtype=torch.float32)
    for name in ("before", "after"):
        outputs[name] = native.output(*heights, dtype=torch.float32)
    outputs["action"] = native.output(rows, steps, dtype=torch.int64)
    outputs["done"] = native.output(rows, steps, 1, dtype=torch.bool)
    outputs["value"] = native.output(rows, env.num_actions, dtype=torch.float32)
    outputs["chosen"] = native.output(rows, 1, dtype=torch.float32)
    return outputs


def _play(env: PackingEnv, tables: PatchTables, state: PackingState, outputs: dict[str, Tensor], steps: int) -> None:
    catalogue = env.catalogue
    bin_ = env.bin
    levels = state.heightmap.new_zeros(0, *tables.seen, dtype=torch.uint8)
    weight = tables.weight.contiguous()
    patches = PatchArguments.of(tables.plan, levels, weight)
    problem = described_problem(state.heightmap, state.item_id, catalogue, bin_)
    tensors = {"env_number": env.env_numbers, "item_volume": catalogue.volume}
    tensors["standing"] = standing_height(catalogue, bin_)
    tensors["gain"] = env.item_sizes[..., 3] / tables.bin.volume
    names = (*_STATE, *_MAPS, "placements", "placement_z")
    tensors |= {name: getattr(state, name) for name in names}
    # `Arguments.of` makes copies of others, and what C++ writes into a copy would be lost.
    assert all(tensors[name].is_contiguous() for name in tensors if name != "gain")
    # Numbers of the struct, in any order: fields are filled by name.
    numbers = {"steps": steps, "pool": tables.pool, "longest": state.placements.shape[1]}
    scale = tables.plan.levels / tables.bin.size[2]
    rollout = _Rollout.of(tensors | outputs, bin_volume=bin_.volume, scale=scale, **numbers)
    source = _describe_source(env.item_sequences, env.seed)
    native.library().play_rollout(byref(problem), byref(rollout), byref(source), byref(patches))


def _describe_source(sequences: ItemSequences, seed: int) -> _Source:
    """Describe a source of items to C++."""
    seed = seed_bits(seed)
    if isinstance(sequences, CutSequences):
        cuts = torch.tensor(sequences.numbers, dtype=torch.int64, device="cpu")
        return _Source.of({"cuts": cuts}, kind=0, length=sequences.length, seed=seed)
    if isinstance(sequences, EndlessSequences):
        return _Source.of({}, kind=1, length=sequences.length, seed=seed, types=sequences.num_types)
    assert isinstance(sequences, PooledSequences)
    pool, places = sequences.sequences.shape
    size = {"length": sequences.length, "pool": pool, "places": places, "stride": sequences.stride}
    kind = 3 if sequences.in_order else 2
    return _Source.of({"sequences": sequences.sequences}, kind=kind, seed=seed, **size)


def _steps(rollout: dict[str, Tensor], rows: int) -> TensorDictBase:
    """What is kept of every step, (N, T)."""
    steps = rollout["action"].shape[1]
    after = {name: rollout[name] for name in ("reward", "done", "utilization")}
    after["box_heightmap"] = rollout["after"]
    after["terminated"] = rollout["done"].clone()
    device = rollout["action"].device
    kept = TensorDict({}, batch_size=[rows, steps], device=device)
    kept["box_heightmap"] = rollout["before"]
    kept["action"] = rollout["action"]
    kept["next"] = TensorDict(dict(after), batch_size=[rows, steps], device=device)
    return kept
