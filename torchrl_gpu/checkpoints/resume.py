"""Resuming from a checkpoint, which is opened once and compared with the run.

What is wrong with a file becomes an error of one line.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lightning.pytorch import Trainer
from lightning.pytorch.trainer.connectors.checkpoint_connector import _CheckpointConnector
from lightning.pytorch.utilities.migration.utils import _pl_migrate_checkpoint
from packaging.version import InvalidVersion, Version
from torch import Tensor

from torchrl_gpu.checkpoints.files import order_of
from torchrl_gpu.checkpoints.record import changed_options, in_words, saved_config
from torchrl_gpu.policies.weights import check_weights, unpacked_state
from torchrl_gpu.system.archives import read_archive

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

# The oldest Lightning whose checkpoints are read.
_OLDEST = Version("2.0")


def open_checkpoint(path: str | Path) -> dict[str, object]:
    """Read a checkpoint and compare every byte with its checksums.

    ValueError for anything that is no checkpoint of a run.
    """
    where = f"checkpoint {path}"
    content = read_archive(Path(path), "checkpoint", every_byte=True, mapped=False)
    if not isinstance(content.get("state_dict"), Mapping):
        kind = "holds weights alone (model_state_dict)" if "model_state_dict" in content else "has no state_dict"
        raise ValueError(f"{where} {kind}: no run can go on from it. Name a checkpoint that a training run saved")
    if "pytorch-lightning_version" in content:
        version = content["pytorch-lightning_version"]
        try:
            known = isinstance(version, str) and Version(version) >= _OLDEST
        except InvalidVersion:
            known = False
        if not known:
            raise ValueError(
                f"{where}: pytorch-lightning_version is {str(version)[:80]!r}; it must be {_OLDEST} or later. Load the"
                " file with the Lightning that saved it and save it again"
            )
    order_of(content, where)
    return content


def check_resumed(path: str | Path, content: Mapping[str, object], module: nn.Module) -> None:
    """Check that a module can take the weights of a checkpoint.

    The `strict_loading` of the module, if False, allows other keys. ValueError where weights are not finite or belong
    to another run, whose other options are named.
    """
    where = f"checkpoint {path}"
    strict = getattr(module, "strict_loading", True)
    try:
        state = content["state_dict"]
        assert isinstance(state, Mapping), "`open_checkpoint` looks at that"
        weights = unpacked_state(where, module, state)
        check_weights(where, weights, module, strict=strict)
    except ValueError as error:
        changed = changed_options(saved_config(content), getattr(module, "run_config", None))
        others = {name: pair for name, pair in changed.items() if not name.endswith((".device", ".num_envs", ".seed"))}
        if not others:
            raise
        raise ValueError(f"{error}; its options were others: {in_words(others)}") from None


# Lightning reads a checkpoint in the middle of `fit`, after everything has been built, and fails over a strange file
# with whatever its readers raise. It has no hook before that, so that its own reader is replaced by this one.
class CheckedRestore(_CheckpointConnector):
    """Lightning's reader of checkpoints, with one line for a malformed file.

    It opens a file once, even where the command line has read it before.
    """

    _opened: tuple[str, dict[str, object]] | None = None

    @staticmethod
    def install(trainer: Trainer, opened: tuple[str, dict[str, object]] | None = None) -> None:
        """Replace the reader of a Trainer."""
        before = trainer._checkpoint_connector
        if not isinstance(before, CheckedRestore):
            reader = CheckedRestore(trainer)
            reader._user_managed = before._user_managed
            reader._ckpt_path = before._ckpt_path
            reader._opened = opened
            trainer._checkpoint_connector = reader

    def resume_start(self, checkpoint_path: str | Path | None = None, weights_only: bool | None = None) -> None:
        """Read a local file with `weights_only`, unless it has been read.

        Addresses are left to Lightning.
        """
        opened = self._opened
        self._opened = None
        if checkpoint_path is None or not Path(checkpoint_path).is_file():
            super().resume_start(checkpoint_path, weights_only)
            return
        path = str(checkpoint_path)
        self._ckpt_path = path
        if opened is not None and opened[0] == path:
            content = opened[1]
        else:
            content = open_checkpoint(path)
        self._loaded_checkpoint = _pl_migrate_checkpoint(content, path)

    def _restore_modules_and_callbacks(
        self, checkpoint_path: str | Path | None = None, weights_only: bool | None = None
    ) -> None:
        with self._in_one_line():
            super()._restore_modules_and_callbacks(checkpoint_path, weights_only)

    def restore_training_state(self) -> None:
        with self._in_one_line():
            loops = self._loaded_checkpoint.get("loops")
            if loops is not None:
                check_like("loops", self._get_loops_state_dict(), loops, exact=True)
                states = loops["fit_loop"]["state_dict"].get("combined_loader", [])
                if not isinstance(states, list) or not all(isinstance(each, dict) for each in states):
                    raise ValueError(
                        f"loops: combined_loader must be a list of states of loaders, not {str(states)[:80]}"
                    )
            before = self._settings()
            super().restore_training_state()
            for name, settings in self._settings().items():
                check_like(name, before[name], settings, exact=False)
            for optimizer in self.trainer.optimizers:
                _check_state(optimizer)

    def _settings(self) -> dict[str, object]:
        groups: list[dict[str, object]] = []
        for optimizer in self.trainer.optimizers:
            groups += map(_without_params, optimizer.param_groups)
        schedules = [each.scheduler.state_dict() for each in self.trainer.lr_scheduler_configs]
        return {"optimizer_states": groups, "lr_schedulers": schedules}

    @contextmanager
    def _in_one_line(self) -> Iterator[None]:
        try:
            yield
        except (OSError, MemoryError, pickle.UnpicklingError):
            raise
        except Exception as error:
            # The file may come from a stranger, and readers stumble over such files in many ways. A ValueError says
            # what is wrong with a value, and lacks at most the place.
            text = " ".join(str(error).split()) or type(error).__name__
            where = f"checkpoint {self._ckpt_path}"
            if isinstance(error, ValueError):
                if str(self._ckpt_path) in text:
                    raise
                raise ValueError(f"{where}: {text}") from error
            reason = f"{type(error).__name__}: {text}"[:240]
            raise ValueError(
                f"{where}: Lightning cannot go on from it ({reason}). Take another checkpoint, or begin anew with"
                " --model.warm_start"
            ) from error


def _without_params(group: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in group.items() if name != "params"}


def _check_state(optimizer: Optimizer) -> None:
    """Check what an optimizer holds of each weight that it has stepped.

    It must be the same values for all weights, in the shape of the weight.
    """
    held = [(weight, state) for weight, state in optimizer.state.items() if state]
    kinds = _kinds_of(held[0][1]) if held else {}
    for weight, state in held:
        if _kinds_of(state) != kinds:
            wanted = ", ".join(map(str, kinds))
            raise ValueError(
                f"optimizer_states: one weight has {', '.join(map(str, state))}, where another has {wanted}. Take"
                " another checkpoint"
            )
        for name, value in state.items():
            if isinstance(value, Tensor):
                fits = value.shape in ((), weight.shape)
            else:
                fits = not isinstance(value, str | list | dict)
            if not fits or (name == "step" and value < 0):
                raise ValueError(
                    f"optimizer_states: {name} must have shape {tuple(weight.shape)}, not {str(value)[:80]}. Take"
                    " another checkpoint"
                )


def _kinds_of(state: Mapping[str, object]) -> dict[str, type]:
    return {name: type(value) for name, value in state.items()}


def check_like(where: str, template: object, given: object, *, exact: bool) -> None:
    """Check that plain values of a file have the structure of a template.

    With `exact` they must be counts and flags under the same names. Without it numbers must be numbers, where there are
    any. ValueError otherwise.
    """
    if isinstance(template, dict):
        values = _check_names(where, template, given, exact=exact)
        for name in template.keys() & values.keys():
            check_like(f"{where}.{name}", template[name], values[name], exact=exact)
    elif isinstance(template, list | tuple):
        if not isinstance(given, list | tuple):
            raise ValueError(f"{where} must be a list, not {str(given)[:80]}")
        for number, (value, found) in enumerate(zip(template, given, strict=False)):
            check_like(f"{where}.{number}", value, found, exact=exact)
    elif isinstance(template, bool):
        if not isinstance(given, bool):
            raise ValueError(f"{where} must be true or false, not {str(given)[:80]}")
    elif isinstance(template, int | float):
        is_count = type(given) is int and given >= 0
        is_number = isinstance(given, Tensor) or (isinstance(given, int | float) and not isinstance(given, bool))
        if exact and not is_count:
            raise ValueError(f"{where} must be a count, not {str(given)[:80]}")
        if not exact and not is_number:
            raise ValueError(f"{where} must be a number, not {str(given)[:80]}")


def _check_names(where: str, template: Mapping[str, object], given: object, *, exact: bool) -> dict[str, object]:
    """Check that values of a file have the names of a template, and return them.

    Counts of loops must have the same names exactly. Settings of an optimizer may have more, and others anything.
    """
    if isinstance(given, dict):
        are_counts = bool(template) and all(type(value) is int for value in template.values())
        if exact and are_counts:
            fits = set(template) == set(given)
        elif exact or where.startswith("optimizer"):
            fits = set(template) <= set(given)
        else:
            fits = True
        if fits:
            return given
    wanted = ", ".join(map(str, template)) or "values by name"
    raise ValueError(f"{where} must hold {wanted}, not {str(given)[:80]}")
