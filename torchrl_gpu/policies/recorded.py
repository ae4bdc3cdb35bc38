"""Agents out of the settings that a run's checkpoints record: data, which names classes of this package alone."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torchrl_gpu.arguments import shown
from torchrl_gpu.policies.agents import ACIQN, DDPG, DQN, IQN, PPO, SAC, Agent, Rainbow
from torchrl_gpu.policies.cloning import BCPolicy, ClonedChoice
from torchrl_gpu.policies.exploration import EpsilonGreedy
from torchrl_gpu.policies.networks import navigation, vectors
from torchrl_gpu.policies.packing.actor_critic import PlacementLogits, PlacementValue
from torchrl_gpu.policies.packing.distributional import PlacementAtoms, PlacementQuantiles
from torchrl_gpu.policies.packing.hierarchical import PackerNetworks
from torchrl_gpu.policies.packing.patch_tables import PatchTables
from torchrl_gpu.policies.packing.scores import PlacementScores
from torchrl_gpu.policies.spaces import AgentSpace
from torchrl_gpu.policies.targets import PeriodicTargets, SoftTargets, TargetUpdate
from torchrl_gpu.policies.video.from_clips import FromClips
from torchrl_gpu.policies.video.settings import ClipEncoder

AGENTS = (ACIQN, DDPG, DQN, IQN, PPO, SAC, Rainbow)
NETWORKS = (
    *(navigation.NavigationActor, navigation.NavigationAtoms, navigation.NavigationCritic),
    *(navigation.NavigationGaussian, navigation.NavigationQuantileCritic, navigation.NavigationQuantiles),
    *(navigation.NavigationScores, vectors.VectorActor, vectors.VectorCritic, vectors.VectorGaussian),
    *(navigation.NavigationValue, vectors.VectorScores, vectors.VectorValue),
    *(PlacementAtoms, PlacementLogits, PlacementQuantiles, PlacementScores, PlacementValue),
)
_RECORDED = {*inspect.signature(BCPolicy).parameters, "widths"}
_MOST_VALUES = 10_000  # of all settings together


Classes = Sequence[type]
"""Agents and networks of one's own, beside those of this package."""


def agent_of(space: AgentSpace, settings: Mapping[str, Any], classes: Classes = ()) -> Agent:
    """The agent of a space that a run's `model.init_args` describe, with fresh weights.

    Nothing is imported, read or fetched that the settings name: class paths are looked up among this package's agents
    and networks, and the `classes` that are given.

    Raises:
        ValueError: They describe something else.
    """
    make = _factory(settings.get("agent"), AGENTS, "agent", classes)
    if settings.get("encoder") is None:
        agent: Agent = make(space)
        return agent
    given = {name: settings[name] for name in ("shift", "reconstruction") if name in settings}
    return FromClips(space, encoder=_encoder(settings["encoder"]).make, agent=make, **given)


def choice_of(space: AgentSpace, settings: Mapping[str, Any], classes: Classes = ()) -> ClonedChoice:
    """The cloned choice among a space's actions that a run's `model.init_args` describe, with fresh weights.

    Raises:
        ValueError: They describe something else.
    """
    network = _factory(settings.get("network"), NETWORKS, "network", classes)
    given = {name: settings[name] for name in ("temperature",) if name in settings}
    return ClonedChoice(space, network(space), **given)


def vectors_of(record: Any) -> tuple[Callable[[], BCPolicy], dict[str, int]]:
    """What makes the policy that a `bc_policy` record describes, and how wide each of its observations is.

    The record holds arguments of `BCPolicy`, and `widths`, in the order of its observations; of one they are known.

    Raises:
        ValueError: It describes something else.
    """
    if not isinstance(record, Mapping) or not {"obs_dim", "action_dim"} <= set(record) <= _RECORDED:
        raise ValueError(f"bc_policy: want {', '.join(sorted(_RECORDED))}; got {shown(record)}")
    given = dict(record)
    widths, names = given.pop("widths", None), given.get("observations", ["observation"])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise ValueError(f"bc_policy: want observations that are different names; got {shown(names)}")
    widths = [given["obs_dim"]] if widths is None and len(names) == 1 else widths
    known = isinstance(widths, list) and all(type(width) is int and width > 0 for width in widths)
    if not known or len(widths) != len(names) or sum(widths) != given["obs_dim"]:
        wanted = f"widths of {len(names)} observations, {shown(given['obs_dim'])} numbers in all"
        raise ValueError(f"bc_policy: want {wanted}; got {shown(widths)}")
    return partial(BCPolicy, **given), dict(zip(names, widths, strict=True))


