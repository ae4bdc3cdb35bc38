"""Water currents: a sum of vortices, each of which turns as a solid inside its core and falls off as 1/r outside."""

from __future__ import annotations

import torch
from torch import Tensor

from torchrl_gpu.envs.marine.types import CORE_RADIUS


def flow(x: Tensor, y: Tensor, core: Tensor, circulation: Tensor) -> tuple[Tensor, Tensor]:
    """Velocity of the water at given positions.

    With q = core − place, a core moves it by γ q⊥ / max(|q|², r₀²), where γ is the circulation over 2π and q⊥ is q
    turned by a quarter from x to y: a Rankine vortex.

    Args:
        x, y: Place, metres, (R, N).
        core: Metres, (2, C, 1, N).
        circulation: γ, m²/s, (C, 1, N); 0 for a core that is not there.

    Returns:
        Along x and along y, m/s, (R, N).
    """
    if not len(circulation):
        return torch.zeros_like(x), torch.zeros_like(y)
    core_x, core_y = core.unbind()
    qx, qy = core_x - x, core_y - y  # (C, R, N)
    # In place: half of this function's time goes into memory.
    strength = circulation / (qx * qx).addcmul_(qy, qy).clamp_min_(CORE_RADIUS**2)
    return qy.mul_(strength).sum(0).neg_(), qx.mul_(strength).sum(0)
