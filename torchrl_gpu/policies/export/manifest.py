"""JSON manifest of an exported policy's inputs and outputs, readable without its environment or this package."""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing import items
from torchrl_gpu.envs.packing.items.source import ItemSource, SameItems
from torchrl_gpu.envs.packing.rotations import orientation_set
from torchrl_gpu.policies.inference import InferencePolicy
from torchrl_gpu.policies.packing.hierarchical.packer import HierarchicalPacker

FORMAT = "torchrl_gpu policy 1"
_MOST_ORIENTATIONS = 1000  # beyond, the table is left to the words that it is made of
_MOST_NAMES = 10_000  # of items, likewise
_OF_OBSERVATIONS = (  # arguments of PackingEnv that decide what it shows and what an action means
    *("bin_size", "resolution", "grid_step", "items", "num_items", "visible_items", "orientations", "stability"),
    *("reward", "skip_unplaceable", "order", "include"),
)


class Meaning(NamedTuple):
    """Description of an input or output: text, unit, reference frame, names of its elements."""

    text: str
    unit: str | None = None
    frame: str | None = None
    elements: tuple[str, ...] | None = None


_COMPUTED = {
    "z_map": "for each placement the largest, over the footprint's cells, of box_heightmap minus the item's underside"
    " above its base, which of boxes is 0; cells of a footprint are item_size / (size_m / cells), rounded up",
    "legal_mask": "the footprint lies in the bin, z_map and the item's height are together at most the bin's, and the"
    " bin's rule of stability holds",
    "action_mask": "legal_mask, flattened",
    "item_mask": "any of the item's legal_mask",
}
"""Inputs of policies that pack which are no measurements, and the rule of each."""
_BIN = "x along the bin's length, y along its width, z up from its floor; the origin is a corner of the floor"
_ROBOT = "the robot's own: x ahead, y to port; the origin is its centre"
_OBJECT = ("x", "y", "vx", "vy", "radius")
_OWN = ("goal_x", "goal_y", "velocity_x", "velocity_y")
_VESSEL = (
    *_OWN,
    "yaw_rate",
    "thrust_left",
    "thrust_right",
    *(f"object{i}_{name}" for i in range(5) for name in _OBJECT),
)
_UNICYCLE = (
    *_OWN,
    *(f"obstacle{i}_{name}" for i in range(5) for name in ("x", "y", "radius")),
    *(f"robot{i}_{name}" for i in range(5) for name in _OBJECT[:4]),
)
_SINK = ("stack", "fatigue", "wear", "demand", "clock", "broken")
_MEANINGS: Mapping[str, Mapping[str, Meaning]] = {
    "PackingEnv": {
        "box_heightmap": Meaning("top of the pile in each cell (x, y), 0 where the floor is bare", "m", _BIN),
        "item_id": Meaning("row of the item catalogue in each visible slot, -1 for none"),
        "item_mask": Meaning("the item in the slot has a legal placement"),
        "item_size": Meaning(
            "bounding box and volume of each visible item in each orientation, 0 for none",
            "m, the volume m^3",
            _BIN,
            ("x", "y", "z", "volume"),
        ),
        "z_map": Meaning("base of the item at first contact; the bin's height where it does not fit", "m", _BIN),
        "legal_mask": Meaning("the placement (slot, orientation, gx, gy) is legal"),
        "action_mask": Meaning("legal_mask, flattened: action i is legal"),
        "action": Meaning("((slot * O + orientation) * Gx + gx) * Gy + gy of the placement to make", None, _BIN),
    },
    "MarineNavEnv": {
        "observation": Meaning(
            "the robot, its goal, and the nearest objects in sight, nearest first, 0 for none",
            "m, m/s, rad/s, N",
            _ROBOT,
        ),
        "object_mask": Meaning("the slot of the observation holds an object"),
        "active": Meaning("the robot takes part; where it does not, a continuous action is 0"),
        "clearance": Meaning("from the hull to the nearest object in sight; the range where there is none", "m"),
        "action_mask": Meaning("the action may be taken"),
        "action": Meaning(
            "discrete: 3 * acceleration + turn (unicycles) or 5 * left + right thrust (vessels); continuous: the"
            " thrusts' shares",
            None,
            _ROBOT,
        ),
    },
    "DishwashingEnv": {
        "observation": Meaning("the shift, each number a share from 0 to 1", None, None, _SINK),
        "clip": Meaning(
            "the last pictures of the sink, oldest first, RGB; the first repeats at first", "levels of 0 to 255"
        ),
        "action": Meaning("how fast to wash, and how carefully", "share of the most", None, ("speed", "care")),
    },
}


