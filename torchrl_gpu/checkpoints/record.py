"""The record of a run in its checkpoints, as plain data: configuration, versions, commit; and what differs from it."""

from __future__ import annotations

import hashlib
import json
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from torchrl_gpu.system.archives import ENTRY
from torchrl_gpu.system.machine import commit, version

_PACKAGES = ("torchrl_gpu", "torch", "torchrl", "tensordict", "lightning", "numpy")
_SECRET = re.compile(r"(.*_)?(token|password|secret|api_key)", re.IGNORECASE)
_ABSENT = "nothing"
_RESUMED = ("model.", "data.", "trainer.precision", "seed_everything")  # what a resume tells of
_KEPT = ("seed_everything", "model.env.seed")
_SAME_REPLAY = ("model.env.device", "model.env.num_envs", "model.env.seed")
_SAME_RESULTS = (
    *(".device", ".num_envs", ".pictures", ".batch_size", ".steps_per_epoch", ".num_val_episodes"),
    ".backend",
)


def run_record(config: Mapping[str, Any] | None, module: object = None) -> dict[str, Any]:
    """Record of a run for its checkpoints, as plain data; tokens and passwords of its configuration are left out."""
    settings = None if config is None else without_secrets(config)
    record = {"config": settings, "versions": dict(_versions()), "commit": commit()}
    return record if module is None else record | {"module": f"{type(module).__module__}.{type(module).__qualname__}"}


@cache
def _versions() -> dict[str, str | None]:
    """Versions of Python and of packages, whose metadata takes milliseconds to read."""
    return {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}}


def without_secrets(config: Any) -> Any:
    """A tree of plain values in which None stands for values named like a token or a password."""
    if isinstance(config, Mapping):
        return {str(name): None if is_secret(str(name)) else without_secrets(value) for name, value in config.items()}
    if isinstance(config, list | tuple):
        return [without_secrets(each) for each in config]
    return config if isinstance(config, str | int | float | bool | None) else str(config)


def is_secret(name: str) -> bool:
    return _SECRET.fullmatch(name) is not None


# -- options that differ ----------------------------------------------------------------------------------------------


def changed_options(saved: Any, now: Any, groups: tuple[str, ...] = ("model.",)) -> dict[str, tuple[Any, Any]]:
    """Options that differ between two configurations, by name, as they were and as they are."""
    before, after = dict(_flat(saved)), dict(_flat(now))
    if not before or not after:
        return {}
    names = [name for name in {**before, **after} if name.startswith(groups)]
    pairs = {name: (before.get(name, _ABSENT), after.get(name, _ABSENT)) for name in names}
    return {name: (old, new) for name, (old, new) in pairs.items() if old != new}


def saved_option(checkpoint: Mapping[str, Any], name: str) -> Any:
    """Option of the run that saved a checkpoint; None where that is not known."""
    record = checkpoint.get(ENTRY)
    config = record.get("config") if isinstance(record, Mapping) else None
    return dict(_flat(config)).get(name)


def resumed_changes(saved: Any, now: Any) -> dict[str, tuple[Any, Any]]:
    """Options of a run that goes on that are others than those of its checkpoint; see `changed_options`."""
    changed = changed_options(saved, now, _RESUMED)
    begun = changed.get("model.warm_start")
    if begun is not None and begun[1] in (None, _ABSENT):  # it has done its part
        del changed["model.warm_start"]
    return changed


def describe_changes(changed: Mapping[str, tuple[Any, Any]], kept: Sequence[str] = ()) -> list[str]:
    """Lines about changed options: those that take effect, and those that the checkpoint decides.

    `kept` are patterns of the latter, without the "model." that they begin with.
    """
    patterns = [*_KEPT, *(f"model.{each}" for each in kept)]

    def is_kept(name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in patterns)

    stays = {name: pair for name, pair in changed.items() if is_kept(name)}
    others = {name: pair for name, pair in changed.items() if name not in stays}
    lines = [f"goes on with other options: {in_words(others)}"] if others else []
    if stays:
        lines.append(
            f"keeps what the checkpoint holds, so that these options change nothing: {in_words(stays)}; to change them"
            " begin anew, with --model.warm_start where the model has it"
        )
    return lines


