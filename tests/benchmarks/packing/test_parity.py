"""Parity passes for what is right, and names what is wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.packing import parity
from benchmarks.packing.settings import BPP10, irregular
from torchrl_gpu.envs.packing.items import CutBoxes
from torchrl_gpu.envs.packing.kernels import eager, get_kernels
from torchrl_gpu.envs.packing.types import Moved

SMALL: dict[str, Any] = {"items": CutBoxes(pool=16)}


def found(changes: dict[str, Any], steps: int = 12) -> str:
    return parity.difference(changes, num_envs=2, steps=steps, device="cpu", drops=parity.BOX_DROPS)


@pytest.mark.parametrize("name", BPP10)
def test_every_setting_agrees_with_every_numpy_way(name: str) -> None:
    assert found(BPP10[name] | (SMALL if name == "bpp10 cut2" else {})) == ""


def test_irregular_items_agree_at_the_walls_of_a_coarse_grid() -> None:
    changes = irregular(2, 4, 33, 4) | {"num_items": 6, "stability": "support"}
    assert parity.difference(changes, num_envs=2, steps=4, device="cpu", drops=parity.DROPS) == ""


def test_a_wrong_map_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_permissive(*args: Any) -> tuple[Tensor, Tensor]:
        z_map, legal = eager.drop_map(*args)
        return z_map, torch.ones_like(legal)

    _use(monkeypatch, drop_map=too_permissive)
    assert found({}).startswith("NumPy loop: step 0, next: legal_mask differs in ")


def test_a_wrong_placement_is_found_in_the_step_that_makes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def floating(*args: Any) -> Moved:
        moved = eager.advance(*args)
        return moved._replace(state=replace(moved.state, heightmap=moved.state.heightmap + 0.01))

    _use(monkeypatch, advance=floating)
    assert found({}).startswith(
        "NumPy loop: step 0, next: box_heightmap differs in 200 of 200 entries, first at (0, 0, 0)"
    )


def test_a_wrong_reward_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Optimist(parity.PackingEnv):
        def _gain(self, before: Any, legal: Tensor) -> Tensor:
            return super()._gain(before, legal) + 0.1

    monkeypatch.setattr("benchmarks.packing.settings.PackingEnv", Optimist)
    assert "next reward differs in 2 of 2 entries" in found({})


def test_an_action_that_is_not_legal_ends_the_episode_in_both() -> None:
    # One action in twenty is drawn from all of them; these steps hold several that are not legal.
    torch.manual_seed(0)
    assert found({"bin_size": (10.0, 10.0, 5.0)}, steps=60) == ""


def _use(monkeypatch: pytest.MonkeyPatch, **wrong: Any) -> None:
    """Gives environments the torch kernels with some jobs done wrongly."""
    right = get_kernels("eager")
    monkeypatch.setattr("torchrl_gpu.envs.packing.env.get_kernels", lambda *args: right._replace(**wrong))
