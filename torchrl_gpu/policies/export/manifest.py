"""JSON manifest of an exported policy's inputs and outputs, readable without its environment or this package."""

from __future__ import annotations

import math
from typing import Any

from torchrl_gpu.envs.base import BatchedEnv
from torchrl_gpu.policies.export.meanings import Meaning, Meanings
from torchrl_gpu.policies.inference import InferencePolicy
from torchrl_gpu.tasks import load_part, task_named, task_of

FORMAT = "torchrl_gpu policy 1"
_NOTHING_KNOWN = Meanings({})


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
        **_meanings(policy).sections(policy),
        "made_by": {name: value for name, value in policy.about.items() if name not in ("env", "catalogue")},
        "environment_settings": policy.about.get("env"),
    }


def _meanings(policy: InferencePolicy) -> Meanings:
    """What the task of a policy's environment says of its entries."""
    task = task_named(policy.space.source)
    if task is None or not task.meanings:
        return _NOTHING_KNOWN
    meanings: Meanings = load_part(task.meanings)
    return meanings


def describe_environment(env: BatchedEnv) -> dict[str, Any]:
    """What a manifest says of an environment that a policy was given, as plain data; empty where nothing is known."""
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
    """Names of the elements along the last axis of an input or output, where they are known."""
    meanings = _meanings(policy)
    names = meanings.elements(policy, name)
    if names is None and name in meanings.entries:
        names = meanings.entries[name].elements
    return None if names is None else list(names)


def _entry(policy: InferencePolicy, name: str, shape: tuple[int, ...], dtype: str) -> dict[str, Any]:
    known = _meanings(policy).entries.get(name, Meaning("an entry of the environment's own"))
    about = {"meaning": known.text, "unit": known.unit, "frame": known.frame, "elements": elements_of(policy, name)}
    return {"name": name, "shape": ["batch", *shape], "dtype": dtype} | about


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