def check_fixed(changed: Mapping[str, tuple[Any, Any]], where: str) -> None:
    """ValueError for a number of environments that is not that of the environments in a checkpoint."""
    name = "model.env.num_envs"
    if name in changed:
        before, now = changed[name]
        raise ValueError(f"{where}: {name} must be {before}, as its environments go on where they were; got {now}")


def check_replay_options(changed: Mapping[str, tuple[Any, Any]], where: str) -> None:
    """Refuses options that change the meaning of the transitions in a replay."""
    bad = {name: pair for name, pair in changed.items() if name.startswith("model.env") and name not in _SAME_REPLAY}
    if bad:
        raise ValueError(
            f"{where}: want the environment that its replay was played in; got {in_words(bad)}. Delete the"
            " .rank0.pt beside it and name the file in --ckpt_path, so that replay is filled again, or begin anew with"
            " --model.warm_start"
        )


def in_words(changed: Mapping[str, tuple[Any, Any]]) -> str:
    lines = [f"{name} {_short(old)} → {_short(new)}" for name, (old, new) in changed.items()]
    return ", ".join(lines[:8]) + (f" and {len(lines) - 8} more" if len(lines) > 8 else "")


def _flat(config: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves by the names that the command line gives them."""
    if isinstance(config, Mapping):
        for key, value in config.items():
            inner = name if key == "init_args" else f"{name}.{key}" if name else str(key)
            yield from _flat(value, inner)
    elif name:
        yield name, list(config) if isinstance(config, list | tuple) else config


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else text[:39] + "…"


# -- where results belong ---------------------------------------------------------------------------------------------


def results_folder(module: Any, checkpoint: Mapping[str, Any] | None) -> tuple[Path, dict[str, Any]]:
    """The folder for results of `test` and `predict`, and a description of what was tested.

    Results of a run's own weights by its own options lie in its folder. Other weights, none, other options and other
    episodes get `tested/NAME` there, and so does a checkpoint of the run where the table in its folder is of another.
    """
    trainer = module.trainer
    root = Path(trainer.default_root_dir)
    if trainer.state.fn == "fit":  # the table at the end of a run
        return root, {"checkpoint": None}
    path = None if trainer.ckpt_path is None else Path(str(trainer.ckpt_path))
    about: dict[str, Any] = {"checkpoint": None if path is None else path.name}
    changed = _tested_options((checkpoint or {}).get(ENTRY), module.run_config)
    if changed:
        about["options"] = {name: str(value) for name, value in changed.items()}
    own = path is None if module.run_config is None else path is not None and root.resolve() in path.resolve().parents
    if own and not changed and _is_of(root, about["checkpoint"]):
        return root, about
    words = ["untrained" if path is None else path.stem]
    if not own and path is not None:  # which run of others it is of
        words.append(next(each for each in path.resolve().parts[-2::-1] if each != "checkpoints"))
    words += [Path(str(changed["data.sequences"])).stem] if changed.get("data.sequences") else []
    others = sorted((name, str(value)) for name, value in changed.items() if name != "data.sequences")
    words += [hashlib.sha256(repr(others).encode()).hexdigest()[:6]] if others else []
    return root / "tested" / re.sub(r"[^\w.-]", "_", "-".join(words))[:96], about


def _tested_options(record: Any, now: Any) -> dict[str, Any]:
    """Options of the model and the data that differ from those of the run, as they are now.

    Without a checkpoint that records those of the run, the file of sequences alone.
    """
    saved = record.get("config") if isinstance(record, Mapping) else None
    if not isinstance(saved, Mapping):
        return {name: value for name, value in _flat(now) if name == "data.sequences" and value is not None}
    changed = changed_options(saved, now, ("model.", "data."))
    return {name: new for name, (_, new) in changed.items() if new != _ABSENT and not name.endswith(_SAME_RESULTS)}


def _is_of(root: Path, checkpoint: str | None) -> bool:
    try:
        tested = json.loads((root / "evaluation.json").read_text(encoding="utf-8"))["tested"]
        return bool(tested["checkpoint"] == checkpoint)
    except (OSError, ValueError, KeyError, TypeError):
        return True
