"""How an environment is found to be viewable.

By its own methods, or by the module next to it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.training.tiny import packing_env
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.viewable import ViewablePacking
from torchrl_gpu.envs.viewable import Viewable, viewable


class Drawn:
    num_envs = 2

    def metrics(self) -> dict[str, Tensor]:
        return {"step": torch.zeros(2), "episode": torch.ones(2), "return": torch.zeros(2)}

    def pictures(self, index: Sequence[int], width: int, height: int) -> np.ndarray:
        return np.zeros((len(index), height, width, 3), np.uint8)


class OwnPacking(PackingEnv):
    """An environment of somebody else's module."""


def test_what_draws_itself_is_left_as_it_is() -> None:
    env = Drawn()
    assert viewable(env) is env


def test_a_packing_is_shown_by_the_module_beside_it() -> None:
    shown = viewable(packing_env(2))
    assert isinstance(shown, ViewablePacking)
    assert isinstance(shown, Viewable)
    assert shown.num_envs == 2


def test_a_subclass_elsewhere_is_shown_as_its_base() -> None:
    assert isinstance(viewable(OwnPacking(1, device="cpu")), ViewablePacking)


@pytest.mark.parametrize("nothing", [None, 3, object()])
def test_what_cannot_be_shown(nothing: object) -> None:
    with pytest.raises(ValueError, match=r"viewable: builtins\..*`pictures`"):
        viewable(nothing)
