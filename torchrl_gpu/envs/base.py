"""The batched environment that every environment of this package is: resets of finished rows stay on the device."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.envs import EnvBase

from torchrl_gpu.device import get_device

DONE_KEYS = ("done", "terminated", "truncated")


class BatchedEnv(EnvBase):
    """`EnvBase` over `num_envs` rows whose `step_and_maybe_reset` never reads the device back.

    TorchRL's own path asks the host whether any row is done, two to four times a step. Here every step computes what a
    reset would give and keeps it where a row is done (`torch.where`): no branch, no read, one graph. The true terminal
    observation stays in `next`.

    A subclass gives `_observe_reset(mask)`: restart the rows of `mask`, return the observation of all rows.
    """

    reads_host = ""
    """What in a step reads the device back after all, so that no CUDA graph can hold it; empty where nothing does."""

    def __new__(cls, *args: Any, **kwargs: Any) -> BatchedEnv:
        # EnvBase makes __new__ a class method, which hides the constructor's arguments from jsonargparse.
        return super().__new__(*args, **kwargs)

    def __init__(self, num_envs: int, device: str | torch.device = "auto", seed: int | None = None) -> None:
        if num_envs < 1:
            raise ValueError(f"{type(self).__name__}: num_envs must be at least 1; got {num_envs}")
        super().__init__(device=get_device(device), batch_size=torch.Size([num_envs]))
        self.num_envs = num_envs
        self.seed = int(torch.randint(2**31 - 1, ()).item()) if seed is None else int(seed)

    @abstractmethod
    def _observe_reset(self, mask: Tensor) -> dict[str, Tensor]:
        """Restarts the rows where `mask` (N,) is true; observations of all rows."""

    @abstractmethod
    def _env_state(self) -> dict[str, Tensor]:
        """Every tensor that decides how the run goes on."""

    @abstractmethod
    def _set_env_state(self, state: dict[str, Tensor]) -> None:
        """Takes what `_env_state` gave."""

    @property
    def stored_keys(self) -> list[str]:
        """Observations that replay must keep."""
        return [str(key) for key in self.observation_spec]

    def restore(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Adds to states (B,) taken from replay what `stored_keys` leaves out; in place."""
        return tensordict

    @abstractmethod
    def like(self, num_envs: int, **changes: Any) -> BatchedEnv:
        """An environment with the same constructor arguments, but for `changes`."""

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The whole state as tensors, seed and episode counters included."""
        return {"seed": torch.tensor(self.seed), **{name: value.clone() for name, value in self._env_state().items()}}

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True, **kwargs: Any) -> None:
        """Goes on from `state_dict`; the next step is the one that the saved environment would have made.

        Args:
            state_dict: What `state_dict` gave.
            strict: Whether every entry must be there; otherwise those that are missing stay as they are.

        Raises:
            ValueError: A name or a shape differs, as when `num_envs` is not the same.
        """
        where, state = f"{type(self).__name__}.load_state_dict", self.state_dict()
        if strict and set(state) != set(state_dict):
            raise ValueError(f"{where}: want the entries {sorted(state)}; got {sorted(state_dict)}")
        for name in set(state) & set(state_dict):
            wanted, came = state[name].shape, state_dict[name].shape
            if wanted != came:
                raise ValueError(f"{where}: {name} must have shape {tuple(wanted)}; got {tuple(came)}")
            state[name] = state_dict[name].to(state[name].device, copy=True)
        self.seed = int(state.pop("seed"))
        self._set_env_state(state)

    def _set_seed(self, seed: int | None) -> None:
        if seed is not None:
            self.seed = int(seed)
            self._restart_streams()

    @abstractmethod
    def _restart_streams(self) -> None:
        """Makes the next reset begin the first episode of the streams of `self.seed`."""

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        if mask is None:
            mask = torch.ones(self.num_envs, dtype=torch.bool, device=self.device)
        return self._started(self._observe_reset(mask.reshape(self.num_envs)))

    def _started(self, observation: dict[str, Tensor]) -> TensorDict:
        out = dict(observation)
        for key in DONE_KEYS:
            out[key] = torch.zeros(self.num_envs, 1, dtype=torch.bool, device=self.device)
        return TensorDict(out, batch_size=self.batch_size, device=self.device)

    def _step_and_maybe_reset(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        if tensordict.device != self.device:
            tensordict = tensordict.to(self.device)
        tensordict = self.step(tensordict)
        return tensordict, self.maybe_reset(self._step_mdp(tensordict))

    def maybe_reset(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Restarts the rows that are done, without asking the host whether there are any."""
        done = tensordict.get("done").reshape(self.num_envs)
        return tensordict.update(self._started(self._observe_reset(done)))


def where_rows(mask: Tensor, fresh: Tensor, kept: Tensor) -> Tensor:
    """Rows of `fresh` where `mask` (N,), else of `kept`."""
    return torch.where(mask.view(-1, *([1] * (kept.ndim - 1))), fresh, kept)
