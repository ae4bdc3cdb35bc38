"""Shipped configs in small, on the pretended device."""

from __future__ import annotations

from typing import Any

from tests.test_end_to_end import SMALL

OPTIONS: dict[str, Any] = {
    "model.batch_size": 8,
    "model.replay.capacity": 200,
    "model.warmup_frames": 16,
    "model.updates_per_step": 2,
    "data.pictures": "false",
    "trainer.log_every_n_steps": 1,
    "trainer.accelerator": "gpu",
    "trainer.devices": 1,
}
ROLLOUTS = {"model.rollout_steps": 4, "model.epochs": 1, "model.minibatches": 2}
NO_REPLAY = ("model.batch_size", "model.replay.capacity", "model.warmup_frames", "model.updates_per_step")
ABSENT = {"ppo_": NO_REPLAY, "bc.yaml": ("model.replay.capacity", "model.warmup_frames"), "packing.yaml": NO_REPLAY}
ABSENT |= dict.fromkeys(("packing_pallets.yaml", "packing_refined.yaml"), NO_REPLAY)
FEW_WORLDS = {"model.env.num_envs": 2, "model.env.pool": 8, "model.env.max_steps": 10}
# An operator takes as long as on a CPU and its wrapping as long again, so there are fewer pieces.
FEWER_ITEMS = {
    "packing_pallets.yaml": {"model.env.num_items": 3},
    "packing_irregular.yaml": {
        "model.env.num_items": 3,
        "model.env.visible_items": 2,
        "model.env.items.num_objects": 4,
        "model.env.orientations": "fixed",
        "model.n_steps": 3,
    },
}


def is_navigation(name: str) -> bool:
    return name.startswith(("navigation", "ppo_marine"))


def command_line(name: str, **more: object) -> list[str]:
    """Return the command line of a config in small.

    `more` are options by their names, with "__" for dots. They replace those of the small config.
    """
    options = OPTIONS | (ROLLOUTS if name.startswith("ppo_") else {}) | FEWER_ITEMS.get(name, {})
    options |= FEW_WORLDS if is_navigation(name) else {}
    options |= {key.replace("__", "."): value for key, value in more.items()}
    absent = ABSENT["ppo_"] if name.startswith("ppo_") else ABSENT.get(name, ())
    given = (f"--{key}={value}" for key, value in options.items() if key not in absent)
    return ["--config", name, *SMALL.get(name, []), *given]
