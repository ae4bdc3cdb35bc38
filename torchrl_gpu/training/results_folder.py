"""Folder of what `test` and `predict` write: that of the run, or one of its own for what is not the run."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchrl_gpu.archives import ENTRY
from torchrl_gpu.training.resumed_options import flat

# Options that change nothing in what is tested.
_FREE = (".device", ".num_envs", ".pictures", ".batch_size", ".steps_per_epoch", ".num_val_episodes", ".backend")


def results_folder(module: Any, checkpoint: Mapping[str, Any] | None) -> tuple[Path, dict[str, Any]]:
    """Where results belong, and what they are of.

    Those of a run's own weights by its own options lie in its folder. Other weights, none, other options and other
    episodes get `tested/NAME` there, and so does a checkpoint of the run where the table in its folder is of another.

    Args:
        module: Attached to a Trainer.
        checkpoint: What the weights were loaded from; None where they were not.
    """
    trainer = module.trainer
    root = Path(trainer.default_root_dir)
    if trainer.state.fn == "fit":  # the table at the end of a run
        return root, {"checkpoint": None}
    path = None if trainer.ckpt_path is None else Path(str(trainer.ckpt_path))
    about: dict[str, Any] = {"checkpoint": None if path is None else path.name}
    changed = _changed((checkpoint or {}).get(ENTRY), module.run_config)
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


def _changed(record: Any, now: Any) -> dict[str, Any]:
    """Options of the model and the data that are others than those of the run, as they are now, by name.

    Without a checkpoint that tells those of the run, the file of sequences alone.
    """
    after = {name: value for name, value in flat(now) if name.startswith(("model.", "data."))}
    saved = record.get("config") if isinstance(record, Mapping) else None
    if not isinstance(saved, Mapping):
        return {name: value for name, value in after.items() if name == "data.sequences" and value is not None}
    before = dict(flat(saved))
    changed = {name: value for name, value in after.items() if before.get(name) != value}
    return {name: value for name, value in changed.items() if not name.endswith(_FREE)}


def _is_of(root: Path, checkpoint: str | None) -> bool:
    """Whether the table in a run's folder, if there is one, is of a checkpoint of this name."""
    try:
        tested = json.loads((root / "evaluation.json").read_text(encoding="utf-8"))["tested"]
        return bool(tested["checkpoint"] == checkpoint)
    except (OSError, ValueError, KeyError, TypeError):
        return True
