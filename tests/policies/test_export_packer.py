"""The hierarchical packer as a file: it decides as the packer does, in states that neither has been compared in."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from tensordict import TensorDictBase
from torch import Tensor

from tests.policies import checkpoints
from tests.policies.packing.packer_scenes import ENVS, NARROW, boxes_env, random_states, solids_env, trained
from tests.policies.packing.test_hierarchical import MARGIN, NaivePacker, grown
from torchrl_gpu.archives import ENTRY
from torchrl_gpu.cli import main
from torchrl_gpu.envs import DishwashingEnv, PackingEnv
from torchrl_gpu.policies import AgentSpace, InferencePolicy, export, export_policy, load_policy
from torchrl_gpu.policies.packing import HierarchicalPacker
from torchrl_gpu.policies.packing.packer_graph import PackerGraph
from torchrl_gpu.policies.packing.packer_parity import played_states, shortfall

SHORT = {"shortlist": 3, "item_shortlist": 2}
WITHOUT_THIS_PACKAGE = """
import sys
import numpy as np, onnxruntime
given = dict(np.load(sys.argv[2]))
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
got = [session.run(["action"], {name: each[:rows] for name, each in given.items()})[0] for rows in (1, 2, 5, 12)]
assert not {"torch", "torchrl_gpu"} & set(sys.modules)
np.savez(sys.argv[3], *got)
"""


def policy_in(env: PackingEnv, **changes: Any) -> InferencePolicy:
    """A packer of narrow networks, none of whose weights is what it was."""
    packer = HierarchicalPacker(env, trained(), **{"view_cells": 8, **changes})
    return InferencePolicy(packer, AgentSpace.of(env), "HierarchicalPacker")


def reached(env: PackingEnv) -> TensorDictBase:
    """Twelve states: nearly empty bins, half full ones, and ones in which items no longer fit."""
    return torch.cat([random_states(env, steps) for steps in (1, 4, 7)])


def given(policy: InferencePolicy, state: TensorDictBase) -> list[Tensor]:
    """What a file of the policy takes."""
    return [state[name] for name in policy.in_keys]


def saved(folder: Path) -> Path:
    """A checkpoint of a packer, as far as it decides."""
    networks = {"class_path": "torchrl_gpu.policies.packing.PackerNetworks", "init_args": {"channels": list(NARROW)}}
    content = {
        "state_dict": {f"networks.{name}": value for name, value in trained().state_dict().items()},
        ENTRY: {"config": {"model": {"init_args": {"networks": networks, **SHORT}}}},
    }
    torch.save(content, folder / "packer.ckpt")
    return folder / "packer.ckpt"


# -- files ------------------------------------------------------------------------------------------------------------


def test_onnx_runs_without_this_package_or_torch(tmp_path: Path) -> None:
    env = solids_env()
    policy = policy_in(env, **SHORT)
    written = export_policy(policy, tmp_path / "packer.onnx", env=env)
    state = reached(env)
    np.savez(tmp_path / "seen.npz", **{name: state[name].numpy() for name in policy.in_keys})
    words = [written, tmp_path / "seen.npz", tmp_path / "got.npz"]
    subprocess.run([sys.executable, "-I", "-c", WITHOUT_THIS_PACKAGE, *map(str, words)], check=True)
    wanted = policy.policy(state.clone())["action"]
    for got, rows in zip(np.load(tmp_path / "got.npz").values(), (1, 2, 5, 12), strict=True):
        action = torch.from_numpy(got)
        assert shortfall(policy.policy, [each[:rows] for each in given(policy, state)], action) <= 1e-4
    assert (action == wanted).float().mean() >= 0.75  # the rest are ties: half a turn of a mug or a cylinder
    check_sidecar(json.loads((tmp_path / "packer.json").read_text()), env)
    assert (
        yaml.safe_load((tmp_path / "packer.leapp.yaml").read_text())["pipeline"]["inputs"]["policy"] == policy.in_keys
    )


def check_sidecar(told: dict[str, Any], env: PackingEnv) -> None:
    """What whoever has only the file must know."""
    assert told["parity"]["largest_difference"] <= 1e-4
    assert told["bin"]["cells"] == [20, 20]
    assert told["bin"]["grid_step_cells"] == 3
    assert told["action_shape"] == {"visible_items": 5, "orientations": 4, "placements_x": 7, "placements_y": 7}
    assert np.abs(np.array(told["orientation_table"])).round().tolist() == 2 * [
        [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
        [[0, 1, 0], [1, 0, 0], [0, 0, 1]],
    ]
    assert told["catalogue"]["num_items"] == 12
    assert told["catalogue"]["names"] == [env.items.solid(item, env.bin).name for item in range(12)]
    assert told["choice"]["orientations_considered"] == 3
    assert "legal_mask" in told["mask"]
    assert all(entry["meaning"] != "an entry of the environment's own" for entry in told["inputs"])
    assert told["environment_settings"]["init_args"]["items"]["init_args"]["num_objects"] == 12


@torch.no_grad()
def test_a_program_of_torch_agrees_with_the_naive_twin(tmp_path: Path) -> None:
    env = boxes_env()
    policy = policy_in(env, margin=MARGIN["boxes"])
    written = export_policy(policy, tmp_path / "packer.pt2", "pt2", env=env)
    program, state = torch.export.load(str(written)).module(), reached(env)
    twin = NaivePacker(env, policy.policy)
    for row, action in zip(state, program(*given(policy, state)).tolist(), strict=True):
        growth, slot = grown(env, row), action // row["legal_mask"][0].numel()
        assert slot == twin.slot(row, growth)
        scores = twin.placements(row, slot, growth[slot])
        assert scores[action] >= max(scores.values()) - 1e-5
    for rows in (1, 7):
        assert program(*(each[:rows] for each in given(policy, state))).shape == (rows,)


# -- the graph --------------------------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("changes", [{}, SHORT, {"items": "waste"}, {"items": "box", "places": "growth"}], ids=str)
@pytest.mark.parametrize("kind", ENVS)
def test_the_graph_decides_as_the_packer(kind: str, changes: dict[str, Any]) -> None:
    env = ENVS[kind]()
    policy = policy_in(env, margin=MARGIN[kind], **changes)
    state = reached(env)
    action, wanted = PackerGraph(policy.policy)(*given(policy, state)), policy.policy(state.clone())["action"]
    assert shortfall(policy.policy, given(policy, state), action) <= 1e-4
    if policy.policy.places == "learned":  # growths alone are often equal, but for their rounding
        assert (action == wanted).float().mean() >= 0.75


def test_the_packer_is_left_as_it_was() -> None:
    env = solids_env(1)
    packer = policy_in(env).policy
    catalogue, kernels = packer.planes.catalogue, packer.planes.kernels
    assert PackerGraph(packer).packer.planes.catalogue is None
    assert packer.planes.catalogue is catalogue
    assert packer.planes.kernels is kernels


# -- what a decision loses --------------------------------------------------------------------------------------------


def test_states_are_those_of_whole_episodes() -> None:
    env = solids_env(8, num_items=24)
    policy = policy_in(env)
    states = dict(zip(policy.in_keys, played_states(env, policy.policy), strict=True))
    assert all(len(each) == 64 for each in states.values())
    filled = states["box_heightmap"].flatten(1).mean(1)
    assert filled.min() == 0
    assert len(filled.unique()) > 30
    assert states["item_mask"].any(1).all()
    z_map, legal = env.kernels.drop_map(states["box_heightmap"], states["item_id"], env.catalogue, env.bin)
    assert torch.equal(z_map, states["z_map"])
    assert torch.equal(legal, states["legal_mask"])


@torch.no_grad()
@pytest.mark.parametrize("kind", ENVS)
def test_its_own_decisions_lose_nothing_and_others_what_they_are_worth_less(kind: str) -> None:
    env = ENVS[kind]()
    policy = policy_in(env, margin=MARGIN[kind]).policy
    state = reached(env)
    seen, chosen = [state[name] for name in policy.in_keys], policy(state.clone())
    assert shortfall(policy, seen, chosen["action"]) == 0.0
    values = policy.decide(state.clone())["action_value"]
    order = values.sort(1, descending=True)
    for row in (0, 5, 10):  # the best, a middling and the worst placement of the same item
        considered = int(order.values[row].isfinite().sum())
        at = [0, considered // 2, considered - 1]
        alone = [each[row : row + 1] for each in seen]
        found = [shortfall(policy, alone, order.indices[row, place][None]) for place in at]
        best, *_ = values_of = order.values[row, at].tolist()
        assert found == pytest.approx(
            [(best - value) * 100 / max(1.0, abs(best) * 100) for value in values_of], abs=1e-5
        )
    illegal = state["action_mask"].int().argmin(1)
    for wrong in (illegal, illegal - illegal - 1, torch.full_like(illegal, env.num_actions)):
        assert shortfall(policy, seen, wrong) == float("inf")


@torch.no_grad()
def test_another_item_is_worth_less() -> None:
    env = solids_env()
    policy, state = policy_in(env).policy, reached(env)
    state = state[state["item_mask"].sum(1) > 1]
    seen, slot = [state[name] for name in policy.in_keys], policy(state.clone())["slot"]
    without = state["item_mask"].scatter(1, slot[:, None], False)
    other = policy(state.clone().set("item_mask", without))["action"]
    assert shortfall(policy, seen, other) > 1e-3


# -- without making a file --------------------------------------------------------------------------------------------


def written_by(decide: Callable[[PackerGraph, list[Tensor]], Tensor]) -> Callable[..., export.Run]:
    """What stands in for an exporter: an empty file, and a function in place of what runs it."""

    def write(graph: PackerGraph, example: list[Tensor], path: Path, names: list[str]) -> export.Run:
        path.touch()
        return lambda observations: decide(graph, observations)

    return write


def of_most_growth(graph: PackerGraph, observations: list[Tensor]) -> Tensor:
    """Legal actions, but not those that a packer would choose."""
    return torch.where(observations[4].flatten(1), observations[3].flatten(1), -1.0).argmax(1)


SPOILS: dict[str, Callable[[PackerGraph, list[Tensor]], Tensor]] = {
    "another place": of_most_growth,
    "illegal": lambda graph, observations: observations[4].flatten(1).int().argmin(1),
    "one axis too many": lambda graph, observations: graph(*observations)[:, None],
    "another type": lambda graph, observations: graph(*observations).int(),
    "one wrong row of 64": lambda graph, observations: torch.where(
        torch.arange(len(observations[0])) == 63, of_most_growth(graph, observations), graph(*observations)
    ),
}


@pytest.mark.parametrize("spoil", SPOILS)
def test_a_file_that_decides_otherwise_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: str
) -> None:
    env = solids_env(1)
    monkeypatch.setitem(export._WRITERS, "pt2", written_by(SPOILS[spoil]))
    with pytest.raises(ValueError, match=r"want a file that decides as the policy does, .* and nothing is written"):
        export_policy(policy_in(env), tmp_path / "packer.pt2", "pt2", env=env)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("env", "changes", "said"),
    [
        (lambda: None, {}, r"want the environment whose items .* env=PackingEnv\(…\); got none"),
        (lambda: solids_env(1, items=boxes_env(1).items), {}, "got one of other items or of another bin"),
        (lambda: solids_env(1, resolution=40), {}, "got one of other items or of another bin"),
        (lambda: solids_env(1), {"items": "random"}, "want a packer that draws nothing"),
        (lambda: DishwashingEnv(1, device="cpu"), {}, "env must be a PackingEnv"),
    ],
)
def test_what_a_packer_wants(tmp_path: Path, env: Callable[[], Any], changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        export_policy(policy_in(solids_env(1), **changes), tmp_path / "packer.pt2", "pt2", env=env())
    assert not list(tmp_path.iterdir())


def test_an_environment_is_for_the_packer_alone(tmp_path: Path) -> None:
    path, _ = checkpoints.saved(tmp_path, "SAC washes")
    for policy in (path, load_policy(path, "cpu")):
        with pytest.raises(ValueError, match="want no env, which only the hierarchical packer takes"):
            export_policy(policy, tmp_path / "policy.pt2", "pt2", env=solids_env(1))


CONFIG = """
model:
  class_path: torchrl_gpu.training.HierarchicalPacking
  init_args:
    env:
      class_path: torchrl_gpu.envs.PackingEnv
      init_args:
        bin_size: [0.20, 0.20, 0.16]
        resolution: 20
        grid_step: 3
        items:
          class_path: torchrl_gpu.envs.packing.items.ProceduralSolids
          init_args: {num_objects: 12, min_size: 0.04, max_size: 0.09, seed: 2}
        num_items: 12
        visible_items: 5
        include: [z_map]
    networks:
      class_path: torchrl_gpu.policies.packing.PackerNetworks
      init_args: {channels: [16, 8]}
