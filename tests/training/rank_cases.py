"""A small run of every module, for one process or one of several.

And rows that an update is given.
"""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningDataModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping
from tensordict import TensorDict, TensorDictBase

from tests.training import tiny, tiny_navigation
from torchrl_gpu.callbacks import EpisodeCheckpoint
from torchrl_gpu.demonstrations import memmap
from torchrl_gpu.envs import DishwashingEnv, PackingEnv
from torchrl_gpu.envs.packing.items import RandomBoxes
from torchrl_gpu.evaluation.demonstrations import play_rows
from torchrl_gpu.evaluation.episodes import suite_for
from torchrl_gpu.evaluation.random_actions import RandomActions
from torchrl_gpu.policies import (
    PPO,
    SAC,
    BCPolicy,
    PatchTables,
    PlacementLogits,
    PlacementValue,
    VectorCritic,
    VectorGaussian,
)
from torchrl_gpu.policies.encoders.settings import ClipEncoder
from torchrl_gpu.training import (
    AfterstateLearning,
    BehaviourCloning,
    ClipReplay,
    DemonstrationEpisodes,
    Episodes,
    OffPolicy,
    OnPolicy,
)
from torchrl_gpu.training.run import EnvRun

NAMES = ("dqn", "ppo", "packer", "cloning", "afterstates", "video")
# Modules whose updates are compared with those of one process of the double batch.
GIVEN = ("dqn", "ppo", "packer")
# Modules that run with averaged weights too: some learn by gradients, or none do.
AVERAGED = ("packer", "afterstates")
# Modules that resume on another number of processes: by environments, and by rows.
CROSSING = ("dqn", "cloning")
# Updates of a whole run, which is also saved at half of them.
STEPS = 4
Sgd = partial(torch.optim.SGD, lr=0.1)
ONE_UPDATE = {"updates_per_step": 1}


def make(name: str, folder: Path, times: int = 1, **changes: Any) -> tuple[EnvRun, LightningDataModule]:
    """A run and its data.

    Args:
        name: One of `NAMES`.
        folder: Where `write_rows` wrote demonstrations.
        times: Environments, or rows of an update, that one process has in place of so many.
        changes: Other arguments of the module.
    """
    torch.manual_seed(7)
    data: LightningDataModule = tiny.data(pictures=False)
    if name == "dqn":
        return tiny.module(**ONE_UPDATE | changes), data
    if name == "ppo":
        nets = {"actor": partial(PlacementLogits, channels=4, blocks=1)}
        nets |= {"critic": partial(PlacementValue, channels=4, blocks=1)}
        settings: dict[str, Any] = {"rollout_steps": 4, "epochs": 1, "minibatches": 1, "optimizer": Sgd} | changes
        return OnPolicy(tiny.packing_env(8), partial(PPO, **nets), **settings), data
    if name == "packer":
        return tiny_navigation.hierarchical(**ONE_UPDATE | {"worker_updates": 2, "manager_period": 1} | changes), data
    if name == "afterstates":
        box = {"items": RandomBoxes(1, 3), "bin_size": (4.0, 4.0, 4.0), "resolution": 4, "seed": 3, "device": "cpu"}
        tables = partial(PatchTables, patches=["2x2", "1x3", "2x3:1"])
        return AfterstateLearning(PackingEnv(4 * times, **box), tables, rollout_steps=6, **changes), data
    if name == "cloning":
        policy = BCPolicy(dishes().observation_spec["observation"].shape[-1], 2, (8,))
        settings = ONE_UPDATE | {"batch_size": 8 * times, "optimizer": Sgd} | changes
        rows = DemonstrationEpisodes(
            str(folder / "rows"), num_val_episodes=2, num_episodes=2, pictures=False, steps_per_epoch=2, held_out=0.3
        )
        return BehaviourCloning(policy, env=dishes(), **settings), rows
    agent = partial(SAC, actor=VectorGaussian, critic=VectorCritic)
    video = dishes(observe_as="video", clip_length=2, frame_size=(16, 16))
    replay = partial(ClipReplay, capacity=120)
    settings = ONE_UPDATE | {"batch_size": 8, "warmup_frames": 24, "replay": replay, "reconstruction": 1.0} | changes
    return OffPolicy(video, agent, encoder=ClipEncoder(num_features=8), shift=2, **settings), Episodes(
        3, 2, 2, pictures=False
    )


