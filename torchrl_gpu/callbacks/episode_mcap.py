"""Episodes of a validation as MCAP files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, cast

from lightning.pytorch import Callback, LightningModule, Trainer

from torchrl_gpu.callbacks.logger_guard import outlives
from torchrl_gpu.demonstrations import CHOICES
from torchrl_gpu.envs.viewable import viewable
from torchrl_gpu.evaluation.recording import ranks_by, record_episodes
from torchrl_gpu.evaluation.suite import Suite
from torchrl_gpu.streaming.codecs.extras import load
from torchrl_gpu.system import arguments

if TYPE_CHECKING:
    from torchrl_gpu.training.run import EnvRun

_WHERE = "EpisodeMcap"


class RecordingOptions(TypedDict):
    """Options of `record_episodes`, as the arguments of `EpisodeMcap` describe them."""

    choose: str
    most: int
    by: str | None
    below: float | None
    size: tuple[int, ...]
    fps: float


class EpisodeMcap(Callback):
    """Writes some episodes of each validation as MCAP files.

    They are `FOLDER/step-STEP/episode-NUMBER.mcap`. They are the validation's own, played again for it by the first
    process, and change nothing of what is learned. See `torchrl_gpu.evaluation.recording.record_episodes`.

    Args:
        folder: Where to; None for `recordings` in the Trainer's `default_root_dir`.
        choose: "worst", "best", "failures" or "all".
        most: Files of a validation at most, but of "all".
        by: What ranks episodes: an outcome of the environment, or "return"; None for its first outcome.
        below: Less than this is a failure; needed where the outcome is no flag.
        size: Height and width of the pictures.
        fps: Steps per second.
    """

    def __init__(
        self,
        folder: str | None = None,
        choose: str = "worst",
        most: int = 3,
        *,
        by: str | None = None,
        below: float | None = None,
        size: Sequence[int] = (480, 640),
        fps: float = 10.0,
    ) -> None:
        self.folder = None if folder is None else Path(folder)
        pixels = arguments.listed(_WHERE, "size", "height and width", size)
        if len(pixels) != 2:
            arguments.refuse(_WHERE, "size", "height and width", size)
        arguments.choice(_WHERE, "choose", choose, CHOICES)
        arguments.whole(_WHERE, "most", most, 1)
        arguments.optional(arguments.number, _WHERE, "below", below)
        shape = tuple(arguments.whole(_WHERE, "size", side, 16, 4096) for side in pixels)
        arguments.number(_WHERE, "fps", fps, 0.1, 1000)
        self.options: RecordingOptions = {
            "choose": choose,
            "most": most,
            "by": by,
            "below": below,
            "size": shape,
            "fps": fps,
        }
        if choose != "failures":
            arguments.check_effect(_WHERE, "choose failures", below=(below, None))
        if choose == "all":
            arguments.check_effect(_WHERE, "choose worst, best or failures", most=(most, 3), by=(by, None))

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        load("mcap_protobuf", "mcap", _WHERE)
        module = cast("EnvRun", pl_module)
        viewable(module.env)
        options = self.options
        # Options that rank nothing here are an error now, and not at the first validation.
        ranks_by(module.env, options["choose"], options["by"], options["below"])

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: object, batch: object, *args: object
    ) -> None:
        # Other batches are rows of demonstrations.
        if trainer.sanity_checking or not isinstance(batch, Suite) or not trainer.is_global_zero:
            return
        module = cast("EnvRun", pl_module)
        folder = self.folder or Path(trainer.default_root_dir) / "recordings"
        folder = folder / f"step-{trainer.global_step:09d}"
        facts = {"policy": module.policy_name, "step": trainer.global_step}
        # The episodes are played once more: the validation plays hundreds side by side, and to keep pictures of all
        # until it is known which are the worst would fill the memory.
        policy = module.policy_for(batch.env)
        with outlives("EpisodeMcap"):
            record_episodes(batch, policy, folder, batch.num_episodes, facts=facts, **self.options)
