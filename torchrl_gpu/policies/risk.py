"""Risk level of a distributional agent."""

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
    """Level φ of the conditional value at risk (CVaR).

    Quantiles are taken from [0, φ]: 1 is neutral, 0 sees only the worst. Dabney, Ostrovski, Silver, Munos, "Implicit
    Quantile Networks", ICML 2018, section 3.1. The adaptive level is φ = min(1, clearance / distance), as in Lin et
    al., "Robust Unmanned Surface Vehicle Navigation with Distributional Reinforcement Learning", IROS 2023.

    Args:
        cvar: φ, or "adaptive".
        distance: Clearance from which the adaptive level is 1, metres.
    """

    def __init__(self, cvar: Risk = 1.0, distance: float = 10.0) -> None:
        super().__init__()
        self.adaptive = cvar == "adaptive"
        if not self.adaptive and not (isinstance(cvar, float | int) and 0 < cvar <= 1):
            raise ValueError(f'RiskLevel: cvar must be above 0 and at most 1, or "adaptive", not {cvar!r}')
        arguments.number("RiskLevel", "cvar_distance", distance, above=0)
        if not self.adaptive:
            arguments.check_effect("RiskLevel", "cvar adaptive", cvar_distance=(distance, 10.0))
        self.in_keys = ["clearance"] if self.adaptive else []
        self.cvar = cvar
        self.distance = distance
        # A buffer, so that the level moves to the device with the agent, and no checkpoint sets it.
        self.level: Tensor
        register_settings(self, level=1.0 if cvar == "adaptive" else float(cvar))

    def forward(self, tensordict: TensorDictBase) -> Tensor:
        """Level of each row, (…, 1), or one for all, ()."""
        if not self.adaptive:
            return self.level
        share = tensordict.get("clearance") / self.distance
        return share.clamp(0, 1).to(self.level.dtype)

    def check(self, agent: str, space: AgentSpace) -> RiskLevel:
        """Return itself.

        ValueError unless the observation that it reads exists.
        """
        for key in self.in_keys:
            if key not in space.observations:
                raise ValueError(
                    f"{agent}: an adaptive cvar reads {key}, which {space.source} does not observe: it has"
                    f" {space.names}"
                )
        return self


def midpoints(number: int) -> Tensor:
    """Middles of `number` equal parts of [0, 1], (U,) float32."""
    parts = torch.arange(number, dtype=torch.float32, device=torch.get_default_device())
    return (parts + 0.5) / number
