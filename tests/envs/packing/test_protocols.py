"""The named settings are those in which others have published."""

from __future__ import annotations

import pytest
import torch

from torchrl_gpu.envs.packing.protocols import PROTOCOLS, make_protocol
from torchrl_gpu.evaluation.packing import evaluate
from torchrl_gpu.policies.packing import RandomLegal

# Utilization of random legal actions in the released environment of Zhao et al. (AAAI 2021), 500 sequences each.
RANDOM_LEGAL = {"rs": 0.256, "cut1": 0.287, "cut2": 0.302}


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_protocol_packs_boxes_of_whole_cells_into_ten_by_ten_by_ten(name: str) -> None:
    env = make_protocol(name, 4, device="cpu", seed=0)
    assert (env.bin.cells, env.bin_size, env.grid_step, env.visible_items) == ((10, 10), (10.0, 10.0, 10.0), 1, 1)
    assert env.catalogue.flat
    sides = (1, 5) if name.endswith("125") else (2, 5)
    assert (env.catalogue.extent.min().item(), env.catalogue.extent.max().item()) == sides


@pytest.mark.parametrize("name", RANDOM_LEGAL)
def test_random_legal_actions_reach_what_they_reach_in_the_released_environment(name: str) -> None:
    torch.manual_seed(0)
    env = make_protocol(name, 400, device="cpu", seed=5, include=["z_map"])
    score = evaluate(env, RandomLegal(env)).score("random legal")
    assert abs(score.utilization - RANDOM_LEGAL[name]) < 4 * score.utilization_error


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match=r"make_protocol: name .* rs, .*'cut3'"):
        make_protocol("cut3")
