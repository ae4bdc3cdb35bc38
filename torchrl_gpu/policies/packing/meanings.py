"""Meanings of observations and actions of packing, for export manifests."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping
from pathlib import Path

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing import items
from torchrl_gpu.envs.packing.items.source import ItemSource, SameItems
from torchrl_gpu.envs.packing.rotations import orientation_set
from torchrl_gpu.policies.export.meanings import Meaning, Meanings
from torchrl_gpu.policies.inference import InferencePolicy
from torchrl_gpu.policies.packing.hierarchical.packer import HierarchicalPacker

# Larger tables of orientations, and longer lists of items, are left out of a manifest.
_MOST_ORIENTATIONS = 1000
_MOST_NAMES = 10_000

# Arguments of PackingEnv that decide what it shows and what an action means.
_OF_OBSERVATIONS = (
    "bin_size",
    "resolution",
    "grid_step",
    "items",
    "num_items",
    "visible_items",
    "orientations",
    "stability",
    "reward",
    "skip_unplaceable",
    "order",
    "include",
)

_BIN = "x along the bin's length, y along its width, z up from its floor; the origin is a corner of the floor"
_PLACEMENT = (
    "gx puts the footprint's first cell at gx * grid_step while that fits; the first beyond stands for"
    " the placement flush with the far wall; the same for y"
)
_COMPUTED = {
    "z_map": "for each placement the largest, over the footprint's cells, of box_heightmap minus the item's underside"
    " above its base, which of boxes is 0; cells of a footprint are item_size / (size_m / cells), rounded up",
    "legal_mask": "the footprint lies in the bin, z_map and the item's height are together at most the bin's, and the"
    " bin's rule of stability holds",
    "action_mask": "legal_mask, flattened",
    "item_mask": "any of the item's legal_mask",
}
_ITEM_SIZE = Meaning(
    "bounding box and volume of each visible item in each orientation, 0 for none",
    "m, the volume m^3",
    _BIN,
    ("x", "y", "z", "volume"),
)
_ENTRIES = {
    "box_heightmap": Meaning("top of the pile in each cell (x, y), 0 where the floor is bare", "m", _BIN),
    "item_id": Meaning("row of the item catalogue in each visible slot, -1 for none"),
    "item_mask": Meaning("the item in the slot has a legal placement"),
    "item_size": _ITEM_SIZE,
    "z_map": Meaning("base of the item at first contact; the bin's height where it does not fit", "m", _BIN),
    "legal_mask": Meaning("the placement (slot, orientation, gx, gy) is legal"),
    "action_mask": Meaning("legal_mask, flattened: action i is legal"),
    "action": Meaning("((slot * O + orientation) * Gx + gx) * Gy + gy of the placement to make", None, _BIN),
}


def settings_of(env: PackingEnv) -> dict[str, object]:
    """Arguments of an environment that decide observations and actions.

    Of an item source only plain arguments are included.
    """
    source: ItemSource = env.items
    # A validation environment wraps the training's source, whose settings count.
    while isinstance(source, SameItems):
        source = source.source
    arguments = {}
    for name in inspect.signature(type(source)).parameters:
        value = getattr(source, name, None)
        if isinstance(value, Path):
            value = str(value)
        if _is_plain(value):
            arguments[name] = value
    class_path = f"{type(source).__module__}.{type(source).__name__}"
    settings = {name: getattr(env, name) for name in _OF_OBSERVATIONS}
    settings["items"] = {"class_path": class_path, "init_args": arguments}
    return {"class_path": f"torchrl_gpu.envs.{type(env).__name__}", "init_args": settings}


def catalogue_of(env: PackingEnv) -> dict[str, object]:
    """Identity of an item catalogue: number of items, names, and a hash of their maps."""
    catalogue = env.catalogue
    # The catalogue itself may be large; its hash tells whether another one is the same.
    hashed = hashlib.sha256()
    for name in ("extent", "height", "volume", "top", "bottom"):
        value = getattr(catalogue, name)
        # Catalogues of boxes have neither top nor bottom.
        if value is not None:
            hashed.update(value.cpu().contiguous().numpy().tobytes())
    return {
        "num_items": catalogue.num_items,
        "footprint_cells": list(catalogue.footprint),
        "names": _names(env),
        "sha256": hashed.hexdigest(),
        "hashed": "extent, height, volume, top and bottom of all items in all orientations, as they lie in memory",
    }


def _names(env: PackingEnv) -> list[str] | None:
    """Names of all items, in the order of the catalogue.

    None for boxes, and for sources without names.
    """
    if env.catalogue.flat or env.catalogue.num_items > _MOST_NAMES:
        return None
    numbers = range(env.catalogue.num_items)
    try:
        return [env.items.solid(item, env.bin).name for item in numbers]
    except NotImplementedError:
        return None


def _is_plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def _packing(policy: InferencePolicy) -> dict[str, object]:
    """Bin, grid, and rotation matrices of the orientations of a packing policy."""
    extras = policy.space.extras
    bin_ = extras.get("bin")
    maps = extras.get("action_shape")
    if not isinstance(bin_, dict) or not isinstance(maps, list):
        return {}
    computed = {"by": "PackingEnv.restore, from box_heightmap and item_id"}
    computed |= {name: _COMPUTED[name] for name in policy.in_keys if name in _COMPUTED}
    names = ("visible_items", "orientations", "placements_x", "placements_y")
    described_bin = {
        "size_m": bin_["size"],
        "cells": bin_["cells"],
        "grid_step_cells": bin_["step"],
        "stability": bin_["stability"],
    }
    return {
        "bin": described_bin,
        "action_shape": dict(zip(names, maps, strict=True)),
        "placement": _PLACEMENT,
        "orientation_table": _orientations(policy, maps[1]),
        "computed_inputs": computed,
    }


def _packer(policy: InferencePolicy) -> dict[str, object]:
    """Item catalogue and selection rules of the hierarchical packer, if it is one."""
    packer = policy.policy
    if not isinstance(packer, HierarchicalPacker):
        return {}
    choice = {
        "items": packer.items,
        "places": packer.places,
        "largest_items_considered": packer.item_shortlist,
        "orientations_considered": packer.shortlist,
        "margin_bin_volumes": packer.margin,
    }
    return {"catalogue": policy.about.get("catalogue"), "choice": choice}


def _orientations(policy: InferencePolicy, number: int) -> list[list[float]] | None:
    """Rotation matrices, row by row, from the item as it is given.

    None if they are not recorded.
    """
    env = policy.about.get("env")
    settings = env.get("init_args") if isinstance(env, Mapping) else None
    settings = settings or {}
    word = settings.get("orientations", "yaw")
    boxes = _are_boxes(policy, settings)
    if number > _MOST_ORIENTATIONS or not isinstance(boxes, bool):
        return None
    # The record may be one that no environment could have been made of.
    try:
        turns = orientation_set(word, boxes=boxes)
        table: list[list[float]] = turns.round(9).tolist()
    except ValueError:
        return None
    return table if len(table) == number else None


def _are_boxes(policy: InferencePolicy, settings: Mapping[str, object]) -> object:
    """Whether the items of a policy's environment are boxes, or None if unknown."""
    packer = policy.policy
    if isinstance(packer, HierarchicalPacker):
        return packer.planes.catalogue.flat
    source = settings.get("items", "random")
    path = source.get("class_path", "") if isinstance(source, Mapping) else str(source)
    words = {"random": items.RandomBoxes, "cut": items.CutBoxes, "procedural": items.ProceduralSolids}
    name = path.rpartition(".")[2]
    cls = words.get(path) or getattr(items, name, None)
    return getattr(cls, "boxes", None)


def _sections(policy: InferencePolicy) -> dict[str, object]:
    return _packing(policy) | _packer(policy)


def _environment(env: PackingEnv) -> dict[str, object]:
    return {"env": settings_of(env), "catalogue": catalogue_of(env)}


MEANINGS = Meanings(_ENTRIES, _COMPUTED, environment=_environment, sections=_sections)
