"""JSON manifest of an exported policy's inputs and outputs.

It can be read without the policy's environment and without this package.
"""

from __future__ import annotations

import math
from typing import TypedDict

from torchrl_gpu.envs.base import BatchedEnv
from torchrl_gpu.policies.export.meanings import Meaning, Meanings
from torchrl_gpu.policies.inference import InferencePolicy
from torchrl_gpu.tasks import load_part, task_named, task_of

FORMAT = "torchrl_gpu policy 1"
_NOTHING_KNOWN = Meanings({})
_UNKNOWN_ENTRY = Meaning("an entry of the environment's own")
# Sections of a policy's origin that stand at other places of a manifest.
_ELSEWHERE = ("env", "catalogue")


class EntryRecord(TypedDict):
    """An input or output in a manifest."""

    name: str
    shape: list[str | int]
    dtype: str
    meaning: str
    unit: str | None
    frame: str | None
    elements: list[str] | None


def manifest_of(policy: InferencePolicy) -> dict[str, object]:
    """Manifest of a policy, as plain data.

    It has names, shapes, types, units and frames of inputs and outputs, the rule of masks, and the policy's origin;
    "batch" stands for the axis of any length.
    """
    space = policy.space
    if space.num_actions is None:
        action: dict[str, object] = {**_entry(policy, "action", space.action_shape, "float32")}
        action["low"] = _finite(space.low)
        action["high"] = _finite(space.high)
    else:
        action = {**_entry(policy, "action", (), "int64")}
        action["low"] = 0
        action["high"] = space.num_actions - 1
    inputs = [_entry(policy, name, *space.observations[name]) for name in policy.in_keys]
    head = {
        "format": FORMAT,
        "policy": policy.name,
        "environment": space.source,
        "group": list(space.group),
        "inputs": inputs,
        "outputs": [action],
        "mask": _mask_rule(policy),
    }
    made_by = {name: value for name, value in policy.about.items() if name not in _ELSEWHERE}
    origin = {"made_by": made_by, "environment_settings": policy.about.get("env")}
    return {**head, **_meanings(policy).sections(policy), **origin}


def _meanings(policy: InferencePolicy) -> Meanings:
    """What the task of a policy's environment says of its entries."""
    # The framework knows no task: whoever made the environment says what its entries mean.
    task = task_named(policy.space.source)
    if task is None or not task.meanings:
        return _NOTHING_KNOWN
    meanings: Meanings = load_part(task.meanings)
    return meanings


def describe_environment(env: BatchedEnv) -> dict[str, object]:
    """What a manifest says of a policy's environment, as plain data, or nothing."""
    task = task_of(type(env))
    if task is None or not task.meanings:
        return {}
    meanings: Meanings = load_part(task.meanings)
    return meanings.environment(env)


def computed_inputs(policy: InferencePolicy) -> dict[str, str]:
    """Inputs of a policy that follow from others, each with its rule."""
    rules = _meanings(policy).computed
    return {name: rules[name] for name in policy.in_keys if name in rules}


def elements_of(policy: InferencePolicy, name: str) -> list[str] | None:
    """Names of the elements along the last axis of an input or output, if known."""
    meanings = _meanings(policy)
    names = meanings.elements(policy, name)
    if names is None and name in meanings.entries:
        names = meanings.entries[name].elements
    return None if names is None else list(names)


def _entry(policy: InferencePolicy, name: str, shape: tuple[int, ...], dtype: str) -> EntryRecord:
    meaning = _meanings(policy).entries.get(name, _UNKNOWN_ENTRY)
    return {
        "name": name,
        "shape": ["batch", *shape],
        "dtype": dtype,
        "meaning": meaning.text,
        "unit": meaning.unit,
        "frame": meaning.frame,
        "elements": elements_of(policy, name),
    }


def _mask_rule(policy: InferencePolicy) -> str:
    if policy.space.num_actions is None:
        return "none: every action within the bounds may be taken"
    if not policy.space.masked:
        return "none: every action may be taken"
    own_rule = getattr(policy.policy, "mask_rule", None)
    if isinstance(own_rule, str):
        return own_rule
    return "only actions whose action_mask is true are chosen; where all are false the action means nothing: take none"


def _finite(bounds: tuple[float, ...] | None) -> list[float | None]:
    return [float(each) if math.isfinite(each) else None for each in bounds or ()]