def dishes(**changes: Any) -> DishwashingEnv:
    return DishwashingEnv(**{"num_envs": 4, "max_steps": 5, "device": "cpu", "seed": 1} | changes)


def write_rows(folder: Path) -> None:
    memmap.save(play_rows(suite_for(dishes(), 20, seed=2), RandomActions(dishes()), 20), folder / "rows")


def callbacks(name: str) -> list[Callback]:
    """Return the callbacks of a run: checkpoints at half of it.

    In cloning also a stop that must come at the same step everywhere.
    """
    saver = EpisodeCheckpoint(every_n_updates=STEPS // 2, keep=100)
    stop = EarlyStopping("val/loss", patience=50, check_on_train_epoch_end=False)
    return [saver, stop] if name == "cloning" else [saver]


def fit(
    name: str,
    given: tuple[EnvRun, LightningDataModule],
    folder: Path,
    *more: Callback,
    ckpt_path: Any = None,
    **kw: Any,
) -> EnvRun:
    module, data = given
    max_steps = kw.pop("max_steps", STEPS)
    torch.manual_seed(kw.pop("seed", 1))
    # Only cloning has a callback that needs a validation.
    validation = 1.0 if name == "cloning" else 0.0
    trainer: Trainer = tiny.trainer(folder, max_steps, *callbacks(name), *more, limit_val_batches=validation, **kw)
    trainer.fit(module, datamodule=data, ckpt_path=ckpt_path, weights_only=True)
    return module


def half(folder: Path) -> Path:
    return folder / "checkpoints" / f"updates-{STEPS // 2}.ckpt"


def weights_of(module: EnvRun) -> torch.Tensor:
    """Weights, buffers and targets, (W,) float64."""
    return torch.cat([value.detach().double().reshape(-1) for value in module.state_dict().values()])


def draw(name: str, folder: Path) -> dict[str, torch.Tensor]:
    module, data = make(name, folder)
    fit(name, (module, data), folder / f"drawn-{name}", max_steps=1)
    if name == "ppo":
        rows = module.play(module.policy, 4)  # type: ignore[attr-defined]
    else:
        rows = torch.cat([module.replay.sample() for _ in range(2)])  # type: ignore[attr-defined]
    return {key: value.clone() for key, value in rows.flatten_keys("/").items()}


class Given(Callback):
    """Make updates from given rows in place of played ones.

    It keeps the gradient.
    """

    def __init__(self, rows: dict[str, torch.Tensor], rank: int, processes: int) -> None:
        share = len(next(iter(rows.values()))) // processes
        own = {key: value[rank * share : (rank + 1) * share] for key, value in rows.items()}
        shape = [share, own["action"].shape[1]] if own["action"].ndim == own["next/done"].ndim - 1 > 1 else [share]
        self.rows = TensorDict(own, shape).unflatten_keys("/")
        self.gradient = torch.empty(0)

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, *args: Any) -> None:
        pl_module.max_grad_norm = None
        if hasattr(pl_module, "replay"):
            pl_module.replay.sample = self._give
        else:
            pl_module.__dict__["play"] = self._give

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *args: Any) -> None:
        found = [each.grad.reshape(-1) for each in pl_module.parameters() if each.grad is not None]
        self.gradient = torch.cat(found).double()

    def _give(self, *args: Any) -> TensorDictBase:
        return self.rows.clone()


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def __enter__(self) -> list[str]:
        logging.getLogger("lightning.pytorch.utilities.rank_zero").addHandler(self)
        return self.lines

    def __exit__(self, *args: object) -> None:
        logging.getLogger("lightning.pytorch.utilities.rank_zero").removeHandler(self)
