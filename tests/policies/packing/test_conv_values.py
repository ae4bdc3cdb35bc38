"""Values of placements by tables and a network: against the environment, and their files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import CutBoxes, RandomBoxes
from torchrl_gpu.policies import AgentSpace, ConvValues, InferencePolicy, PackingPolicy, export_policy
from torchrl_gpu.policies.packing.next_items import NextItems
from torchrl_gpu.policies.packing.patch_tables import NEVER

PATCHES = ("2x2", "1x3")


def environment(**changes: Any) -> PackingEnv:
    settings = {"items": RandomBoxes(1, 3), "bin_size": (5.0, 5.0, 5.0), "resolution": 5, "seed": 3, "device": "cpu"}
    return PackingEnv(4, **settings | {"include": ("z_map", "packed_items")} | changes)


def values_of(env: PackingEnv, patches: tuple[str, ...] = PATCHES, **changes: Any) -> ConvValues:
    torch.manual_seed(0)
    made = ConvValues(AgentSpace.of(env), patches, **{"channels": 6, "layers": 2} | changes)
    torch.nn.init.normal_(made.network.out.weight)  # 0 at first
    if made.tables is not None:
        drawn = torch.randn(made.tables.plan.entries)
        made.tables.weight.copy_(drawn[made.tables.plan.first_images])
        made.tables.path.fill_(1.0)
    if made.next_items is not None:
        made.next_items.load_state_dict(NextItems.of(env, 24).state_dict())
    return made


def values_in(made: ConvValues, shown: Any) -> torch.Tensor:
    with torch.no_grad():
        return made(*(shown.get(key) for key in made.in_keys))


@pytest.mark.parametrize(
    ("changes", "of_values"),
    [
        ({}, {}),
        ({}, {"patches": ()}),
        ({"orientations": "axis", "visible_items": 3}, {}),
        ({"bin_size": (0.5, 0.5, 0.5), "grid_step": 2}, {"layers": 1}),
        ({"resolution": (5, 10), "orientations": "fixed"}, {}),
        ({"items": CutBoxes(1, 3, "layers", pool=None), "orientations": "fixed"}, {"foretold": 27}),
    ],
    ids=["boxes", "no tables", "several items, six orientations", "a coarser grid", "oblong cells", "foretold"],
)
def test_a_placement_is_worth_its_gain_and_the_bin_that_it_leaves(
    changes: dict[str, Any], of_values: dict[str, Any]
) -> None:
    env = environment(**changes)
    made, shown = values_of(env, candidates=None, **of_values), env.reset()
    for _ in range(3):
        shown = env.step_and_maybe_reset(env.rand_action(shown))[1]
    values = values_in(made, shown)
    assert values.shape == (4, env.num_actions)
    state, checked = env.state_dict(), 0
    for action in range(env.num_actions):
        legal = shown["action_mask"][:, action]
        assert bool((values[~legal, action] == NEVER).all())
        if not bool(legal.any()):
            continue
        env.load_state_dict(state)
        after = env.step(shown.clone().set("action", torch.full((4,), action)))["next"]
        with torch.no_grad():
            wanted = after["reward"][:, 0] + made.values(made.states(after))
        torch.testing.assert_close(values[legal, action], wanted[legal], rtol=1e-4, atol=1e-4)
        checked += int(legal.sum())
    assert checked > 20


def test_the_network_looks_at_the_best_by_tables_alone() -> None:
    env = environment()
    made, shown = values_of(env, candidates=3), env.reset()
    assert made.tables is not None
    by_tables = made.tables(*(shown.get(key) for key in made.tables.in_keys))
    everywhere = values_in(values_of(env, candidates=None), shown)
    rank = (by_tables / 1e-5).round().numpy()  # of about equal ones the first
    best = torch.from_numpy(np.argsort(-rank, axis=1, kind="stable")[:, :3].copy())
    values = values_in(made, shown)
    torch.testing.assert_close(values.gather(1, best), everywhere.gather(1, best))
    others = torch.ones_like(values, dtype=torch.bool).scatter(1, best, False) & shown["action_mask"]
    torch.testing.assert_close(values[others], by_tables[others] - 1)


def test_any_batch_shape_gives_the_same() -> None:
    env = environment(items=CutBoxes(1, 3, "layers", pool=None), orientations="fixed")
    made, shown = values_of(env, foretold=27), env.reset()
    flat = values_in(made, shown)
    torch.testing.assert_close(values_in(made, shown.view(2, 2)), flat.view(2, 2, -1))


def saved(tmp_path: Path) -> tuple[Path, PackingPolicy, PackingEnv]:
    env = environment(items=CutBoxes(1, 3, "layers", pool=None), orientations="fixed")
    policy = PackingPolicy(AgentSpace.of(env), values_of(env, foretold=27), {"protocol": "mine"})
    policy.save(tmp_path / "mine.safetensors")
    return tmp_path / "mine.safetensors", policy, env


def test_a_saved_policy_values_as_it_did(tmp_path: Path) -> None:
    path, policy, env = saved(tmp_path)
    again = PackingPolicy.from_pretrained(path, "cpu")
    again.save(tmp_path / "again.safetensors")
    for each in (again, PackingPolicy.from_pretrained(tmp_path / "again.safetensors", "cpu")):
        assert each.about == {"protocol": "mine"}
        shown = env.reset()
        with torch.no_grad():
            values, wanted = each(shown.clone())["action_value"], policy(shown.clone())["action_value"]
        legal = shown["action_mask"]
        off = (values - wanted).abs()[legal & (wanted > values_floor(wanted))]
        assert float(off.max()) < 0.05  # halves of weights of about 1, summed over 98 patches


def values_floor(values: torch.Tensor) -> torch.Tensor:
    """What placements that are looked at are above."""
    return values.topk(8, 1).values[:, -1:]


@pytest.mark.parametrize(
    ("network", "weights", "message"),
    [
        (None, {}, "want a file that PackingPolicy.save wrote"),
        ({"channels": 6}, {}, "settings of a network and its weights"),
        ({"channels": 10**9}, {}, "channels must be"),
        ({"channels": 7}, {}, r"network.context.bias must have shape \(7,\)"),
        ({"channels": True}, {}, "channels must be"),
        ({"foretold": 10**9}, {}, "num_items must be|at most"),
        ({}, {"network.out.bias": torch.zeros(1)}, "float16"),
        ({}, {"network.out.bias": torch.full((1,), torch.inf).half()}, "finite"),
        ({}, {"more": torch.zeros(1).half()}, "its weights"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, network: Any, weights: dict[str, Any], message: str) -> None:
    path, _, _ = saved(tmp_path)
    with safe_open(str(path), "pt") as file:
        plain = dict(file.metadata())
    known = json.loads(plain["network"])
    changed = (
        network if network is None or (set(network) == {"channels"} and network["channels"] == 6) else known | network
    )
    save_file(load_file(path) | weights, str(path), plain | {"network": json.dumps(changed)})
    with pytest.raises(ValueError, match=message):
        PackingPolicy.from_pretrained(path, "cpu")


def test_values_that_cannot_be(tmp_path: Path) -> None:
    space = AgentSpace.of(environment())
    for wrong in ({"channels": 0}, {"layers": 0}, {"candidates": 0}, {"foretold": -1}, {"layers": 1000}):
        with pytest.raises(ValueError, match=f"ConvValues: {next(iter(wrong))} must be"):
            ConvValues(space, PATCHES, **wrong)
    with pytest.raises(ValueError, match="ConvValues: foretold wants one visible item; got 2"):
        ConvValues(AgentSpace.of(environment(visible_items=2)), PATCHES, foretold=27)
    alone = PackingPolicy(space, ConvValues(space, ()))
    with pytest.raises(ValueError, match="got a network alone"):
        alone.save(tmp_path / "alone.safetensors")


@pytest.mark.parametrize("format", ["onnx", "pt2"])
@pytest.mark.parametrize("foretold", [0, 27])
def test_it_is_exported(format: str, foretold: int, tmp_path: Path) -> None:
    """What is exported is compared with the policy, before it is written."""
    env = environment(items=CutBoxes(1, 3, "layers", pool=None), orientations="fixed")
    policy = PackingPolicy(AgentSpace.of(env), values_of(env, foretold=foretold))
    ours = InferencePolicy(policy, policy.space, "afterstate values")
    assert export_policy(ours, tmp_path / f"mine.{format}", format=format).is_file()
