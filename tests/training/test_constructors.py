"""Every number and word that a config reaches.

Outside its meaning it is refused at construction, in one line.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch

from tests.training.tiny import dqn, packing_env
from torchrl_gpu import callbacks, policies, training
from torchrl_gpu.envs import DishwashingEnv, MarineNavEnv
from torchrl_gpu.policies import AgentSpace

NAN, INF = float("nan"), float("inf")
CPU = torch.device("cpu")
PACKING, SINK = AgentSpace.of(packing_env(2)), AgentSpace.of(DishwashingEnv(2, device="cpu", seed=0))
SEA = AgentSpace.of(MarineNavEnv(2, pool=2, device="cpu", seed=0))
AT_SEA = AgentSpace.of(MarineNavEnv(2, version="v3", actions="continuous", pool=2, device="cpu", seed=0))
FROM_VECTORS = {"actor": policies.VectorActor, "critic": policies.VectorCritic}
GAUSSIAN = FROM_VECTORS | {"actor": policies.VectorGaussian}


def env() -> Any:
    return packing_env(2)


OF_PACKING = {"space": PACKING, "network": policies.PlacementScores}
DEFAULTS: dict[type, dict[str, Any]] = {
    training.AfterstateLearning: {"env": env},
    training.BehaviourCloning: {"policy": policies.BCPolicy(4, 2)},
    training.HierarchicalPacking: {"env": env, "networks": lambda: None},
    training.PlacementEvolution: {"env": partial(packing_env, 16)},
    training.OffPolicy: {"env": env, "agent": dqn, "encoder": policies.ClipEncoder()},
    training.OnPolicy: {"env": env, "agent": dqn},
    training.ClipReplay: {"batch_size": 4, "device": CPU, "prioritized": True},
    training.DeviceReplay: {"batch_size": 4, "device": CPU, "prioritized": True},
    training.DemonstrationEpisodes: {"demonstrations": "folder"},
    training.Episodes: {},
    training.NavigationWorlds: {},
    training.PackingEpisodes: {},
    **{getattr(callbacks, name): {} for name in callbacks.__all__},
    callbacks.CheckpointMirror: {"url": "file:///tmp/nowhere"},
    callbacks.EpisodeCheckpoint: {"monitor": "val/return"},
    callbacks.EpisodeMcap: {"choose": "failures"},
    callbacks.FrameStream: {"record": "films"},
    policies.ACIQN: {"space": AT_SEA, "actor": policies.NavigationActor, "critic": policies.NavigationQuantileCritic},
    policies.DDPG: {"space": SINK, **FROM_VECTORS},
    policies.DQN: OF_PACKING,
    policies.IQN: OF_PACKING | {"network": policies.PlacementQuantiles},
    policies.PPO: {"space": PACKING, "actor": policies.PlacementLogits, "critic": policies.PlacementValue},
    policies.Rainbow: OF_PACKING | {"network": policies.PlacementAtoms},
    policies.SAC: {"space": SINK, **GAUSSIAN},
    policies.BCPolicy: {},
    policies.ClipEncoder: {},
    policies.EpsilonGreedy: {},
    policies.PeriodicTargets: {},
    policies.SoftTargets: {},
    policies.PatchTables: {"space": PACKING},
    policies.PlacementAtoms: {"space": PACKING},
    policies.PlacementLogits: {"space": PACKING},
    policies.PlacementQuantiles: {"space": PACKING},
    policies.PlacementScores: {"space": PACKING},
    policies.NavigationAtoms: {"space": SEA},
}

# Of the values below, those that an argument takes.
TAKEN: dict[str, set[Any]] = {
    "AfterstateLearning.lam": {0.0},
    "BehaviourCloning.seed": {-1, 0},
    "HierarchicalPacking.worker_updates": {0},
    "HierarchicalPacking.joint_rate": {0.0},
    "HierarchicalPacking.deep_rate": {0.0},
    "HierarchicalPacking.warmup_frames": {0},
    "HierarchicalPacking.epsilon": {0.0},
    "HierarchicalPacking.item_epsilon": {0.0},
    "HierarchicalPacking.margin": {0.0},
    "OffPolicy.reconstruction": {0.0},
    "OffPolicy.shift": {0},
    "OffPolicy.warmup_frames": {0},
    "DeviceReplay.alpha": {0.0},
    "DeviceReplay.beta": {0.0},
    "ClipReplay.alpha": {0.0},
    "ClipReplay.beta": {0.0},
    "DemonstrationEpisodes.num_val_episodes": {0},
    "DemonstrationEpisodes.split_seed": {0},
    "DemonstrationEpisodes.seed": {0},
    "Episodes.seed": {0},
    "NavigationWorlds.seed": {0},
    "NavigationWorlds.val_seed": {0},
    "PackingEpisodes.seed": {0},
    "CheckpointMirror.wait_s": {0.0},
    "EpisodeMcap.below": {-1.0, 0.0},
    "FrameStream.port": {0},
    "TrainingFilm.first_after_s": {0.0},
    "ACIQN.saturation_penalty": {0.0},
    "DDPG.saturation_penalty": {0.0},
    "PPO.lam": {0.0},
    "PPO.entropy_coeff": {0.0},
    "Rainbow.v_min": {-1.0, 0.0},
    "Rainbow.v_max": {-1.0, 0.0},
    "SAC.target_entropy": {-1.0, 0.0},
    "EpsilonGreedy.end": {0.0},
    "PatchTables.initial": {-1.0, 0.0},
    # These are Lightning's own, and -1 stands for all.
    "NetworkSummary.max_depth": {-1, 0},
    "PlacementAtoms.sigma": {0.0},
    "NavigationAtoms.sigma": {0.0},
    "PlacementScores.blocks": {0},
    "PlacementLogits.blocks": {0},
    "PlacementQuantiles.blocks": {0},
    "PlacementAtoms.blocks": {0},
}
SENSELESS: dict[Any, list[Any]] = {int: [-1, 0], float: [-1.0, 0.0, NAN, INF, -INF], str: ["nothing"]}
WORDS = {"transport", "choose", "squash", "storage", "mode", "action", "arch", "size", "norm", "loss", "cvar"}


def kinds(hint: Any) -> set[type]:
    """Of an annotation: numbers and words that it stands for."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return set().union(*(kinds(each) for each in typing.get_args(hint)))
    if typing.get_origin(hint) is typing.Literal:
        return {str}
    return {hint} & set(SENSELESS)