def manifest_of(policy: InferencePolicy) -> dict[str, Any]:
    """Manifest of a policy: names, shapes, types, units and frames of inputs and outputs, mask rule, and origin.

    Everything is plain data; "batch" stands for the axis of any length.
    """
    space = policy.space
    bounds = {} if space.low is None else {"low": _finite(space.low), "high": _finite(space.high)}
    shape, dtype = ((), "int64") if space.num_actions is not None else (space.action_shape, "float32")
    choices = {} if space.num_actions is None else {"low": 0, "high": space.num_actions - 1}
    return {
        "format": FORMAT,
        "policy": policy.name,
        "environment": space.source,
        "group": list(space.group),
        "inputs": [_entry(policy, name, *space.observations[name]) for name in policy.in_keys],
        "outputs": [_entry(policy, "action", shape, dtype) | bounds | choices],
        "mask": _mask_rule(policy),
        **_packing(policy),
        **_packer(policy),
        "made_by": {name: value for name, value in policy.about.items() if name not in ("env", "catalogue")},
        "environment_settings": policy.about.get("env"),
    }


def settings_of(env: PackingEnv) -> dict[str, Any]:
    """Environment arguments that determine observations and the meaning of actions, as a configuration has them.

    Of an item source only plain arguments are included.
    """
    source: ItemSource = env.items
    while isinstance(source, SameItems):
        source = source.source
    plain = {name: getattr(source, name, None) for name in inspect.signature(type(source)).parameters}
    plain = {name: str(value) if isinstance(value, Path) else value for name, value in plain.items()}
    given = {name: value for name, value in plain.items() if _is_plain(value)}
    described = {"class_path": f"{type(source).__module__}.{type(source).__name__}", "init_args": given}
    settings = {name: described if name == "items" else getattr(env, name) for name in _OF_OBSERVATIONS}
    return {"class_path": f"torchrl_gpu.envs.{type(env).__name__}", "init_args": settings}


def catalogue_of(env: PackingEnv) -> dict[str, Any]:
    """Identity of an item catalogue: number of items, their names, and a hash of their maps."""
    catalogue, hashed = env.catalogue, hashlib.sha256()
    for name in ("extent", "height", "volume", "top", "bottom"):
        value = getattr(catalogue, name)
        hashed.update(b"" if value is None else value.cpu().contiguous().numpy().tobytes())
    return {
        "num_items": catalogue.num_items,
        "footprint_cells": list(catalogue.footprint),
        "names": _names(env),
        "sha256": hashed.hexdigest(),
        "hashed": "extent, height, volume, top and bottom of all items in all orientations, as they lie in memory",
    }


def _names(env: PackingEnv) -> list[str] | None:
    """Names of all items, in the order of the catalogue; None for boxes, and for sources without names."""
    if env.catalogue.flat or env.catalogue.num_items > _MOST_NAMES:
        return None
    try:
        return [env.items.solid(item, env.bin).name for item in range(env.catalogue.num_items)]
    except NotImplementedError:
        return None


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def computed_inputs(policy: InferencePolicy) -> dict[str, str]:
    """Inputs of a packing policy that follow from its heightmap and items, each with its rule."""
    packs = policy.space.source == "PackingEnv"
    return {name: _COMPUTED[name] for name in policy.in_keys if packs and name in _COMPUTED}


