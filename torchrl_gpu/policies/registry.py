"""Classes that the settings in a checkpoint may name: those listed here, and those that users register."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass
from functools import partial
from typing import Any, TypeVar, get_args

from torchrl_gpu.policies.agents import ACIQN, DDPG, DQN, IQN, PPO, SAC, Rainbow
from torchrl_gpu.policies.encoders.clips import VideoEncoder, register_encoder
from torchrl_gpu.policies.encoders.settings import ClipEncoder
from torchrl_gpu.policies.exploration import EpsilonGreedy
from torchrl_gpu.policies.networks import vectors
from torchrl_gpu.policies.targets import PeriodicTargets, SoftTargets
from torchrl_gpu.system.arguments import shown
from torchrl_gpu.tasks import load_part, tasks

_MOST_VALUES = 10_000  # of all settings together

Class = TypeVar("Class", bound=type)


class Registry:
    """Makes objects from class paths and their arguments, which are plain data, as a run's checkpoints record them.

    A path is looked up among the registered classes and never imported.
    """

    def __init__(self, classes: Iterable[type]) -> None:
        self._classes = [*classes]

    @property
    def classes(self) -> list[type]:
        """The registered classes, and those of tasks."""
        of_tasks = [load_part(each) for task in tasks() for each in task.classes]
        return [*self._classes, *of_tasks]

    def with_classes(self, classes: Iterable[type]) -> Registry:
        """A registry that knows further classes."""
        return Registry([*self._classes, *classes])

    def add(self, cls: type) -> None:
        """Register a class."""
        self._classes.append(cls)

    def build(self, name: str, given: Any, *kinds: type) -> Any:
        """The object that settings describe: of a dataclass an instance, else the class as a partial of its arguments.

        ValueError where it describes something else.

        Args:
            name: Of the setting, in errors.
            given: `class_path` and `init_args`; of a dataclass the arguments alone will do.
            kinds: Classes of which it is to be one, or bases of them; any class without.
        """
        if not isinstance(given, Mapping):
            raise ValueError(f"{name}: want a class_path and its init_args; got {shown(given)}")
        arguments = given.get("init_args") or {} if "class_path" in given else given
        if not isinstance(arguments, Mapping):
            raise ValueError(f"{name}: want init_args by name; got {shown(arguments)}")
        known = [each for each in self.classes if issubclass(each, kinds or object)]
        listed = ", ".join(each.__name__ for each in known) if kinds else "the agents and networks"
        if "class_path" in given:
            module, _, class_name = str(given["class_path"]).rpartition(".")
            fits = [
                each
                for each in known  # in this module, or in a package around it
                if each.__qualname__ == class_name
                and module != "torchrl_gpu"
                and f"{each.__module__}.".startswith(f"{module}.")
            ]
            own = "a class of your own that is registered (@register, load_policy(…, classes=…), --classes)"
            wanted, came = f"one of {listed} of torchrl_gpu, or {own}", given["class_path"]
        else:
            fits = [each for each in known if is_dataclass(each) and set(arguments) <= set(_parameters(each))]
            wanted, came = f"the arguments of one of {listed}", given
        if not fits:
            raise ValueError(f"{name}: want {wanted}; got {shown(came)}")
        found = fits[0]
        if strange := [each for each in arguments if each not in _parameters(found)]:
            raise ValueError(f"{name}: want arguments of {found.__name__}; got {shown(strange[0])}")
        made = {each: self._argument(found, each, value) for each, value in arguments.items()}
        return found(**made) if is_dataclass(found) else partial(found, **made)

    def _argument(self, cls: type, name: str, value: Any) -> Any:
        """An argument of a class, with the objects that its settings describe."""
        if not isinstance(value, Mapping):
            return value
        if "class_path" in value:
            return self.build(name, value)
        kind = inspect.signature(cls, eval_str=True).parameters[name].annotation
        named = get_args(kind) or (kind,)
        settings: list[type] = [each for each in self.classes if is_dataclass(each) and each in named]
        return self.build(name, value, *settings) if settings else value


def import_classes(where: str, names: str | None) -> list[type]:
    """Imports the agents and networks of one's own that a user names: module.Class,module.Class; for `load_policy`."""
    found = []
    for name in filter(None, (names or "").split(",")):
        module, _, attribute = name.strip().rpartition(".")
        try:
            each = getattr(importlib.import_module(module), attribute, None)
        except (ImportError, ValueError, TypeError) as error:
            raise ValueError(f"{where}: --classes must be module.Class; got {name!r}: {error}") from error
        if not isinstance(each, type):
            raise ValueError(f"{where}: --classes must be module.Class; got {name!r}, which is none")
        found.append(each)
    return found


def _parameters(cls: type) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(cls).parameters


REGISTRY = Registry(
    [
        *(ACIQN, DDPG, DQN, IQN, PPO, SAC, Rainbow),
        *(vectors.VectorActor, vectors.VectorCritic, vectors.VectorGaussian, vectors.VectorScores, vectors.VectorValue),
        *(ClipEncoder, EpsilonGreedy, SoftTargets, PeriodicTargets),
    ]
)


def register(cls: Class) -> Class:
    """Lets settings name a class of one's own, an agent, a network or an encoder of clips; also a decorator."""
    if issubclass(cls, VideoEncoder):
        register_encoder(cls)
    REGISTRY.add(cls)
    return cls


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
