"""Meanings of observations and actions, which a task gives for export manifests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torchrl_gpu.policies.inference import InferencePolicy


class Meaning(NamedTuple):
    """Description of an entry of an observation or an action.

    Attributes:
        text: In words.
        unit: Unit, or None.
        frame: Frame of reference, or None.
        elements: Names of the elements along its last axis, or None.
    """

    text: str
    unit: str | None = None
    frame: str | None = None
    elements: tuple[str, ...] | None = None


def no_elements(policy: InferencePolicy, name: str) -> tuple[str, ...] | None:
    """Return None: no names of elements depend on the policy."""
    return None


def no_sections(policy: InferencePolicy) -> dict[str, object]:
    """Return no sections."""
    return {}


def nothing_of_environment(env: object) -> dict[str, object]:
    """Return nothing about an environment."""
    return {}


@dataclass(frozen=True)
class Meanings:
    """What the entries of a task mean.

    Attributes:
        entries: Meaning of observations and of the action, by name.
        computed: Observations that follow from others and are not measured, each with its rule.
        elements: Names of an entry's elements that depend on the policy and replace those of `entries`, or None.
        environment: Gives what a manifest says of an environment of the task, by name, as plain data. It takes an
            environment of the task's own class.
        sections: Gives further sections of a manifest, by name, as plain data.
    """

    entries: Mapping[str, Meaning]
    computed: Mapping[str, str] = field(default_factory=dict)
    elements: Callable[[InferencePolicy, str], tuple[str, ...] | None] = no_elements
    environment: Callable[[Any], dict[str, object]] = nothing_of_environment
    sections: Callable[[InferencePolicy], dict[str, object]] = no_sections
