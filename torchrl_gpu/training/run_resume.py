"""Resume of a run from a checkpoint: environment, episodes, random numbers and replay of each process."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.pytorch.utilities import rank_zero_info

from torchrl_gpu.checkpoints.files import read_entry, read_part
from torchrl_gpu.checkpoints.loops import go_on
from torchrl_gpu.checkpoints.record import check_fixed, describe_changes, in_words, resumed_changes
from torchrl_gpu.policies.generators import set_random_state
from torchrl_gpu.system.archives import ENTRY
from torchrl_gpu.system.arguments import shown, whole

if TYPE_CHECKING:
    from torchrl_gpu.training.run import EnvRun

_LOG = logging.getLogger(__name__)


class RunResume:
    """The checkpoint that a run goes on from, from the moment Lightning has loaded it.

    Attributes:
        checkpoint: Its content, until `restore` has used it; None for none.
        changed: Options that differ from those of the checkpoint, as `changed_options` gives them.
    """

    def __init__(self, run: EnvRun) -> None:
        self._run = run
        self.checkpoint: Mapping[str, Any] | None = None
        self.changed: Mapping[str, tuple[Any, Any]] = {}

    def restore(self) -> None:
        """Restores the state of this process, if the run goes on from a checkpoint, and logs changed options.

        Raises:
            ValueError: A part of the checkpoint belongs to another one, or is not as it was written.
        """
        checkpoint, self.checkpoint = self.checkpoint, None
        run = self._run
        trainer = run.trainer
        if checkpoint is None or trainer.ckpt_path is None:
            return
        go_on(trainer)
        path = Path(str(trainer.ckpt_path))
        entry = read_entry(checkpoint, f"checkpoint {path}")
        saved_by = trainer.world_size if entry is None else entry["world_size"]
        if saved_by != trainer.world_size:
            rank_zero_info(
                f"{type(run).__name__}: saved by {saved_by} and going on on {trainer.world_size} processes:"
                f" {run.begins_anew(saved_by, trainer.world_size)}, and an update learns from"
                f" {trainer.world_size / saved_by:g} times the rows"
            )
        self.changed = resumed_changes((checkpoint.get(ENTRY) or {}).get("config"), run.run_config)
        if "rollout" in checkpoint:
            self._restore_play(checkpoint, entry, path, saved_by)
        for line in describe_changes(self.changed, run.kept_options):
            rank_zero_info(f"{type(run).__name__}: {path} {line}")

    def _restore_play(
        self, checkpoint: Mapping[str, Any], entry: Mapping[str, Any] | None, path: Path, saved_by: int
    ) -> None:
        """Restores environments, random numbers and replay; ValueError where they are not those of this run."""
        run, rank = self._run, self._run.global_rank
        check_fixed(self.changed, f"checkpoint {path}")
        part = None if entry is None else read_part(path, entry, rank)
        run.restore_part(part, path)
        state = checkpoint if rank == 0 else part
        if state is not None and "rollout" in state:
            self._restore_process(state, f"checkpoint {path}")
        elif saved_by == run.trainer.world_size:  # else it is said of all of them
            _LOG.warning("%s: %s holds no state of this process: its environments begin anew", self.process, path)

    @property
    def process(self) -> str:
        """Name of this process in messages."""
        name, rank = type(self._run).__name__, self._run.global_rank
        return f"{name}, process {rank}" if rank else name

    def _restore_process(self, state: Mapping[str, Any], where: str) -> None:
        run = self._run
        for name in ("meter", "random"):
            if not isinstance(state.get(name), Mapping):
                raise ValueError(f"{where}: want a mapping named {name}; got {shown(state.get(name))}")
        run.frames = whole(where, "frames", state.get("frames"), 0, 2**62)
        try:
            run.rollout.load_state_dict(state["rollout"])
            run.meter.load_state_dict(state["meter"])
        except ValueError as error:
            others = {name: pair for name, pair in self.changed.items() if name.startswith("model.env.")}
            more = f"; its environment had other options: {in_words(others)}" if others else ""
            raise ValueError(f"{where}: {error}{more}") from error
        set_random_state(state["random"], run.env.device)
        saved, now = "cuda" if "cuda" in state["random"] else "cpu", run.env.device.type
        if saved != now:
            rank_zero_info(
                f"{self.process}: {where} was saved on {saved} and goes on on {now}: what is drawn at random there"
                " begins anew, all else goes on"
            )
