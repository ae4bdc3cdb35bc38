"""Averaged weights: Lightning's `WeightAveraging` over a module that trains in an environment."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel


class WeightCopy(nn.Module):
    """A copy of the parameters and buffers of a module, in the module's order, saved under the module's names.

    A deep copy would take the environment along, and networks that an agent's policy and loss share would be two.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        places: dict[int, str] = {}
        for number, weight in enumerate(module.parameters()):
            copied = nn.Parameter(weight.detach().clone(), requires_grad=False)
            self.register_parameter(f"parameter{number}", copied)
            places[id(weight)] = f"parameter{number}"
        for number, value in enumerate(module.buffers()):
            self.register_buffer(f"buffer{number}", value.detach().clone())
            places[id(value)] = f"buffer{number}"
        self._places = {name: places[id(value)] for name, value in module.state_dict(keep_vars=True).items()}

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        for name, place in self._places.items():
            destination[prefix + name] = getattr(self, place).detach()

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: Any) -> None:
        for name, place in self._places.items():
            if (value := state_dict.get(prefix + name)) is not None:
                getattr(self, place).data.copy_(value)


class RunAveraging(WeightAveraging):
    """Weight averaging with exact resume, in place of a `WeightAveraging` of Lightning's.

    Departs from Lightning's: only weights and buffers are copied, see `WeightCopy`; a training step of several updates,
    one of which is asked for, counts as one; checkpoints hold the average as their weights and the current ones beside,
    and the module takes the average once the last checkpoint is saved.

    Args:
        asked: The callback in whose place this one is; its `should_update` decides.
    """

    def __init__(self, asked: WeightAveraging) -> None:
        super().__init__(asked._device, asked._use_buffers, **asked._kwargs)
        self.asked = asked
        self._step = 0

    @property
    def state_key(self) -> str:
        return self.asked.state_key

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        return self.asked.should_update(step_idx, epoch_idx)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Copies the weights where training begins, and leaves none of an earlier run elsewhere."""
        self._average_model = None
        if stage == "fit":
            make_env: Any = pl_module.make_env  # networks are made in the module's own setup, which comes later
            make_env(trainer.strategy.root_device, pl_module.global_rank)
            device = self._device or trainer.strategy.root_device
            self._average_model = AveragedModel(
                WeightCopy(pl_module), device=device, use_buffers=self._use_buffers, **self._kwargs
            )

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Goes on with both; evaluation has the average from the checkpoint's weights."""
        if self._average_model is not None:
            super().on_load_checkpoint(trainer, pl_module, checkpoint)

    def on_train_batch_start(self, trainer: Trainer, *args: Any) -> None:
        self._step = trainer.global_step

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *args: Any) -> None:
        """Takes the weights into the average if it is due after one of the updates of this training step."""
        if any(self.should_update(step_idx=step) for step in range(self._step, trainer.global_step)):
            assert self._average_model is not None
            self._average_model.update_parameters(pl_module)
            self._latest_update_step = trainer.global_step

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leaves the module as it is for the last checkpoint; see `finish`."""

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Gives the module the average where nothing was left to train."""
        self.finish(pl_module)

    def finish(self, pl_module: LightningModule) -> None:
        """Gives the module the average."""
        if self._average_model is not None:
            self._copy_average_to_current(pl_module)
