"""What a run goes on with that it did not begin with: told, and refused where its replay would mean something else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_ABSENT = "nothing"
# What replay holds is the same whatever these are.
_FREE = ("model.env.device", "model.env.num_envs", "model.env.seed")
_RESTORED = ("model.optimizer.", "model.lr_scheduler.", "model.learning_rates")


def changed_options(saved: Any, now: Any) -> dict[str, tuple[Any, Any]]:
    """Options of the model that differ, by name, as they were and as they are.

    Args:
        saved: The resolved configuration that a checkpoint holds; anything, as it comes from a file.
        now: That of this run.
    """
    before, after = (dict(flat(each)) for each in (saved, now))
    names = [name for name in {**before, **after} if name.startswith("model.")] if before and after else []
    pairs = {name: (before.get(name, _ABSENT), after.get(name, _ABSENT)) for name in names}
    return {name: (old, new) for name, (old, new) in pairs.items() if old != new and name != "model.warm_start"}


def news(changed: Mapping[str, tuple[Any, Any]]) -> list[str]:
    """Lines that tell of changed options: which count, and which the checkpoint has the last word on."""
    kept = {name: pair for name, pair in changed.items() if name.startswith(_RESTORED)}
    others = {name: pair for name, pair in changed.items() if name not in kept}
    lines = [f"goes on with other options: {told(others)}"] if others else []
    if kept:
        lines.append(f"optimizer and schedule go on as they were saved, whatever options say: {told(kept)}")
    return lines


def check_replay_options(changed: Mapping[str, tuple[Any, Any]], where: str) -> None:
    """Refuses options that change what the transitions of a replay mean.

    Args:
        changed: As `changed_options` gives them.
        where: Names the checkpoint in the error.

    Raises:
        ValueError: The environment has been changed.
    """
    bad = {name: pair for name, pair in changed.items() if name.startswith("model.env") and name not in _FREE}
    if bad:
        raise ValueError(
            f"{where}: want the environment that its replay was played in; got {told(bad)}. Delete the"
            " .rank0.pt beside it and name the file in --ckpt_path, so that replay is filled again, or begin anew with"
            " --model.warm_start"
        )


def told(changed: Mapping[str, tuple[Any, Any]]) -> str:
    """Changed options in words."""
    lines = [f"{name} {_short(old)} → {_short(new)}" for name, (old, new) in changed.items()]
    return ", ".join(lines[:8]) + (f" and {len(lines) - 8} more" if len(lines) > 8 else "")


def flat(config: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves by the names that the command line gives them."""
    if isinstance(config, Mapping):
        for key, value in config.items():
            inner = name if key == "init_args" else f"{name}.{key}" if name else str(key)
            yield from flat(value, inner)
    elif name:
        yield name, list(config) if isinstance(config, list | tuple) else config


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else text[:39] + "…"
