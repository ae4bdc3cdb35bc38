"""Sets of objects that no run has trained on, and items that environments share."""

from __future__ import annotations

import pytest
import torch

from tests.policies.packing.packer_scenes import solids_env
from tests.training.tiny import packing_env
from torchrl_gpu.envs.packing.items import BoxSequences, ProceduralSolids, RandomBoxes
from torchrl_gpu.envs.packing.types import Bin
from torchrl_gpu.evaluation.packing.episodes import evaluate
from torchrl_gpu.evaluation.packing.irregular import HARD_SCALE, easy, hard
from torchrl_gpu.policies.packing import DeepestBottomLeft

BIN = Bin((0.4, 0.4, 0.3), (20, 20), 2)


def test_easy_objects_are_others_of_the_same_kind() -> None:
    trained = ProceduralSolids(12, 0.05, 0.10, seed=1)
    other = easy(trained, 2)
    assert isinstance(other, ProceduralSolids)
    assert (other.num_objects, other.min_size, other.max_size) == (12, 0.05, 0.10)
    same = [a.shape == b.shape for a, b in zip(trained.solids(0.005), other.solids(0.005), strict=True)]
    assert sum(same) < 3


def test_objects_trained_on_are_refused() -> None:
    with pytest.raises(ValueError, match=r"evaluate: --seed .*7"):
        easy(ProceduralSolids(seed=7), 7)


def test_hard_objects_are_concave_and_larger() -> None:
    harder = hard(ProceduralSolids(8, 0.05, 0.10, seed=1), 2)
    assert isinstance(harder, ProceduralSolids)
    assert (harder.min_size, harder.max_size) == (pytest.approx(0.05 * HARD_SCALE), pytest.approx(0.10 * HARD_SCALE))
    for item in range(8):
        kind = harder.solid(item, BIN).name
        assert kind == f"{('bowl', 'mug', 'l_shape', 'u_shape')[item % 4]}-{item}"
        voxels = harder.solids(0.005)[item]
        # Share of the bounding box, which a convex object of these kinds would fill.
        assert voxels.mean() < 0.85


def test_hard_objects_of_other_kinds() -> None:
    harder = hard(ProceduralSolids(3), 2, ["bowl"])
    assert [harder.solid(item, BIN).name for item in range(3)] == ["bowl-0", "bowl-1", "bowl-2"]
    with pytest.raises(ValueError, match=r"ProceduralSolids: shapes must be among bowl, .*; got 'cup'"):
        hard(ProceduralSolids(3), 2, ["cup"])
    with pytest.raises(ValueError, match=r"hard .*ProceduralSolids, not RandomBoxes"):
        hard(RandomBoxes(1, 2), 2)


@pytest.mark.parametrize("order", ["sequence", "volume"])
def test_the_same_items_are_shared(order: str) -> None:
    env = packing_env(4, order=order, num_items=12)
    twin = env.like(4, items=env.shared_items())
    assert twin.catalogue is env.catalogue
    policy = DeepestBottomLeft(env)
    assert torch.equal(evaluate(twin, policy).placements, evaluate(env, policy).placements)  # type: ignore[arg-type]


def test_the_same_solids_are_shared() -> None:
    env = solids_env(1).like(1, stability_judge="com")
    twin = env.like(3, items=env.shared_items())
    # What kernels have made of a catalogue is found by its identity.
    assert twin.catalogue is env.catalogue
    assert twin.items.boxes is False
    assert twin.items.solid(0, env.bin).name == env.items.solid(0, env.bin).name


def test_a_file_of_sequences_is_shared(tmp_path: object) -> None:
    path = f"{tmp_path}/orders.json"
    with open(path, "w") as file:
        file.write("[[[1, 1, 1]], [[2, 2, 2]], [[3, 3, 3]]]")
    env = packing_env(1, items=BoxSequences(path, in_order=True))
    twin = env.like(2, items=env.shared_items(), first_env=1)
    twin.reset()
    assert twin.state.item_id[:, 0].tolist() == [1, 2]
