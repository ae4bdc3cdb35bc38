"""What a checkpoint says of a run's policy, validated before use."""

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

# How messages name what they look for.
OF_A_RUN = "a checkpoint that `lightning fit --config …` wrote"
NO_ENV = "leave env out: only checkpoints of the hierarchical packer take one"

# Characters of a message about a stranger's file.
_LONGEST_ERROR = 600

# Networks may take this many bytes, and this many more for each byte of the file.
_FREE_BYTES = 2**28
_BYTES_PER_BYTE = 8


@dataclass(frozen=True)
class SavedPolicy:
    """A run's policy as its checkpoint records it.

    Attributes:
        state: Weights by name.
        settings: Arguments of the run's module.
        agent_space: The environment's space as plain data, not yet validated.
        about: Origin, as plain data.
        most_bytes: Bytes that the policy may take.
        registry: Makes the objects that settings describe.
    """

    state: Mapping[str, object]
    settings: Mapping[str, object]
    agent_space: object
    about: dict[str, object]
    most_bytes: int
    registry: Registry

    @classmethod
    def of(cls, content: Mapping[str, object], most_bytes: int, registry: Registry) -> SavedPolicy | None:
        """Read the policy of a checkpoint, or None if no run wrote it.

        Raises:
            ValueError: The record of the run is incomplete or not plain.
        """
        state = content.get("state_dict")
        record = content.get(ENTRY)
        if not isinstance(state, Mapping) or not isinstance(record, Mapping):
            return None
        # The record is the run's own config, from which its agent is made again.
        settings = settings_of_run(record)
        about = origin_of(content, record, settings)
        return cls(state, settings, content.get("agent_space"), about, most_bytes, registry)

    def space(self) -> AgentSpace:
        """The space of the environment that the policy was trained in."""
        check_plain("agent_space", self.agent_space)
        return AgentSpace.from_dict(self.agent_space)

    def build(self, make: Callable[[], Module], prefix: str) -> Module:
        """Build a module with the weights whose names begin with `prefix`."""
        weights = weights_behind(self.state, prefix)
        return build_with_weights(make, weights, self.most_bytes)


class Reader(Protocol):
    """Function that makes the policy of a checkpoint of a task's own runs."""

    def __call__(self, saved: SavedPolicy, env: BatchedEnv | None) -> InferencePolicy | None:
        """Return the policy, or None if this is none of the task's runs.

        `env` is the environment that the user gave, if any. ValueError if the policy needs one, or takes none.
        """
        ...


def settings_of_run(record: Mapping[str, object]) -> Mapping[str, object]:
    """Arguments of the module of a run, from its record.

    ValueError if the record has none.
    """
    settings = recorded_arguments(record)
    if settings is None:
        raise ValueError(f"no record of how its agent is made: load {OF_A_RUN}")
    check_plain("config", settings)
    return settings


def given_arguments(settings: Mapping[str, object], *names: str) -> dict[str, Any]:
    """Pick the named arguments that settings have.

    The constructor that they are for checks them.
    """
    return {name: settings[name] for name in names if name in settings}


def recorded_arguments(record: object) -> Mapping[str, object] | None:
    """Arguments of the module in a run's record, or None."""
    found = record
    for name in ("config", "model", "init_args"):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else None


def origin_of(
    content: Mapping[str, object], record: Mapping[str, object], settings: Mapping[str, object]
) -> dict[str, object]:
    """Module, versions, commit, frames and environment of a run, as plain data."""
    origin = {name: record.get(name) for name in ("module", "versions", "commit")}
    origin["frames"] = content.get("frames")
    origin["env"] = settings.get("env")
    check_plain("record", origin)
    return origin


def weights_behind(state: Mapping[str, object], prefix: str) -> dict[str, object]:
    """Entries of a state dict whose names begin with `prefix`, without the prefix."""
    return {name.removeprefix(prefix): value for name, value in state.items() if str(name).startswith(prefix)}


def build_with_weights(make: Callable[[], Module], weights: Mapping[str, object], most_bytes: int) -> Module:
    """Build a module with weights from a file.

    The module is first made without memory, so that a file that contradicts itself cannot take any: memory is used
    only for weights that are known to fit.
    """
    # The shapes are those that the settings ask for; the file's weights must be exactly these.
    shapes = without_memory(make, "settings", most_bytes)
    weights = unpacked_state("weights", shapes, weights)
    check_weights("weights", weights, shapes)
    # Fresh weights are drawn and thrown away: the caller's generators must not notice.
    with torch.random.fork_rng(devices=[]):
        module = make()
    module.load_state_dict(without_settings(weights, module))
    return module


def most_bytes_for(path: Path) -> int:
    """Bytes that the networks of a file may take."""
    return _FREE_BYTES + _BYTES_PER_BYTE * path.stat().st_size


def describe_error(error: Exception) -> str:
    """What is wrong with a file, in one line of limited length.

    A ValueError is this package's own, and its message stands by itself. Anything else was raised by settings that do
    not fit together, and is named by its type.
    """
    words = " ".join(str(error).split())
    if not isinstance(error, ValueError) or not words:
        kind = type(error).__name__
        words = f"settings fail with {kind}: {words}" if words else f"settings fail with {kind}"
    if len(words) <= _LONGEST_ERROR:
        return words
    return words[: _LONGEST_ERROR - 1] + "…"
