"""Risk level of a distributional agent: that of its conditional value at risk (CVaR)."""

from __future__ import annotations

from typing import Literal, final

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from torchrl_gpu.policies.spaces import AgentSpace
from torchrl_gpu.policies.weights import register_settings
from torchrl_gpu.system import arguments

Risk = float | Literal["adaptive"]


@final
class RiskLevel(nn.Module):
    """Level φ of the conditional value at risk: quantiles are taken from [0, φ], so 1 is neutral and 0 sees the worst.

    Dabney, Ostrovski, Silver, Munos, "Implicit Quantile Networks", ICML 2018, section 3.1. Adaptive: φ = min(1,
    clearance / distance), as in Lin et al., "Robust Unmanned Surface Vehicle Navigation with Distributional
    Reinforcement Learning", IROS 2023.

    Args:
        cvar: φ, or "adaptive".
        distance: Clearance from which on the adaptive level is 1, metres.
    """

    def __init__(self, cvar: Risk = 1.0, distance: float = 10.0) -> None:
        super().__init__()
        self.adaptive = cvar == "adaptive"
        if not (self.adaptive or (isinstance(cvar, float | int) and 0 < cvar <= 1)):
            raise ValueError(f'RiskLevel: cvar must be above 0 and at most 1, or "adaptive"; got {cvar!r}')
        arguments.number("RiskLevel", "cvar_distance", distance, above=0)
        if not self.adaptive:
            arguments.check_effect("RiskLevel", "cvar adaptive", cvar_distance=(distance, 10.0))
        self.in_keys = ["clearance"] if self.adaptive else []
        self.cvar, self.distance = cvar, distance
        self.level: Tensor
        register_settings(self, level=1.0 if cvar == "adaptive" else float(cvar))

    def forward(self, tensordict: TensorDictBase) -> Tensor:
        """Level of each row, (…, 1), or one for all, ()."""
        if not self.adaptive:
            return self.level
        return (tensordict.get("clearance") / self.distance).clamp(0, 1).to(self.level.dtype)

    def check(self, agent: str, space: AgentSpace) -> RiskLevel:
        """Itself; ValueError unless the observation that it reads exists."""
        if missing := [key for key in self.in_keys if key not in space.observations]:
            raise ValueError(
                f"{agent}: an adaptive cvar wants {missing[0]} to observe; {space.source} gives only {space.names}"
            )
        return self


def midpoints(number: int) -> Tensor:
    """The middles of `number` equal shares of [0, 1], (U,) float32."""
    return (torch.arange(number, dtype=torch.float32, device=torch.get_default_device()) + 0.5) / number
