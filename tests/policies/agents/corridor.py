"""A small TorchRL environment of discrete actions.

It has no action mask unless one is asked for.
"""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torchrl.data import Binary, Categorical, Composite, Unbounded
from torchrl.envs import EnvBase

PLACES, ACTIONS = 4, 3


class Corridor(EnvBase):
    """Four places in a row, with a reward of 1 for reaching the last.

    Actions are left, stay and right.

    Args:
        batch: Its batch size.
        masked: Whether it shows an `action_mask`, which is always true.
    """

    def __init__(self, *batch: int, masked: bool = False) -> None:
        super().__init__(device="cpu", batch_size=batch)
        seen: dict[str, Any] = {"observation": Unbounded((*batch, PLACES))}
        if masked:
            seen["action_mask"] = Binary(ACTIONS, (*batch, ACTIONS), dtype=torch.bool)
        self.observation_spec = Composite(seen, shape=batch)
        self.action_spec = Categorical(ACTIONS, batch)
        self.reward_spec = Unbounded((*batch, 1))
        self.masked, self.place = masked, torch.zeros(batch, dtype=torch.int64)

    def _shown(self) -> dict[str, Tensor]:
        shown = {"observation": torch.nn.functional.one_hot(self.place, PLACES).float()}
        return shown | ({"action_mask": torch.ones(*self.batch_size, ACTIONS, dtype=torch.bool)} if self.masked else {})

    def _reset(self, tensordict: TensorDictBase | None) -> TensorDictBase:
        self.place = torch.zeros(self.batch_size, dtype=torch.int64)
        return TensorDict(self._shown(), self.batch_size)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.place = (self.place + tensordict["action"] - 1).clamp(0, PLACES - 1)
        there = (self.place == PLACES - 1).unsqueeze(-1)
        ends = {"reward": there.float(), "terminated": there, "done": there.clone()}
        return TensorDict(self._shown() | ends, self.batch_size)

    def _set_seed(self, seed: int | None) -> None:
        pass


class Scores(nn.Module):
    """Values (…, A) of places."""

    in_keys = ("observation",)

    def __init__(self, env: EnvBase | None = None, width: int = ACTIONS) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(PLACES, width))

    def forward(self, observation: Tensor) -> Tensor:
        return observation @ self.weight


class Atoms(Scores):
    """Logits (…, A, Z)."""

    num_atoms = 5

    def __init__(self, env: EnvBase | None = None, num_atoms: int = 5) -> None:
        super().__init__(env, ACTIONS * num_atoms)

    def forward(self, observation: Tensor) -> Tensor:
        return super().forward(observation).unflatten(-1, (ACTIONS, -1))


class Quantiles(Scores):
    """Quantiles (…, U, A): values plus τ."""

    def forward(self, observation: Tensor, taus: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(observation).unsqueeze(-2) + taus.unsqueeze(-1)


NETWORKS = {"DQN": Scores, "Rainbow": Atoms, "IQN": Quantiles}
