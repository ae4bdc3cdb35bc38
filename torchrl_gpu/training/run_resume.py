"""Checkpoint that a run goes on from, and which options have changed since."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, cast

from lightning.pytorch import Trainer
from torch import Tensor

from torchrl_gpu.checkpoints.files import Manifest, read_entry, read_part
from torchrl_gpu.checkpoints.loops import go_on
from torchrl_gpu.checkpoints.record import Change, resumed_changes, saved_config
from torchrl_gpu.system.arguments import shown

Changes = Mapping[str, Change]
"""Options by name, each with its value in the checkpoint and now."""


@dataclass(frozen=True)
class Resumed:
    """A checkpoint from which a run goes on.

    Attributes:
        path: Its file.
        content: What Lightning has read of it.
        entry: What the file says of the files beside it; None where there are none.
        saved_by: Number of processes that saved it.
        changed: Options that differ from those of the checkpoint.
    """

    path: Path
    content: Mapping[str, object]
    entry: Manifest | None
    saved_by: int
    changed: Changes

    @property
    def where(self) -> str:
        """Name of the checkpoint in messages."""
        return f"checkpoint {self.path}"

    def part(self, rank: int) -> Mapping[str, object] | None:
        """What a process saved in a file of its own, if it did.

        Raises:
            ValueError: The file belongs to another checkpoint, or is not as it was written.
        """
        return None if self.entry is None else read_part(self.path, self.entry, rank)


class RunResume:
    """The checkpoint of a run, from its loading until the run has taken it.

    Attributes:
        checkpoint: Its content, until `take` has given it; None for none.
        changed: Options that differ from those of the checkpoint that was taken.
    """

    def __init__(self) -> None:
        self.checkpoint: Mapping[str, object] | None = None
        self.changed: Changes = {}

    def take(self, trainer: Trainer, run_config: Mapping[str, object] | None) -> Resumed | None:
        """Give the checkpoint, once.

        None where the run begins anew, or has taken it already.
        """
        # Given once: it holds all weights and states, which would stay in memory for the whole run.
        checkpoint = self.checkpoint
        self.checkpoint = None
        if checkpoint is None or trainer.ckpt_path is None:
            return None
        go_on(trainer)
        path = Path(str(trainer.ckpt_path))
        entry = read_entry(checkpoint, f"checkpoint {path}")
        # Another callback's checkpoint does not say. Lightning restores it on as many processes as there are.
        saved_by = trainer.world_size if entry is None else entry["world_size"]
        self.changed = resumed_changes(saved_config(checkpoint), run_config)
        return Resumed(path, checkpoint, entry, saved_by, self.changed)


class ProcessState(NamedTuple):
    """State of a process, as far as every run saves it.

    Attributes:
        rollout: As `Rollout.load_state_dict` checks it.
        meter: As `EpisodeMeter.load_state_dict` checks it.
        random: States of torch's generators, which `set_random_state` checks.
    """

    rollout: object
    meter: Mapping[str, object]
    random: dict[str, Tensor]


def check_process_state(state: Mapping[str, object], where: str) -> ProcessState:
    """Return the state of a process, or raise ValueError where a part is missing."""
    found: dict[str, Mapping[str, object]] = {}
    for name in ("meter", "random"):
        value = state.get(name)
        if not isinstance(value, Mapping):
            raise ValueError(f"{where}: {name} must be a mapping, not {shown(value)}")
        found[name] = value
    return ProcessState(state["rollout"], found["meter"], cast("dict[str, Tensor]", found["random"]))
