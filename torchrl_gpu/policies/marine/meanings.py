"""Meanings of observations and actions of marine navigation, for export manifests."""

from __future__ import annotations

import itertools

from torchrl_gpu.policies.export.meanings import Meaning, Meanings
from torchrl_gpu.policies.inference import InferencePolicy

_ROBOT = "the robot's own: x ahead, y to port; the origin is its centre"
_OBJECT = ("x", "y", "vx", "vy", "radius")
_OWN = ("goal_x", "goal_y", "velocity_x", "velocity_y")
_SLOTS = range(5)
_OBJECTS = tuple(f"object{i}_{name}" for i, name in itertools.product(_SLOTS, _OBJECT))
_OBSTACLES = tuple(f"obstacle{i}_{name}" for i, name in itertools.product(_SLOTS, ("x", "y", "radius")))
_ROBOTS = tuple(f"robot{i}_{name}" for i, name in itertools.product(_SLOTS, _OBJECT[:4]))
_VESSEL = (*_OWN, "yaw_rate", "thrust_left", "thrust_right", *_OBJECTS)
_UNICYCLE = (*_OWN, *_OBSTACLES, *_ROBOTS)
_OBSERVATION = Meaning(
    "the robot, its goal, and the nearest objects in sight, nearest first, 0 for none", "m, m/s, rad/s, N", _ROBOT
)
_ACTION = Meaning(
    "discrete: 3 * acceleration + turn (unicycles) or 5 * left + right thrust (vessels); continuous: the"
    " thrusts' shares",
    None,
    _ROBOT,
)
_ENTRIES = {
    "observation": _OBSERVATION,
    "object_mask": Meaning("the slot of the observation holds an object"),
    "active": Meaning("the robot takes part; where it does not, a continuous action is 0"),
    "clearance": Meaning("from the hull to the nearest object in sight; the range where there is none", "m"),
    "action_mask": Meaning("the action may be taken"),
    "action": _ACTION,
}


def _elements(policy: InferencePolicy, name: str) -> tuple[str, ...] | None:
    """Names of the elements, which differ between vessels and unicycles."""
    if name == "observation":
        return _VESSEL if policy.space.size_of(name) == len(_VESSEL) else _UNICYCLE
    if name == "action" and policy.space.num_actions is None:
        return ("thrust_left", "thrust_right")
    return None


MEANINGS = Meanings(_ENTRIES, elements=_elements)
