"""The released rule on given placements beside the released code, written anew, and what was measured."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from benchmarks import released_support
from tests.envs.packing.kernels.test_released_rules import released_support as released
from torchrl_gpu.envs.packing.protocols import make_protocol
from torchrl_gpu.evaluation.packing.protocols import SUITE_HASHES


def test_it_refuses_what_the_released_code_refuses() -> None:
    env = make_protocol("discrete125", 4096, device="cpu", seed=0)
    shown = env.reset()
    torch.manual_seed(0)
    heights = torch.randint(1, 4, (4096, 10, 10)).float()
    z_map, legal = env.kernels.drop_map(heights, shown["item_id"], env.catalogue, env.bin)
    shown.update({"box_heightmap": heights, "z_map": z_map, "legal_mask": legal})
    action = torch.where(legal.flatten(1), torch.rand(4096, legal[0].numel()), -1.0).argmax(1)
    found = released_support.refuses(env, shown, action)
    seen = 0
    for row in range(4096):
        o, x, y = np.unravel_index(int(action[row]), env.action_shape)[1:]
        p, q = env.catalogue.extent[int(shown["item_id"][row, 0]), o].tolist()
        if legal[row, 0, o, x, y]:
            seen += 1
            assert bool(found[row]) is not released(heights[row, x : x + p, y : y + q].numpy())
    assert seen > 2000
    assert found.any()


def test_what_was_measured() -> None:
    found = json.loads(released_support.RESULT.read_text(encoding="utf-8"))
    assert found["sequences"]["sha256"] == SUITE_HASHES["discrete125"]
    ours, theirs = found["policies"]
    assert ours["utilization"] == pytest.approx(0.7877, abs=1e-4)
    assert found["share"] == pytest.approx(found["edge_cases"] / found["placements"])
    assert abs(ours["utilization"] - theirs["utilization"]) < 0.01
