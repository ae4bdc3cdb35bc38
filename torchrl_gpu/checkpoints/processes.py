"""What the processes of a run agree on before one of them acts."""

from __future__ import annotations

import torch
from lightning.pytorch import Trainer


def any_of_all(trainer: Trainer, *flags: bool) -> list[bool]:
    """Combine each flag over all processes by a logical or.

    With several processes all must ask at the same step.
    """
    if trainer.world_size == 1:
        return list(flags)
    together = torch.tensor(flags, dtype=torch.int32, device=trainer.strategy.root_device)
    torch.distributed.all_reduce(together, torch.distributed.ReduceOp.MAX)
    return [bool(flag) for flag in together.tolist()]