data: {class_path: torchrl_gpu.training.PackingEpisodes}
"""


def test_the_command_line_takes_the_environment_of_a_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(export._WRITERS, "onnx", written_by(lambda graph, observations: graph(*observations)))
    (tmp_path / "run.yaml").write_text(CONFIG)
    words = ["export", str(saved(tmp_path))]
    assert main([*words], "torchrl-gpu") == 2
    said = capsys.readouterr().err
    assert "want the environment of the hierarchical packer" in said
    assert "--config" in said
    assert said.count("\n") == 1
    assert main([*words, "--nothing", "3"], "torchrl-gpu") == 2
    assert main([*words, "--config", "run.yaml", "--model.env.num_envz", "3"], "torchrl-gpu") == 2
    assert main([*words, "--config", "no.yaml"], "torchrl-gpu") == 2
    assert not list(tmp_path.glob("packer.*n*"))
    assert main([*words, "--config", "run.yaml", "--model.env.visible_items", "3"], "torchrl-gpu") is None
    told = json.loads((tmp_path / "packer.json").read_text())
    assert told["action_shape"]["visible_items"] == 3
    assert told["environment_settings"]["init_args"]["visible_items"] == 3


def test_a_config_without_bins_is_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["export", str(saved(tmp_path)), "--config", "dishwashing_feasible.yaml"]
    assert main(words, "torchrl-gpu") == 2
    assert "want the --config of a run that packs; got one with" in capsys.readouterr().err
