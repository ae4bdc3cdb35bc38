"""Resuming: opens a checkpoint once, compares it with the run and restores it; what is wrong is one line."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.pytorch import Trainer
from lightning.pytorch.trainer.connectors.checkpoint_connector import _CheckpointConnector
from lightning.pytorch.utilities.migration.utils import _pl_migrate_checkpoint
from packaging.version import InvalidVersion, Version
from torch import Tensor

from torchrl_gpu.checkpoints.files import order_of
from torchrl_gpu.checkpoints.record import changed_options, in_words
from torchrl_gpu.policies.weights import check_weights, unpacked_state
from torchrl_gpu.system.archives import ENTRY, read_archive

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

_OLDEST = Version("2.0")  # of Lightning


def open_checkpoint(path: str | Path) -> dict[str, Any]:
    """Content of a checkpoint, with every byte compared with its checksums; ValueError for anything else."""
    where = f"checkpoint {path}"
    content = read_archive(Path(path), "checkpoint", every_byte=True, mapped=False)
    if not isinstance(content.get("state_dict"), Mapping):
        kind = "weights alone (model_state_dict)" if "model_state_dict" in content else "no state_dict in it"
        raise ValueError(f"{where}: want a checkpoint of a training run; got {kind}")
    if "pytorch-lightning_version" in content:
        version = content["pytorch-lightning_version"]
        try:
            known = isinstance(version, str) and Version(version) >= _OLDEST
        except InvalidVersion:
            known = False
        if not known:
            raise ValueError(f"{where}: want pytorch-lightning_version {_OLDEST} or later; got {str(version)[:80]!r}")
    order_of(content, where)
    return content


def check_resumed(path: str | Path, content: Mapping[str, Any], module: nn.Module) -> None:
    """Returns if a module can take the weights of a checkpoint; its `strict_loading`, if False, allows other keys.

    ValueError where they are not finite or of another run, whose other options are named.
    """
    where, strict = f"checkpoint {path}", getattr(module, "strict_loading", True)
    try:
        check_weights(where, unpacked_state(where, module, content["state_dict"]), module, strict=strict)
    except ValueError as error:
        saved = (content.get(ENTRY) or {}).get("config")
        changed = changed_options(saved, getattr(module, "run_config", None))
        others = {name: pair for name, pair in changed.items() if not name.endswith((".device", ".num_envs", ".seed"))}
        raise ValueError(f"{error}; its options were others: {in_words(others)}" if others else str(error)) from None


class CheckedRestore(_CheckpointConnector):
    """Lightning's reader of checkpoints, which opens a file once and reports a malformed one in one line."""

    _opened: tuple[str, dict[str, Any]] | None = None

    @staticmethod
    def install(trainer: Trainer, opened: tuple[str, dict[str, Any]] | None = None) -> None:
        """Takes the place of a Trainer's own reader."""
        before = trainer._checkpoint_connector
        if not isinstance(before, CheckedRestore):
            reader = trainer._checkpoint_connector = CheckedRestore(trainer)
            reader._user_managed, reader._ckpt_path, reader._opened = before._user_managed, before._ckpt_path, opened

    def resume_start(self, checkpoint_path: Any = None, weights_only: bool | None = None) -> None:
        """Reads a local file with `weights_only`, unless it has been read; leaves addresses to Lightning."""
        opened, self._opened = self._opened, None
        if checkpoint_path is None or not Path(checkpoint_path).is_file():
            super().resume_start(checkpoint_path, weights_only)
            return
        self._ckpt_path = path = str(checkpoint_path)
        content = opened[1] if opened is not None and opened[0] == path else open_checkpoint(path)
        self._loaded_checkpoint = _pl_migrate_checkpoint(content, path)

    def _restore_modules_and_callbacks(self, *args: Any, **kwargs: Any) -> None:
        with self._in_one_line():
            super()._restore_modules_and_callbacks(*args, **kwargs)

    def restore_training_state(self) -> None:
        with self._in_one_line():
            loops = self._loaded_checkpoint.get("loops")
            if loops is not None:
                check_like("loops", self._get_loops_state_dict(), loops, exact=True)
                states = loops["fit_loop"]["state_dict"].get("combined_loader", [])
                if not isinstance(states, list) or not all(isinstance(each, dict) for each in states):
                    raise ValueError(f"loops: want a list of the states of loaders; got {str(states)[:80]}")
            before = self._settings()
            super().restore_training_state()
            for name, settings in self._settings().items():
                check_like(name, before[name], settings, exact=False)
            for optimizer in self.trainer.optimizers:
                _check_state(optimizer)

    def _settings(self) -> dict[str, Any]:
        groups = [
            {name: value for name, value in group.items() if name != "params"}
            for optimizer in self.trainer.optimizers
            for group in optimizer.param_groups
        ]
        schedules = [each.scheduler.state_dict() for each in self.trainer.lr_scheduler_configs]
        return {"optimizer_states": groups, "lr_schedulers": schedules}

    @contextmanager
    def _in_one_line(self) -> Iterator[None]:
        try:
            yield
        except (OSError, MemoryError, pickle.UnpicklingError):
            raise
        except Exception as error:  # of a stranger's file: readers stumble over it in many ways
            text = " ".join(str(error).split()) or type(error).__name__
            where = f"checkpoint {self._ckpt_path}"
            # Our own messages say by themselves which file is at fault, and how.
            if isinstance(error, ValueError) and ("; got" in text or text.startswith(where)):
                raise
            reason = f"{type(error).__name__}: {text}"[:240]
            wanted = "want one that Lightning can go on from"
            raise ValueError(f"{where}: {wanted}; got what fails with {reason}") from error


