"""Tasks, and where each of them keeps its parts.

The framework (base classes, agents, training, checkpoints, evaluation, callbacks, programs) names no task. It looks up
the environment in this table, and imports a part when it needs it. An environment of your own needs no row: a row adds
what the framework cannot know, such as a table of results of its own. `register_task` adds one.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Task:
    """A kind of environment and its parts.

    Each part is "module:name", and the empty string stands for none.

    Attributes:
        name: Of the folder that holds the task's part in each room.
        environment: Class of the environments, and of what inherits from it.
        suite: Function that makes the `evaluation.suite.Suite` of an environment; arguments as in `suite_for`.
        scores: Patterns of the names of that suite's scores.
        meanings: What the entries of observations and actions mean, by name: a
            `policies.export.meanings.Meanings`.
        reader: Function that makes the policy of a run's checkpoint which no agent makes; arguments as in
            `policies.saved.Reader`.
        drawing: Function that gives what draws a policy's decisions, or None; see `serving.page`.
        evaluations: Programs of `torchrl-gpu evaluate` by the first word of their arguments.
        classes: Agents, networks and values that the settings in a checkpoint may name.
    """

    name: str
    environment: str
    suite: str = ""
    scores: str = ""
    meanings: str = ""
    reader: str = ""
    drawing: str = ""
    evaluations: Mapping[str, str] = field(default_factory=dict)
    classes: tuple[str, ...] = ()


_PACKING_CLASSES = (
    "torchrl_gpu.policies.packing.scores:PlacementAtoms",
    "torchrl_gpu.policies.packing.scores:PlacementLogits",
    "torchrl_gpu.policies.packing.scores:PlacementQuantiles",
    "torchrl_gpu.policies.packing.scores:PlacementScores",
    "torchrl_gpu.policies.packing.scores:PlacementValue",
    "torchrl_gpu.policies.packing.hierarchical.packer:PackerNetworks",
    "torchrl_gpu.policies.packing.ntuple.tables:PatchTables",
    "torchrl_gpu.policies.packing.ntuple.refined:RefinedTables",
)

_MARINE_CLASSES = (
    "torchrl_gpu.policies.marine.networks:NavigationActor",
    "torchrl_gpu.policies.marine.networks:NavigationAtoms",
    "torchrl_gpu.policies.marine.networks:NavigationCritic",
    "torchrl_gpu.policies.marine.networks:NavigationGaussian",
    "torchrl_gpu.policies.marine.networks:NavigationQuantileCritic",
    "torchrl_gpu.policies.marine.networks:NavigationQuantiles",
    "torchrl_gpu.policies.marine.networks:NavigationScores",
    "torchrl_gpu.policies.marine.networks:NavigationValue",
)

_PACKING = Task(
    name="packing",
    environment="torchrl_gpu.envs.packing.env:PackingEnv",
    suite="torchrl_gpu.evaluation.packing.irregular:packing_suite",
    scores="torchrl_gpu.evaluation.packing.episodes:SCORES",
    meanings="torchrl_gpu.policies.packing.meanings:MEANINGS",
    reader="torchrl_gpu.policies.packing.reading:read_policy",
    drawing="torchrl_gpu.serving.packing.drawing:drawing_of",
    evaluations={
        "bpp10": "torchrl_gpu.cli.packing.protocols:main",
        "pallets": "torchrl_gpu.cli.packing.protocols:main",
    },
    classes=_PACKING_CLASSES,
)

_MARINE = Task(
    name="marine",
    environment="torchrl_gpu.envs.marine.env:MarineNavEnv",
    suite="torchrl_gpu.evaluation.marine.suite:navigation_suite",
    scores="torchrl_gpu.evaluation.marine.episodes:SCORES",
    meanings="torchrl_gpu.policies.marine.meanings:MEANINGS",
    classes=_MARINE_CLASSES,
)

_DISHES = Task(
    name="dishes",
    environment="torchrl_gpu.envs.dishes.env:DishwashingEnv",
    meanings="torchrl_gpu.policies.dishes.meanings:MEANINGS",
)

_TASKS = [_PACKING, _MARINE, _DISHES]


def register_task(task: Task) -> None:
    """Add a task.

    Of several rows for one environment the last counts.
    """
    _TASKS.append(task)


def tasks() -> Iterator[Task]:
    """Yield all tasks, the last registered first."""
    return reversed(_TASKS)


def task_of(kind: type) -> Task | None:
    """Find the task of a class of environments.

    It is None if no row names the class or one that it inherits from.
    """
    for each in kind.__mro__:
        for task in tasks():
            if task.environment == f"{each.__module__}:{each.__qualname__}":
                return task
    return None


def task_named(environment: str) -> Task | None:
    """Find the task whose environments have a class of that name, without its module."""
    for task in tasks():
        if task.environment.rpartition(":")[2] == environment:
            return task
    return None


def load_part(part: str) -> Any:
    """Import what a part of a task names."""
    module, _, name = part.partition(":")
    return getattr(importlib.import_module(module), name)
