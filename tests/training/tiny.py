"""A packing run that takes half a second.

It has 8 bins of 5×5×5 cells and a network of one layer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from lightning.pytorch import Callback, Trainer, seed_everything
from torch import Tensor, nn

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import RandomBoxes
from torchrl_gpu.policies import DQN, Agent, AgentSpace, EpsilonGreedy, PlacementScores, SoftTargets
from torchrl_gpu.training import DeviceReplay, OffPolicy, PackingEpisodes
from torchrl_gpu.training.run import EnvRun

Run = TypeVar("Run", bound=EnvRun)

# Options of a training step.
STEPS = {"rollout_steps": 2, "updates_per_step": 2}


REPLAY = ("capacity", "prioritized", "alpha", "beta", "beta_updates", "storage")


def with_replay(arguments: dict[str, Any]) -> dict[str, Any]:
    replay = partial(DeviceReplay, **{name: arguments[name] for name in REPLAY if name in arguments})
    return {name: value for name, value in arguments.items() if name not in REPLAY} | {"replay": replay}


def packing_env(num_envs: int = 8, **changes: Any) -> PackingEnv:
    arguments = {"bin_size": (5.0, 5.0, 5.0), "resolution": 5, "items": RandomBoxes(1, 3), "include": ("z_map",)}
    return PackingEnv(num_envs, **{**arguments, "device": "cpu", "seed": 3, **changes})


class LinearScores(nn.Module):
    """Q-values of placements, linear in the heights of rest of all of them."""

    in_keys: ClassVar = ["z_map"]

    def __init__(self, space: AgentSpace) -> None:
        super().__init__()
        assert space.num_actions is not None
        self.layer = nn.Linear(space.num_actions, space.num_actions)

    def forward(self, z_map: Tensor) -> Tensor:
        return self.layer(z_map.flatten(-4))


def dqn(given: PackingEnv | AgentSpace, **changes: Any) -> DQN:
    space = given if isinstance(given, AgentSpace) else AgentSpace.of(given)
    arguments = {"network": partial(PlacementScores, channels=4, blocks=1), "targets": SoftTargets(0.1)}
    return DQN(space, **{**arguments, "exploration": EpsilonGreedy(frames=400), **changes})


def module(
    *,
    make: Callable[..., Agent] = dqn,
    agent: dict[str, Any] | None = None,
    env: dict[str, Any] | None = None,
    **changes: Any,
) -> OffPolicy:
    """A module that is small in every respect.

    `agent` and `env` change the arguments of those.
    """
    arguments = {"batch_size": 16, "capacity": 160, "warmup_frames": 48, **STEPS}
    torch.manual_seed(7)
    return OffPolicy(
        packing_env(**(env or {})),
        partial(make, **{**({"network": LinearScores} if make is dqn else {}), **(agent or {})}),
        partial(torch.optim.Adam, lr=1e-2),
        **with_replay(arguments | changes),
    )


def data(**changes: Any) -> PackingEpisodes:
    few = {"steps_per_epoch": 3, "num_episodes": 5, "num_val_episodes": 4, "batch_size": 5, "pictures": False}
    return PackingEpisodes(**few | changes)


def trainer(folder: Path, max_steps: int = 6, *callbacks: Callback, **changes: Any) -> Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "num_sanity_val_steps": 0}
    quiet |= {"accelerator": "cpu", "enable_checkpointing": bool(callbacks), "log_every_n_steps": 1}
    return Trainer(default_root_dir=folder, max_steps=max_steps, callbacks=list(callbacks), **quiet | changes)


def fit(
    module: Run,
    folder: Path,
    max_steps: int = 6,
    *callbacks: Callback,
    ckpt_path: Path | None = None,
    data_module: PackingEpisodes | None = None,
    seed: int = 1,
    **changes: Any,
) -> Run:
    seed_everything(seed, verbose=False)
    runner = trainer(folder, max_steps, *callbacks, **changes)
    runner.fit(module, datamodule=data_module or data(), ckpt_path=ckpt_path, weights_only=True)
    return module
