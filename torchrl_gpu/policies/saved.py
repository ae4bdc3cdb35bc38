"""What a checkpoint says of a run's policy, validated before anything is made of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import nn

from torchrl_gpu.envs.base import BatchedEnv
from torchrl_gpu.policies.inference import InferencePolicy
from torchrl_gpu.policies.registry import Registry, check_plain
from torchrl_gpu.policies.spaces import AgentSpace
from torchrl_gpu.policies.weights import check_weights, unpacked_state, without_memory, without_settings
from torchrl_gpu.system.archives import ENTRY

Module = TypeVar("Module", bound=nn.Module)

OF_A_RUN = "a checkpoint that `lightning fit --config …` wrote"
NO_ENV = "want no env, which only the hierarchical packer takes; got one"

_LONGEST_ERROR = 600

# Networks may take this many bytes, and this many more for each byte of the file.
_FREE_BYTES = 2**28
_BYTES_PER_BYTE = 8


@dataclass(frozen=True)
class SavedPolicy:
    """A run's policy as its checkpoint has it.

    Attributes:
        state: Weights by name.
        settings: Arguments of the run's module.
        agent_space: The environment's space as plain data, not yet validated.
        about: Origin, as plain data.
        most_bytes: That the policy may take.
        registry: Makes the objects that settings describe.
    """

    state: Mapping[str, Any]
    settings: Mapping[str, Any]
    agent_space: object
    about: dict[str, Any]
    most_bytes: int
    registry: Registry

    @classmethod
    def of(cls, content: Mapping[str, Any], most_bytes: int, registry: Registry) -> SavedPolicy | None:
        """The policy of a checkpoint; None where it is no checkpoint of a run.

        Raises:
            ValueError: The record of the run is something else.
        """
        state = content.get("state_dict")
        record = content.get(ENTRY)
        if not isinstance(state, Mapping) or not isinstance(record, Mapping):
            return None
        settings = settings_of_run(record)
        about = origin_of(content, record, settings)
        return cls(state, settings, content.get("agent_space"), about, most_bytes, registry)

    def space(self) -> AgentSpace:
        """The space of the environment that the policy was trained in."""
        check_plain("agent_space", self.agent_space)
        return AgentSpace.from_dict(self.agent_space)

    def build(self, make: Callable[[], Module], prefix: str) -> Module:
        """The module that a function makes, with the weights whose names begin with `prefix`."""
        return build_with_weights(make, weights_behind(self.state, prefix), self.most_bytes)


class Reader(Protocol):
    """Makes the policy of a checkpoint of a task's own runs."""

    def __call__(self, saved: SavedPolicy, env: BatchedEnv | None) -> InferencePolicy | None:
        """The policy; None where it is not one of these runs.

        `env` is the environment that the user gave, if any. ValueError where the policy needs one, or takes none.
        """
        ...


def settings_of_run(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Arguments of the module of a run, from its record; ValueError where it has none."""
    found: Any = record
    for name in ("config", "model", "init_args"):
        found = found.get(name) if isinstance(found, Mapping) else None
    if not isinstance(found, Mapping):
        raise ValueError(f"want {OF_A_RUN}, which records how its agent is made; got one without that record")
    check_plain("config", found)
    return found


def origin_of(content: Mapping[str, Any], record: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Module, versions, commit, frames and environment of a run, as plain data."""
    about = {name: record.get(name) for name in ("module", "versions", "commit")}
    about |= {"frames": content.get("frames"), "env": settings.get("env")}
    check_plain("record", about)
    return about


def weights_behind(state: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """The entries of a state dict whose names begin with `prefix`, without it."""
    return {name.removeprefix(prefix): value for name, value in state.items() if str(name).startswith(prefix)}


def build_with_weights(make: Callable[[], Module], weights: Mapping[str, Any], most_bytes: int) -> Module:
    """The module that a function makes, with weights from a file.

    No memory is taken before the weights are known to fit.
    """
    shapes = without_memory(make, "settings", most_bytes)
    weights = unpacked_state("weights", shapes, weights)
    check_weights("weights", weights, shapes)
    # Fresh weights are drawn, and thrown away.
    with torch.random.fork_rng(devices=[]):
        module = make()
    module.load_state_dict(without_settings(weights, module))
    return module


def most_bytes_for(path: Path) -> int:
    """Bytes that the networks of a file may take."""
    return _FREE_BYTES + _BYTES_PER_BYTE * path.stat().st_size


def words_of(error: Exception) -> str:
    """The message of an error in one line, or its type where it has none."""
    return " ".join(str(error).split()) or type(error).__name__


def describe_error(error: Exception) -> str:
    """What is wrong with a file, in one line of limited length."""
    words = words_of(error)
    if "; got" not in words:
        words = f"want settings that an agent can be made of; got what fails with: {words}"
    return words if len(words) <= _LONGEST_ERROR else words[: _LONGEST_ERROR - 1] + "…"
