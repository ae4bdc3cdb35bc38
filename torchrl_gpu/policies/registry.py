"""Classes that the settings in a checkpoint may name.

Some are listed here, tasks name theirs, and users register their own.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable, Mapping, Sequence
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

# Values of all settings together.
_MOST_VALUES = 10_000

Class = TypeVar("Class", bound=type)


class Registry:
    """Builder of objects from class paths and plain arguments.

    A run's checkpoint records its settings in this form.

    A path is looked up among the registered classes and never imported.
    """

    def __init__(self, classes: Iterable[type]) -> None:
        self.registered = [*classes]

    @property
    def classes(self) -> list[type]:
        """Registered classes, and those of tasks."""
        classes = [*self.registered]
        for task in tasks():
            classes += [load_part(each) for each in task.classes]
        return classes

    def with_classes(self, classes: Iterable[type]) -> Registry:
        """Return a registry that knows further classes."""
        return Registry([*self.registered, *classes])

    def add(self, cls: type) -> None:
        """Register a class."""
        self.registered.append(cls)

    # What comes back is of a class that only the settings name.
    def build(self, name: str, given: object, *kinds: type) -> Any:
        """Build what settings describe.

        Of a dataclass it is an instance, of any other class a partial with its arguments. ValueError if the settings
        describe something else.

        Args:
            name: Of the setting, in errors.
            given: `class_path` and `init_args`; for a dataclass the arguments alone will do.
            kinds: Classes, or their bases, out of which it must be one; any class if there are none.
        """
        if not isinstance(given, Mapping):
            raise ValueError(f"{name} must be a class_path and its init_args, not {shown(given)}")
        has_path = "class_path" in given
        arguments = (given.get("init_args") or {}) if has_path else given
        if not isinstance(arguments, Mapping):
            raise ValueError(f"{name}: init_args must be arguments by name, not {shown(arguments)}")
        # Only classes of the kind that is asked for may be named, so that a checkpoint cannot put a network where an
        # agent belongs.
        known = [each for each in self.classes if issubclass(each, kinds or object)]
        listed = ", ".join(each.__name__ for each in known) if kinds else "the agents and networks"
        if has_path:
            found = _class_at(name, given["class_path"], known, listed)
        else:
            found = _dataclass_of(name, arguments, known, listed)
        parameters = _parameters(found)
        for each in arguments:
            if each not in parameters:
                raise ValueError(f"{name}: {found.__name__} has no argument {shown(each)}")
        built = {each: self._argument(found, each, value) for each, value in arguments.items()}
        return found(**built) if is_dataclass(found) else partial(found, **built)

    def _argument(self, cls: type, name: str, value: object) -> object:
        """An argument of a class, with the objects that its settings describe."""
        if not isinstance(value, Mapping):
            return value
        if "class_path" in value:
            return self.build(name, value)
        # An argument without a class path is a settings dataclass if the annotation names one, as jsonargparse writes
        # them.
        kind = inspect.signature(cls, eval_str=True).parameters[name].annotation
        named = get_args(kind) or (kind,)
        settings: list[type] = [each for each in self.classes if is_dataclass(each) and each in named]
        return self.build(name, value, *settings) if settings else value


def _class_at(name: str, class_path: object, known: list[type], listed: str) -> type:
    """Known class of a path.

    Paths may leave out the modules of a package, but not all of them: `torchrl_gpu.policies.DQN` names the class of
    `torchrl_gpu.policies.agents.dqn`.
    """
    module, _, class_name = str(class_path).rpartition(".")
    for each in known:
        is_within = module != "torchrl_gpu" and f"{each.__module__}.".startswith(f"{module}.")
        if each.__qualname__ == class_name and is_within:
            return each
    raise ValueError(
        f"{name} must be one of {listed} of torchrl_gpu, or a class of your own that is registered (@register,"
        f" load_policy(…, classes=…), --classes), not {shown(class_path)}"
    )


def _dataclass_of(name: str, arguments: Mapping[str, object], known: list[type], listed: str) -> type:
    """First known dataclass that has all of these arguments."""
    for each in known:
        if is_dataclass(each) and set(arguments) <= set(_parameters(each)):
            return each
    raise ValueError(f"{name} must be the arguments of one of {listed}, not {shown(arguments)}")


def import_classes(where: str, names: str | None) -> list[type]:
    """Import the agents and networks that a user names, for `load_policy`.

    Args:
        where: Place for messages.
        names: module.Class,module.Class, or None.
    """
    found = []
    for name in filter(None, (names or "").split(",")):
        module, _, attribute = name.strip().rpartition(".")
        try:
            each = getattr(importlib.import_module(module), attribute, None)
        except (ImportError, ValueError, TypeError) as error:
            raise ValueError(f"{where}: --classes must be module.Class, not {name!r}: {error}") from error
        if not isinstance(each, type):
            raise ValueError(f"{where}: --classes must be module.Class, and {name!r} is no class")
        found.append(each)
    return found


def _parameters(cls: type) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(cls).parameters


_AGENTS = [ACIQN, DDPG, DQN, IQN, PPO, SAC, Rainbow]
_NETWORKS = [
    vectors.VectorActor,
    vectors.VectorCritic,
    vectors.VectorGaussian,
    vectors.VectorScores,
    vectors.VectorValue,
]
_SETTINGS = [ClipEncoder, EpsilonGreedy, SoftTargets, PeriodicTargets]

REGISTRY = Registry([*_AGENTS, *_NETWORKS, *_SETTINGS])


def register(cls: Class) -> Class:
    """Let settings name a class of your own: an agent, a network or an encoder.

    It also serves as a decorator.
    """
    if issubclass(cls, VideoEncoder):
        register_encoder(cls)
    REGISTRY.add(cls)
    return cls


def check_plain(where: str, value: object) -> None:
    """Raise ValueError unless a tree of lists and dicts is small and plain.

    A tree from outside may refer to itself, so it is walked with a limit and not by recursion.
    """
    # Values that may still come, and those that wait to be looked at.
    left = _MOST_VALUES
    waiting = [value]
    while waiting:
        each = waiting.pop()
        left -= 1
        inner: Sequence[object] | None = None
        if isinstance(each, dict):
            if not all(isinstance(name, str) for name in each):
                raise ValueError(f"{where}: the names of its values must be text")
            inner = list(each.values())
        elif isinstance(each, list | tuple):
            inner = each
        if left - len(waiting) - len(inner or ()) < 0:
            raise ValueError(f"{where} has more than {_MOST_VALUES:,} values")
        if inner is not None:
            waiting.extend(inner)
        elif each is not None and not isinstance(each, bool | int | float | str):
            raise ValueError(f"{where} must be made of numbers, text, lists and dicts, not {shown(each)}")