def senseless(made: type) -> Iterator[tuple[str, Any]]:
    """Values that make no sense, for each argument of a class."""
    hints = typing.get_type_hints(made.__init__)  # type: ignore[misc]
    for name in inspect.signature(made.__init__).parameters:  # type: ignore[misc]
        for kind in kinds(hints.get(name)):
            yield from ((name, value) for value in SENSELESS[kind] if kind is not str or name in WORDS)


@pytest.mark.parametrize("made", DEFAULTS, ids=lambda made: made.__name__)
def test_constructors_refuse_values_without_sense(made: type) -> None:
    taken, lines = [], []
    for name, value in senseless(made):
        try:
            made(**DEFAULTS[made] | {name: value})
            taken.append((name, value))
        except ValueError as error:
            lines.append(str(error))
    whole = {key.partition(".")[::2]: values for key, values in TAKEN.items()}
    wanted = set()
    for (of, name), values in whole.items():
        if of == made.__name__:
            wanted |= {(name, value) for value in values}
    assert set(taken) == wanted
    # One line, which names an argument: not always the one that was changed, since two may not go together.
    arguments = [name.casefold() for name in inspect.signature(made.__init__).parameters]  # type: ignore[misc]
    for line in lines:
        assert "\n" not in line
        assert any(name in line.casefold() for name in arguments), line


def test_no_callback_is_left_out() -> None:
    assert {getattr(callbacks, name) for name in callbacks.__all__} <= set(DEFAULTS)


IDLE: list[tuple[type, dict[str, Any], str]] = [
    (training.OffPolicy, {"encoder": None, "shift": 2}, "shift does nothing without an encoder; got 2"),
    (training.OffPolicy, {"encoder": None, "reconstruction": 0.5}, "reconstruction does nothing without an encoder"),
    (training.DeviceReplay, {"prioritized": False, "alpha": 0.5}, "alpha does nothing without prioritized; got 0.5"),
    (training.DeviceReplay, {"prioritized": False, "beta": 0.5}, "beta does nothing without prioritized; got 0.5"),
    (training.ClipReplay, {"prioritized": False, "beta_updates": 9}, "beta_updates does nothing without prioritized"),
    (training.BehaviourCloning, {"temperature": 2.0}, "temperature does nothing without network"),
    (callbacks.EpisodeCheckpoint, {"monitor": None, "mode": "min"}, "mode does nothing without monitor; got 'min'"),
    (callbacks.EpisodeMcap, {"choose": "worst", "below": 0.5}, "below does nothing without choose failures; got 0.5"),
    (callbacks.EpisodeMcap, {"choose": "all", "by": "return"}, "by does nothing without choose worst, best or"),
    (callbacks.EpisodeMcap, {"choose": "all", "most": 5}, "most does nothing without choose worst, best or"),
    (callbacks.FrameStream, {"record": None, "record_every_n_episodes": 9}, "does nothing without record; got 9"),
    (policies.IQN, {"cvar_distance": 5.0}, "cvar_distance does nothing without cvar adaptive; got 5.0"),
    (policies.PPO, {"squash": "atan"}, "squash does nothing without a continuous action; got 'atan'"),
]


@pytest.mark.parametrize(("made", "changes", "message"), IDLE, ids=[message for *_, message in IDLE])
def test_constructors_refuse_arguments_without_effect(made: type, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made(**DEFAULTS[made] | changes)


def test_settings_of_another_kind_are_refused() -> None:
    with pytest.raises(ValueError, match=r"DQN: exploration .*EpsilonGreedy.*{'start': 1\.0}"):
        policies.DQN(**OF_PACKING, exploration={"start": 1.0})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"DQN: targets .*SoftTargets, PeriodicTargets.*0\.01"):
        policies.DQN(**OF_PACKING, targets=0.01)  # type: ignore[arg-type]