def elements_of(policy: InferencePolicy, name: str) -> list[str] | None:
    """Names of the elements along the last axis of an input or output, where they are known."""
    known = _MEANINGS.get(policy.space.source, {}).get(name)
    names = None if known is None else known.elements
    if policy.space.source == "MarineNavEnv" and name == "observation":
        names = _VESSEL if policy.space.size_of(name) == len(_VESSEL) else _UNICYCLE
    if policy.space.source == "MarineNavEnv" and name == "action" and policy.space.num_actions is None:
        names = ("thrust_left", "thrust_right")
    return None if names is None else list(names)


def _entry(policy: InferencePolicy, name: str, shape: tuple[int, ...], dtype: str) -> dict[str, Any]:
    known = _MEANINGS.get(policy.space.source, {}).get(name, Meaning("an entry of the environment's own"))
    about = {"meaning": known.text, "unit": known.unit, "frame": known.frame, "elements": elements_of(policy, name)}
    return {"name": name, "shape": ["batch", *shape], "dtype": dtype} | about


def _mask_rule(policy: InferencePolicy) -> str:
    if policy.space.num_actions is None:
        return "none: every action within the bounds may be taken"
    if not policy.space.masked:
        return "none: every action may be taken"
    if isinstance(policy.policy, HierarchicalPacker):
        return (
            "only placements whose legal_mask is true are chosen, of an item whose item_mask is true; where all are"
            " false the action means nothing: take none"
        )
    return "only actions whose action_mask is true are chosen; where all are false the action means nothing: take none"


def _packing(policy: InferencePolicy) -> dict[str, Any]:
    """The bin, its resolution and grid, and the rotation matrix of each orientation, of a packing policy."""
    extras = policy.space.extras
    bin_, maps = extras.get("bin"), extras.get("action_shape")
    if policy.space.source != "PackingEnv" or not isinstance(bin_, dict) or not isinstance(maps, list):
        return {}
    names = ("visible_items", "orientations", "placements_x", "placements_y")
    return {
        "bin": {
            "size_m": bin_["size"],
            "cells": bin_["cells"],
            "grid_step_cells": bin_["step"],
            "stability": bin_["stability"],
        },
        "action_shape": dict(zip(names, maps, strict=True)),
        "placement": "gx puts the footprint's first cell at gx * grid_step while that fits; the first beyond stands for"
        " the placement flush with the far wall; the same for y",
        "orientation_table": _orientations(policy, maps[1]),
        "computed_inputs": {"by": "PackingEnv.restore, from box_heightmap and item_id", **computed_inputs(policy)},
    }


def _packer(policy: InferencePolicy) -> dict[str, Any]:
    """Item catalogue and selection rules of the hierarchical packer; empty for other policies."""
    packer = policy.policy
    if not isinstance(packer, HierarchicalPacker):
        return {}
    return {
        "catalogue": policy.about.get("catalogue"),
        "choice": {
            "items": packer.items,
            "places": packer.places,
            "largest_items_considered": packer.item_shortlist,
            "orientations_considered": packer.shortlist,
            "margin_bin_volumes": packer.margin,
        },
    }


def _orientations(policy: InferencePolicy, number: int) -> list[Any] | None:
    """Rotation matrices, row by row, from the item as it is given; None where they are not recorded."""
    settings = (policy.about.get("env") or {}).get("init_args") or {}
    packer = policy.policy
    word, source = settings.get("orientations", "yaw"), settings.get("items", "random")
    path = source.get("class_path", "") if isinstance(source, Mapping) else str(source)
    words = {"random": items.RandomBoxes, "cut": items.CutBoxes, "procedural": items.ProceduralSolids}
    cls: Any = words.get(path) or getattr(items, path.rpartition(".")[2], None)
    boxes = packer.planes.catalogue.flat if isinstance(packer, HierarchicalPacker) else getattr(cls, "boxes", None)
    if number > _MOST_ORIENTATIONS or not isinstance(boxes, bool):
        return None
    try:
        table = orientation_set(word, boxes=boxes).round(9).tolist()
    except ValueError:  # a record that no environment could have been made of
        return None
    return table if len(table) == number else None


def _finite(bounds: Any) -> list[float | None]:
    return [float(each) if math.isfinite(each) else None for each in bounds]
