"""Worker processes that step environments, for those that keep a CPU busy."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast, get_args

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn

from torchrl_gpu.callbacks.closing import ClosingCallback
from torchrl_gpu.envs.workers.pool import Transport, WorkerPool
from torchrl_gpu.system import arguments
from torchrl_gpu.system.sections import section
from torchrl_gpu.training.collect.rollout import Rollout

if TYPE_CHECKING:
    from torchrl_gpu.training.run import EnvRun


class EnvWorkers(ClosingCallback):
    """Steps the environment of a run in worker processes.

    Each worker steps some of its rows, to the same bits as one process. This is for environments whose step keeps a CPU
    busy, such as a physics engine or a camera that draws on the host; the policy acts, and updates are made, in the
    run's own process. A worker that dies is named in a warning and replaced by one that plays the steps of the rollout
    again. Checkpoints are the same with any number of workers.

    Args:
        num_workers: How many, with as alike numbers of environments as can be.
        transport: "processes" of this machine, or "ray": actors of the cluster that `RAY_ADDRESS` names, or of one on
            this machine; wants the extra `ray`.
        threads: Threads of torch in each worker.
    """

    steps_environments = True
    """Steps leave the device and the process, so that no CUDA graph can hold them."""

    def __init__(self, num_workers: int = 2, transport: str = "processes", threads: int = 1) -> None:
        where = type(self).__name__
        self.num_workers = arguments.whole(where, "num_workers", num_workers, 1, 4096)
        self.transport = arguments.choice(where, "transport", transport, get_args(Transport))
        self.threads = arguments.whole(where, "threads", threads, 1, 4096)
        self.pool: WorkerPool | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit" and not getattr(pl_module, "plays_in_rollout", True):
            name = type(pl_module).__name__
            raise ValueError(
                f"{type(self).__name__}: {name} steps its environment in one process. Use a module that plays by a"
                " rollout, such as OffPolicy, or leave this callback out"
            )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        rollout = self._rollout(pl_module)
        env = rollout.env
        where = type(self).__name__
        if env.device.type != "cpu":
            rank_zero_warn(
                f"{where}: the environment is on {env.device}, where one process steps all of it without a copy;"
                " workers step it on the CPU, and each step is copied there and back. Without this callback the single"
                " process steps it on the device"
            )
        with section("workers"):
            self.pool = WorkerPool(env, self.num_workers, self.transport, self.threads)  # type: ignore[arg-type]
        rollout.workers = self.pool

    def _rollout(self, module: LightningModule) -> Rollout:
        where = type(self).__name__
        # Modules of the user's own may play in another way.
        rollout = getattr(module, "rollout", None)
        if not isinstance(rollout, Rollout):
            name = type(module).__name__
            raise ValueError(f"{where}: {name} plays in no environment. Leave this callback out")
        if rollout.env.num_envs < self.num_workers:
            most = rollout.env.num_envs
            raise ValueError(f"{where}: num_workers must be at most the {most} environments; got {self.num_workers}")
        return rollout

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.close(trainer, pl_module)

    def close(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.pool is not None:
            with section("workers"):
                self.pool.close()
            cast("EnvRun", pl_module).rollout.workers = None
            self.pool = None