def packer_networks_of(settings: Mapping[str, Any]) -> PackerNetworks:
    """The networks of the hierarchical packer that a run's `model.init_args` describe, with fresh weights.

    Raises:
        ValueError: They describe something else.
    """
    return _factory(settings.get("networks"), (PackerNetworks,), "networks")()


def check_plain(where: str, value: Any) -> None:
    """ValueError unless a tree of lists and dicts has few and plain leaves: one from outside may refer to itself."""
    left, waiting = _MOST_VALUES, [value]
    while waiting:
        each = waiting.pop()
        left -= 1
        inner = list(each.values()) if isinstance(each, dict) else each if isinstance(each, list | tuple) else None
        named = not isinstance(each, dict) or all(isinstance(name, str) for name in each)
        if left - len(waiting) - len(inner or ()) < 0 or not named:
            raise ValueError(f"{where}: want at most {_MOST_VALUES:,} plain values by name; got others")
        if inner is not None:
            waiting.extend(inner)
        elif each is not None and not isinstance(each, bool | int | float | str):
            raise ValueError(f"{where}: want numbers, text, lists and dicts; got {shown(each)}")


def patch_tables_of(space: AgentSpace, settings: Mapping[str, Any]) -> PatchTables:
    """The tables of a space that a run's `model.init_args` describe, with fresh entries.

    Raises:
        ValueError: They describe something else.
    """
    tables: PatchTables = _factory(settings.get("tables"), (PatchTables,), "tables")(space)
    return tables


def _factory(given: Any, known: Classes, name: str, classes: Classes = ()) -> Any:
    """A class of these, or of one's own, with the arguments that belong to it, to be called with what is left."""
    if not isinstance(given, Mapping) or not isinstance(given.get("class_path"), str):
        raise ValueError(f"{name}: want a class_path and its init_args; got {shown(given)}")
    path, arguments = given["class_path"], given.get("init_args") or {}
    found = next((each for each in classes if path == f"{each.__module__}.{each.__qualname__}"), None)
    found = found or next((each for each in known if _is_path_of(path, each)), None)
    if found is None:
        own = "one of your own that is let in (load_policy(…, classes=…), --classes)"
        listed = ", ".join(each.__name__ for each in known)
        raise ValueError(f"{name}: want {own}, or one of {listed} of torchrl_gpu; got {path!r}")
    if not isinstance(arguments, Mapping):
        raise ValueError(f"{name}: want init_args by name; got {shown(arguments)}")
    taken = inspect.signature(found).parameters
    if strange := [each for each in arguments if each not in taken]:
        raise ValueError(f"{name}: want arguments of {found.__name__}; got {shown(strange[0])}")
    is_own = found in classes
    return partial(found, **{each: _argument(each, value, classes, is_own) for each, value in arguments.items()})


def _is_path_of(path: str, cls: type) -> bool:
    """Whether a path names a class in its module, or in a package around it."""
    module, _, name = path.rpartition(".")
    return name == cls.__name__ and module != "torchrl_gpu" and f"{cls.__module__}.".startswith(f"{module}.")


def _argument(name: str, value: Any, classes: Classes, is_own: bool) -> Any:
    """An argument of a class out of plain data; of one's own class any may be a network."""
    if name == "targets":
        return None if value is None else _targets(value)
    if name == "exploration":
        return None if value is None else EpsilonGreedy(**_settings(value, EpsilonGreedy))
    if name in ("network", "actor", "critic") or (is_own and isinstance(value, Mapping) and "class_path" in value):
        return _factory(value, NETWORKS, name, classes)
    return value


def _targets(value: Any) -> TargetUpdate:
    if isinstance(value, Mapping) and "period" in (value.get("init_args") or value):
        return PeriodicTargets(**_settings(value, PeriodicTargets))
    return SoftTargets(**_settings(value, SoftTargets))


def _settings(value: Any, cls: type) -> dict[str, Any]:
    """Arguments of a dataclass, behind its class path or without one."""
    given = value.get("init_args", value) if isinstance(value, Mapping) else value
    if not isinstance(given, Mapping) or not set(given) - {"class_path"} <= set(inspect.signature(cls).parameters):
        raise ValueError(f"{cls.__name__}: want its arguments; got {shown(value)}")
    return {name: each for name, each in given.items() if name != "class_path"}


def _encoder(value: Any) -> ClipEncoder:
    """The settings of an encoder whose weights the checkpoint holds: those that it began with are not read again."""
    given = _settings(value, ClipEncoder)
    if given.get("pretrained") and given.get("norm", "auto") == "auto":
        given["norm"] = "frozen"
    return ClipEncoder(**given | {"pretrained": False})
