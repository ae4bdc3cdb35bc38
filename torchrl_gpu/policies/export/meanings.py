"""What the entries of observations and actions mean, as a task says it for the manifests of exported policies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torchrl_gpu.policies.inference import InferencePolicy


class Meaning(NamedTuple):
    """Description of an entry: text, unit, frame of reference, names of the elements along its last axis."""

    text: str
    unit: str | None = None
    frame: str | None = None
    elements: tuple[str, ...] | None = None


def no_elements(policy: InferencePolicy, name: str) -> tuple[str, ...] | None:
    """No names of elements that depend on the policy."""
    return None


def no_sections(policy: InferencePolicy) -> dict[str, Any]:
    """No sections of the task's own."""
    return {}


def nothing_of_environment(env: object) -> dict[str, Any]:
    """Nothing that a manifest says of an environment."""
    return {}


@dataclass(frozen=True)
class Meanings:
    """What the entries of a task mean.

    Attributes:
        entries: Meaning of observations and of the action, by name.
        computed: Observations that are no measurements but follow from others, each with its rule.
        elements: Names of an entry's elements where they depend on the policy, which replace those of `entries`; None
            for none.
        environment: What a manifest says of an environment of the task, by name, as plain data.
        sections: More of the manifest, by name, as plain data.
    """

    entries: Mapping[str, Meaning]
    computed: Mapping[str, str] = field(default_factory=dict)
    elements: Callable[[InferencePolicy, str], tuple[str, ...] | None] = no_elements
    environment: Callable[[Any], dict[str, Any]] = nothing_of_environment
    sections: Callable[[InferencePolicy], dict[str, Any]] = no_sections