def _check_state(optimizer: Optimizer) -> None:
    """ValueError unless an optimizer holds the same of each weight that it has stepped, in the weight's shape."""
    held = [(weight, state) for weight, state in optimizer.state.items() if state]
    kinds = {name: type(value) for _, state in held[:1] for name, value in state.items()}
    for weight, state in held:
        if {name: type(value) for name, value in state.items()} != kinds:
            raise ValueError(f"optimizer_states: want {', '.join(map(str, kinds))} of each weight; got others")
        for name, value in state.items():
            shapes = ((), weight.shape)
            fits = value.shape in shapes if isinstance(value, Tensor) else not isinstance(value, str | list | dict)
            if not fits or (name == "step" and value < 0):
                raise ValueError(f"optimizer_states: want {name} of shape {tuple(weight.shape)}; got {str(value)[:80]}")


def check_like(where: str, template: Any, given: Any, *, exact: bool) -> None:
    """ValueError unless plain values of a file have the structure of a template.

    With `exact` they are counts and flags under the same names; else numbers must be numbers, where they are.
    """
    if isinstance(template, dict):
        counts = bool(template) and all(type(value) is int for value in template.values())
        known = isinstance(given, dict) and (
            not (exact or where.startswith("optimizer")) or set(template) <= set(given)
        )
        if not known or (exact and counts and set(template) != set(given)):
            wanted = ", ".join(map(str, template)) or "values by name"
            raise ValueError(f"{where}: want {wanted}; got {str(given)[:80]}")
        for name in template.keys() & given.keys():
            check_like(f"{where}.{name}", template[name], given[name], exact=exact)
    elif isinstance(template, list | tuple):
        if not isinstance(given, list | tuple):
            raise ValueError(f"{where}: want a list; got {str(given)[:80]}")
        for number, (value, found) in enumerate(zip(template, given, strict=False)):
            check_like(f"{where}.{number}", value, found, exact=exact)
    elif isinstance(template, bool):
        if not isinstance(given, bool):
            raise ValueError(f"{where}: want true or false; got {str(given)[:80]}")
    elif isinstance(template, int | float):
        count = type(given) is int and given >= 0
        number = isinstance(given, Tensor) or (isinstance(given, int | float) and not isinstance(given, bool))
        if not (count if exact else number):
            raise ValueError(f"{where}: want a {'count' if exact else 'number'}; got {str(given)[:80]}")
