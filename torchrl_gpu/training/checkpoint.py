"""Checkpoints, looked at before they are trusted: what is wrong is said in one line."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.pytorch.trainer.connectors.checkpoint_connector import _CheckpointConnector
from packaging.version import InvalidVersion, Version
from torch import Tensor

from torchrl_gpu.archives import ENTRY, read_archive
from torchrl_gpu.policies.packing.packed_tables import unpack_tables
from torchrl_gpu.policies.weights import is_dense, without_settings
from torchrl_gpu.training.checkpoint_files import order_of
from torchrl_gpu.training.resumed_options import changed_options, told

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

_OLDEST = Version("2.0")  # of Lightning


def check_checkpoint(path: str | Path, module: nn.Module | None = None) -> None:
    """Returns if a checkpoint can be loaded, into `module` if one is given; tensors stay on disk.

    Args:
        path: File that `Trainer.save_checkpoint` wrote.
        module: The module that is to take the weights; its `strict_loading`, if False, allows other keys.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is truncated, no checkpoint, holds code, is of another run, or holds weights that are not finite.
    """
    where = f"checkpoint {path}"
    content = read_archive(Path(path), "checkpoint", every_byte=True)
    state = content.get("state_dict")
    if not isinstance(state, Mapping):
        kind = "weights alone (model_state_dict)" if "model_state_dict" in content else "no state_dict in it"
        raise ValueError(f"{where}: want a checkpoint of a training run; got {kind}")
    if "pytorch-lightning_version" in content:
        _check_version(where, content["pytorch-lightning_version"])
    order_of(content, where)
    if module is not None:
        _compare(where, unpack_tables(where, module, state), module, content.get(ENTRY))


def _check_version(where: str, version: Any) -> None:
    try:
        known = isinstance(version, str) and Version(version) >= _OLDEST
    except InvalidVersion:
        known = False
    if not known:
        raise ValueError(f"{where}: want pytorch-lightning_version {_OLDEST} or later; got {str(version)[:80]!r}")


def _compare(where: str, state: Mapping[str, Any], module: nn.Module, record: Any) -> None:
    wanted, state = module.state_dict(), without_settings(state, module)
    strict = getattr(module, "strict_loading", True)
    missing = [key for key in wanted if key not in state]
    unexpected = [key for key in state if key not in wanted]
    shapes = [(key, _shape(each), _shape(state.get(key, each))) for key, each in wanted.items()]
    others = [each for each in shapes if each[1] != each[2]]
    if not (strict and (missing or unexpected)) and not others:
        broken = [key for key, each in wanted.items() if key in state and not _is_finite(state[key])]
        if broken:
            raise ValueError(f"{where}: want finite weights; got NaN or infinity in {_named(broken)}")
        return
    _check_run(where, module, record)
    wants = f"{where}: want the weights of this {type(module).__name__}"
    if strict and missing:
        raise ValueError(f"{wants}; got none for {_named(missing)}")
    if strict and unexpected:
        raise ValueError(f"{wants}; got others too, {_named(unexpected)}")
    key, shape, found = others[0]
    raise ValueError(f"{wants}, {key} of shape {shape}; got shape {found}")


def _check_run(where: str, module: Any, record: Any) -> None:
    """Says of a checkpoint whose weights do not fit of which run it is, as far as it tells."""
    if not isinstance(record, Mapping):
        return
    saved, now = record.get("config"), getattr(module, "run_config", None)
    came, wanted = _described(saved, record.get("module")), _described(now, type(module).__name__)
    if came != wanted:
        raise ValueError(f"{where}: want one of a run like this, {wanted}; got one of {came}")
    free = (".device", ".num_envs", ".seed")
    if changed := {name: pair for name, pair in changed_options(saved, now).items() if not name.endswith(free)}:
        raise ValueError(
            f"{where}: want one of a run with these options, {wanted}; got one with others: {told(changed)}"
        )


def _described(config: Any, module: Any) -> str:
    """A run by the class names of its module, of what learns and of its environment."""
    model = config.get("model") if isinstance(config, Mapping) else None
    given = model.get("init_args") if isinstance(model, Mapping) else None
    given = given if isinstance(given, Mapping) else {}
    path = model.get("class_path") if isinstance(model, Mapping) else module
    learners = [_class(given.get(name)) for name in ("agent", "tables", "values", "networks", "policy", "network")]
    learner = next(filter(None, learners), None)
    parts = [learner and f"of {learner}", (env := _class(given.get("env"))) and f"in {env}"]
    name = str(path).rpartition(".")[2][:80]
    return " ".join([name, *filter(None, parts)])


def _class(given: Any) -> str | None:
    path = given.get("class_path") if isinstance(given, Mapping) else None
    return str(path).rpartition(".")[2][:80] if isinstance(path, str) else None


def _shape(value: Any) -> tuple[int, ...] | None:
    return tuple(value.shape) if hasattr(value, "shape") else None


def _is_finite(value: Any) -> bool:
    return not is_dense(value) or bool(value.isfinite().all())


def _named(keys: list[str]) -> str:
    return keys[0] if len(keys) == 1 else f"{keys[0]} and {len(keys) - 1} more"


class CheckedRestore(_CheckpointConnector):
    """Lightning's reader of checkpoints, whose complaints of a malformed one are one line."""

    def _restore_modules_and_callbacks(self, *args: Any, **kwargs: Any) -> None:
        with self._in_one_line():
            super()._restore_modules_and_callbacks(*args, **kwargs)

    def restore_training_state(self) -> None:
        """Loops, optimizers and schedules, of the kinds that this run has."""
        with self._in_one_line():
            self._check_loops()
            before = self._settings()
            super().restore_training_state()
            for name, settings in self._settings().items():
                check_like(name, before[name], settings, exact=False)
            for optimizer in self.trainer.optimizers:
                _check_state(optimizer)

    def _check_loops(self) -> None:
        loops = self._loaded_checkpoint.get("loops")
        if loops is not None:
            check_like("loops", self._get_loops_state_dict(), loops, exact=True)
            states = loops["fit_loop"]["state_dict"].get("combined_loader", [])
            if not isinstance(states, list) or not all(isinstance(each, dict) for each in states):
                raise ValueError(f"loops: want a list of the states of loaders; got {str(states)[:80]}")

    def _settings(self) -> dict[str, Any]:
        """Settings of optimizers and schedules, which torch takes as they are."""
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
            if isinstance(error, ValueError) and "; got" in text:
                raise
            said = f"{type(error).__name__}: {text}"[:240]
            where = f"checkpoint {self._ckpt_path}"
            raise ValueError(f"{where}: want one that Lightning can go on from; got what fails with {said}") from error


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
    """Returns if plain values are of the kinds of a template.

    Args:
        where: Names them in the error.
        template: Such values as they should be.
        given: Those of a file.
        exact: Whether they are counts and flags under the same names; else numbers must be numbers, where they are.

    Raises:
        ValueError: They are not.
    """
    if isinstance(template, dict):
        counts = bool(template) and all(type(value) is int for value in template.values())
        known = isinstance(given, dict) and (
            not (exact or where.startswith("optimizer")) or set(template) <= set(given)
        )
        if not known or (exact and counts and set(template) != set(given)):
            raise ValueError(
                f"{where}: want {', '.join(map(str, template)) or 'values by name'}; got {str(given)[:80]}"
            )
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
