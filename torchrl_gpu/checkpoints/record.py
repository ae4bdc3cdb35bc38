"""The record of a run in its checkpoints, and what differs from it.

It is plain data: the configuration, versions and the commit.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from torchrl_gpu.system.archives import ENTRY
from torchrl_gpu.system.machine import commit, version

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

Change = tuple[object, object]
"""An option of a run: as it was, and as it is."""

_PACKAGES = ("torchrl_gpu", "torch", "torchrl", "tensordict", "lightning", "numpy")
_SECRET = re.compile(r"(.*_)?(token|password|secret|api_key)", re.IGNORECASE)
_ABSENT = "nothing"
# Groups of options whose changes a resume tells of.
_RESUMED = ("model.", "data.", "trainer.precision", "seed_everything")
_KEPT = ("seed_everything", "model.env.seed")
_SAME_REPLAY = ("model.env.device", "model.env.num_envs", "model.env.seed")
# Options that leave the results of a test as they are.
_SAME_RESULTS = (
    ".device",
    ".num_envs",
    ".pictures",
    ".batch_size",
    ".steps_per_epoch",
    ".num_val_episodes",
    ".backend",
)


def run_record(config: Mapping[str, object] | None, module: object = None) -> dict[str, object]:
    """Build the record of a run for its checkpoints, as plain data.

    Tokens and passwords of its configuration are left out.
    """
    settings = None if config is None else without_secrets(config)
    versions = dict(_versions())
    record: dict[str, object] = {"config": settings, "versions": versions, "commit": commit()}
    if module is not None:
        record["module"] = f"{type(module).__module__}.{type(module).__qualname__}"
    return record


@cache
def _versions() -> dict[str, str | None]:
    """Versions of Python and of packages, whose metadata takes milliseconds to read."""
    return {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}}


def without_secrets(config: object) -> object:
    """Replace values that are named like a token or a password by None."""
    if isinstance(config, Mapping):
        return {str(name): None if is_secret(str(name)) else without_secrets(value) for name, value in config.items()}
    if isinstance(config, list | tuple):
        return [without_secrets(each) for each in config]
    return config if isinstance(config, str | int | float | bool | None) else str(config)


def is_secret(name: str) -> bool:
    return _SECRET.fullmatch(name) is not None


def changed_options(saved: object, now: object, groups: tuple[str, ...] = ("model.",)) -> dict[str, Change]:
    """Return options that differ between two configurations.

    By name, the old and the new value.
    """
    before = dict(_flat(saved))
    after = dict(_flat(now))
    if not before or not after:
        return {}
    names = [name for name in {**before, **after} if name.startswith(groups)]
    pairs = {name: (before.get(name, _ABSENT), after.get(name, _ABSENT)) for name in names}
    return {name: (old, new) for name, (old, new) in pairs.items() if old != new}


def saved_config(checkpoint: Mapping[str, object]) -> object:
    """Return the configuration of the run that saved a checkpoint, or None if unknown."""
    record = checkpoint.get(ENTRY)
    return record.get("config") if isinstance(record, Mapping) else None


def saved_option(checkpoint: Mapping[str, object], name: str) -> object:
    """Return an option of the run that saved a checkpoint, or None if unknown."""
    return dict(_flat(saved_config(checkpoint))).get(name)


def resumed_changes(saved: object, now: object) -> dict[str, Change]:
    """Return options of a resumed run that differ from those of its checkpoint.

    They have the form of `changed_options`.
    """
    changed = changed_options(saved, now, _RESUMED)
    begun = changed.get("model.warm_start")
    # A warm start has done its part once the run was saved, so it may be missing now.
    if begun is not None and begun[1] in (None, _ABSENT):
        del changed["model.warm_start"]
    return changed


def describe_changes(changed: Mapping[str, Change], kept: Sequence[str] = ()) -> list[str]:
    """Describe changed options: those that take effect, and those that are ignored.

    The checkpoint decides the latter. `kept` are their patterns, without the "model." that they begin with.
    """
    patterns = [*_KEPT, *(f"model.{each}" for each in kept)]

    def is_kept(name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in patterns)

    stays = {name: pair for name, pair in changed.items() if is_kept(name)}
    others = {name: pair for name, pair in changed.items() if name not in stays}
    lines = []
    if others:
        lines.append(f"goes on with other options: {in_words(others)}")
    if stays:
        lines.append(
            f"keeps what the checkpoint holds, so that these options change nothing: {in_words(stays)}; to change them"
            " begin anew, with --model.warm_start where the model has it"
        )
    return lines


def check_fixed(changed: Mapping[str, Change], where: str) -> None:
    """Check that the number of environments is that of the checkpoint.

    ValueError otherwise.
    """
    name = "model.env.num_envs"
    if name in changed:
        before, now = changed[name]
        raise ValueError(f"{where}: {name} must be {before}, as its environments go on where they were; got {now}")


def check_replay_options(changed: Mapping[str, Change], where: str) -> None:
    """Refuse options that change the meaning of the transitions in a replay."""
    bad = {name: pair for name, pair in changed.items() if name.startswith("model.env") and name not in _SAME_REPLAY}
    if bad:
        raise ValueError(
            f"{where}: its replay was played in another environment: {in_words(bad)}. Delete the .rank0.pt beside it"
            " and name the file in --ckpt_path, so that replay is filled again, or begin anew with --model.warm_start"
        )


def in_words(changed: Mapping[str, Change]) -> str:
    lines = [f"{name} {_short(old)} → {_short(new)}" for name, (old, new) in changed.items()]
    text = ", ".join(lines[:8])
    if len(lines) > 8:
        text += f" and {len(lines) - 8} more"
    return text


# Options are compared by the names that the command line gives them, so that a message names what a user can type.
def _flat(config: object, name: str = "") -> Iterator[tuple[str, object]]:
    """Yield the leaves by the names that the command line gives them."""
    if isinstance(config, Mapping):
        for key, value in config.items():
            if key == "init_args":
                inner = name
            elif name:
                inner = f"{name}.{key}"
            else:
                inner = str(key)
            yield from _flat(value, inner)
    elif name:
        yield name, list(config) if isinstance(config, list | tuple) else config


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else text[:39] + "…"


class TestedModule(Protocol):
    """What the folder of results depends on."""

    @property
    def trainer(self) -> Trainer: ...

    @property
    def run_config(self) -> Mapping[str, object] | None: ...


def results_folder(module: TestedModule, checkpoint: Mapping[str, object] | None) -> tuple[Path, dict[str, object]]:
    """Return the folder for results of `test` and `predict`, and what was tested.

    Results of a run's own weights by its own options lie in its folder. Other weights, none, other options and other
    episodes get `tested/NAME` there, and so does a checkpoint of the run where the table in its folder is of another.
    """
    trainer = module.trainer
    root = Path(trainer.default_root_dir)
    # The table at the end of a run belongs to the run.
    if trainer.state.fn == "fit":
        return root, {"checkpoint": None}
    path = None if trainer.ckpt_path is None else Path(str(trainer.ckpt_path))
    file_name = None if path is None else path.name
    about: dict[str, object] = {"checkpoint": file_name}
    changed = _tested_options((checkpoint or {}).get(ENTRY), module.run_config)
    if changed:
        about["options"] = {name: str(value) for name, value in changed.items()}
    if module.run_config is None:
        own = path is None
    else:
        own = path is not None and root.resolve() in path.resolve().parents
    if own and not changed and _is_of(root, file_name):
        return root, about
    words = ["untrained" if path is None else path.stem]
    # The name of the folder says which other run the weights belong to.
    if not own and path is not None:
        words.append(next(each for each in path.resolve().parts[-2::-1] if each != "checkpoints"))
    if changed.get("data.sequences"):
        words.append(Path(str(changed["data.sequences"])).stem)
    others = sorted((name, str(value)) for name, value in changed.items() if name != "data.sequences")
    if others:
        # Spelled out, the options could make a name that no file system takes; `about` has them in full.
        digest = hashlib.sha256(repr(others).encode()).hexdigest()
        words.append(digest[:6])
    name = re.sub(r"[^\w.-]", "_", "-".join(words))[:96]
    return root / "tested" / name, about


def _tested_options(record: object, now: object) -> dict[str, object]:
    """Return the options of model and data that differ from those of the run.

    They have the values of now. Where no checkpoint records the options of the run, only the file of sequences counts.
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
