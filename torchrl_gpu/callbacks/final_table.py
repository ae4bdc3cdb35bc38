"""The evaluation table at the end of a run."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from torchrl_gpu.callbacks.progress import RunProgress
from torchrl_gpu.system import arguments
from torchrl_gpu.training.data.episodes import suite_of


class FinalTable(Callback):
    """Prints and writes the table of `test` when `fit` ends normally: policy and baselines on the same episodes.

    The first process does it, after the last checkpoint is saved; `trainer.fast_dev_run` leaves it out.

    Args:
        num_episodes: Of the test episodes, see `Episodes.suite`; None stands for all.
    """

    def __init__(self, num_episodes: int | None = None) -> None:
        self.num_episodes = arguments.optional(arguments.whole, "FinalTable", "num_episodes", num_episodes, 1)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit" and not (hasattr(pl_module, "compare")):
            came = type(pl_module).__name__
            raise ValueError(f"FinalTable: want a module with `compare`, such as HierarchicalPacking; got {came}")

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Evaluates. Lightning has moved the module to the CPU by now, but not its environment."""
        if not trainer.is_global_zero or trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        bar, module = trainer.progress_bar_callback, pl_module
        if bar is not None:
            bar.teardown(trainer, pl_module, "fit")  # it would draw over the table
        suite: Any = suite_of(pl_module, "test", self.num_episodes)
        module.to(suite.env.device).eval()
        shown = bar.evaluating(suite) if isinstance(bar, RunProgress) else nullcontext()
        with trainer.precision_plugin.forward_context(), shown:
            module.compare(suite)  # type: ignore[operator]
        module.cpu()
