"""Policies from checkpoints and weight files.

No code runs, nothing is imported, and all content is validated.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import torch
from tensordict import TensorDict
from torch import nn

from torchrl_gpu.device import get_device
from torchrl_gpu.envs.base import BatchedEnv
from torchrl_gpu.policies.agents import Agent
from torchrl_gpu.policies.cloning import Cloned, ClonedChoice, settings_of, vectors_of
from torchrl_gpu.policies.encoders.from_clips import FromClips
from torchrl_gpu.policies.encoders.settings import ClipEncoder
from torchrl_gpu.policies.inference import InferencePolicy
from torchrl_gpu.policies.networks.vectors import perceptron, widths_of
from torchrl_gpu.policies.policy import Entry
from torchrl_gpu.policies.registry import REGISTRY, Registry, check_plain
from torchrl_gpu.policies.saved import (
    NO_ENV,
    OF_A_RUN,
    Reader,
    SavedPolicy,
    build_with_weights,
    describe_error,
    given_arguments,
    most_bytes_for,
    origin_of,
    recorded_arguments,
    settings_of_run,
    weights_behind,
)
from torchrl_gpu.policies.spaces import AgentSpace
from torchrl_gpu.policies.wrapper import PolicyWrapper
from torchrl_gpu.system import arguments
from torchrl_gpu.system.archives import ENTRY, read_archive
from torchrl_gpu.tasks import load_part, tasks

Module = TypeVar("Module", bound=nn.Module)

# How messages name a file of weights alone.
_PLAIN = "a dict of model_state_dict, obs_dim and action_dim"

# Entries of such a file: no network of vectors is wider.
_MOST_NUMBERS = 2**24

# Entries that a message names.
_NAMED = 5


def load_policy(
    path: str | Path,
    device: str | torch.device = "auto",
    *,
    env: BatchedEnv | None = None,
    classes: Sequence[type] = (),
) -> InferencePolicy:
    """Load the greedy policy of a file, ready for inference.

    A file is a checkpoint of one of this package's runs, which needs no config, or a dict
    `{"model_state_dict", "obs_dim", "action_dim"}` that `torch.save` wrote. Such a dict holds the weights of linear
    layers in their order, from observations (…, obs_dim) to actions (…, action_dim); `activation` names the function
    between them, "relu" by default. It may also hold the weights of a `BCPolicy`; one of several observations needs
    its `settings` as `bc_policy`.

    Args:
        path: The file. It is read with `weights_only`; classes that it names must be registered.
        device: As in `get_device`, whatever device it was saved on.
        env: Gives the hierarchical packer the items that it knows; no other policy takes one.
        classes: Agents and networks of your own, registered for this call; `register` does so for all calls.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is something else, is cut off, holds code, other weights than it says, or weights that are not
            finite. The message is one line that says what is wrong.
    """
    chosen = get_device(device)
    where = f"policy {path}"
    # Every byte is checked, since a damaged weight is still a number.
    content = read_archive(Path(path), "policy", every_byte=True)
    most_bytes = most_bytes_for(Path(path))
    try:
        policy = _policy(content, env, most_bytes, REGISTRY.with_classes(classes))
        if env is None:
            _try_out(policy, most_bytes)
    # Settings are a stranger's, and constructors raise what they like.
    except Exception as error:
        raise ValueError(f"{where}: {describe_error(error)}") from error
    return policy.to(chosen)


@torch.no_grad()
def _try_out(policy: InferencePolicy, most_bytes: int) -> None:
    """Run a policy once on made-up observations: its record may contradict itself."""
    space = policy.space
    names = [*policy.in_keys]
    if "active" in space.observations:
        names.append("active")
    forms = {name: space.observations[name] for name in names}
    num_bytes = 0
    for shape, dtype in forms.values():
        num_bytes += math.prod(shape) * getattr(torch, dtype).itemsize
    if num_bytes > most_bytes:
        raise ValueError(f"agent_space has observations of {num_bytes:,} bytes, more than {most_bytes:,}")
    # Zeros, and true masks: every action is legal and every robot takes part.
    seen = {name: space.zeros(name, 1) for name in forms}
    for name, value in seen.items():
        if value.dtype == torch.bool:
            seen[name] = torch.ones_like(value)
    # Networks in a space that they were not made for raise errors of many kinds.
    try:
        action = policy(TensorDict(dict(seen), [1])).get("action")
    except Exception as error:
        raise ValueError(f"its networks do not fit its agent_space: {describe_error(error)}") from error
    shape = (1,) if space.num_actions is not None else (1, *space.action_shape)
    if tuple(action.shape) != shape:
        raise ValueError(f"its networks give actions {tuple(action.shape)}, and agent_space says {shape}")


def _policy(
    content: Mapping[str, object], env: BatchedEnv | None, most_bytes: int, registry: Registry
) -> InferencePolicy:
    if "bc_policy" in content or "model_state_dict" in content:
        if env is not None:
            raise ValueError(NO_ENV)
        return _vectors(content, most_bytes) if "bc_policy" in content else _plain(content, most_bytes)
    saved = SavedPolicy.of(content, most_bytes, registry)
    if saved is None:
        named = ", ".join(map(str, itertools.islice(content, _NAMED))) or "none"
        raise ValueError(f"its entries are {named}: load {OF_A_RUN}, or {_PLAIN}")
    policy = _policy_of_task(saved, env)
    if policy is not None:
        return policy
    if env is not None:
        raise ValueError(NO_ENV)
    if "agent" in saved.settings:
        return _agent_policy(saved)
    return _cloned_choice(saved)


def _policy_of_task(saved: SavedPolicy, env: BatchedEnv | None) -> InferencePolicy | None:
    """Policy that a task reads from a checkpoint of its own runs, or None."""
    for task in tasks():
        if task.reader:
            read: Reader = load_part(task.reader)
            policy = read(saved, env)
            if policy is not None:
                return policy
    return None


def _agent_policy(saved: SavedPolicy) -> InferencePolicy:
    """Greedy policy of a trained agent."""
    space = saved.space()
    agent = saved.build(lambda: _agent(space, saved.settings, saved.registry), "agent.")
    return InferencePolicy(PolicyWrapper(agent, flat=True), space, agent.name, saved.about)


def _cloned_choice(saved: SavedPolicy) -> InferencePolicy:
    """Greedy policy that was cloned from demonstrations of discrete actions."""
    space = saved.space()
    settings = saved.settings
    network = saved.registry.build("network", settings.get("network"), nn.Module)
    given = given_arguments(settings, "temperature")
    choice = saved.build(lambda: ClonedChoice(space, network(space), **given), "learner.")
    policy = PolicyWrapper(Cloned(space, choice.policy), flat=True)
    return InferencePolicy(policy, space, "BC", saved.about)


def wants_env(path: str | Path) -> bool:
    """Whether a file is a checkpoint of the hierarchical packer.

    `load_policy` needs an `env` for it.
    """
    record = read_archive(Path(path), "policy").get(ENTRY)
    settings = recorded_arguments(record)
    return settings is not None and "networks" in settings


def _agent(space: AgentSpace, settings: Mapping[str, object], registry: Registry) -> Agent:
    """Agent that a run's settings describe, with fresh weights.

    It stands behind an encoder of clips if the settings have one.
    """
    make = registry.build("agent", settings["agent"], Agent)
    if settings.get("encoder") is None:
        agent: Agent = make(space)
        return agent
    encoder: ClipEncoder = registry.build("encoder", settings["encoder"], ClipEncoder)
    # The checkpoint holds the encoder's weights: pretrained ones need not be read again.
    # Without them "auto" would mean other layers than those of the checkpoint, so that it is resolved first.
    norm = "frozen" if encoder.pretrained and encoder.norm == "auto" else encoder.norm
    encoder = replace(encoder, pretrained=False, norm=norm)
    given = given_arguments(settings, "shift", "reconstruction")
    return FromClips(space, encoder=encoder.make, agent=make, **given)


def _vectors(content: Mapping[str, object], most_bytes: int) -> InferencePolicy:
    """`BCPolicy` of a run, or of a file that holds its `model_state_dict` alone."""
    plain = "model_state_dict" in content
    state = content.get("model_state_dict" if plain else "state_dict")
    if not isinstance(state, Mapping):
        raise ValueError(f"the weights of its BCPolicy must be a dict, not a {type(state).__name__}")
    check_plain("bc_policy", content["bc_policy"])
    make, widths = vectors_of(content["bc_policy"])
    policy = build_with_weights(make, state if plain else weights_behind(state, "learner."), most_bytes)
    if not min(policy.observation_std.min(), policy.action_std.min()) > 0:
        raise ValueError("observation_std and action_std must be above 0: actions are normalised by them")
    record = content.get(ENTRY) or {}
    if not isinstance(record, Mapping):
        raise ValueError(f"its record must be a dict, not a {type(record).__name__}")
    about = origin_of(content, record, settings_of_run(record) if record.get("config") else {})
    if content.get("agent_space") is None:
        space = _unbounded("demonstrations", widths, policy.action_dim)
        return InferencePolicy(policy.policy, space, "BC", about)
    check_plain("agent_space", content["agent_space"])
    space = AgentSpace.from_dict(content["agent_space"])
    shapes = {name: space.observations.get(name, ((),))[0] for name in widths}
    wanted_shapes = {name: (width,) for name, width in widths.items()}
    if shapes != wanted_shapes or space.action_shape != (policy.action_dim,):
        raise ValueError(
            f"its agent_space observes {shapes} and has {space.action_shape[0]} action numbers, where bc_policy has"
            f" vectors {widths} and {policy.action_dim} action numbers"
        )
    return InferencePolicy(PolicyWrapper(Cloned(space, policy.policy), flat=True), space, "BC", about)


def _plain(content: Mapping[str, object], most_bytes: int) -> InferencePolicy:
    """Policy of a file that holds weights of linear layers, or of a `BCPolicy`."""
    obs_dim = arguments.whole("file", "obs_dim", content.get("obs_dim"), 1, _MOST_NUMBERS)
    action_dim = arguments.whole("file", "action_dim", content.get("action_dim"), 1, _MOST_NUMBERS)
    state = content["model_state_dict"]
    if not isinstance(state, Mapping):
        raise ValueError(f"model_state_dict must be a dict of weights, not a {type(state).__name__}")
    if "observation_mean" in state:
        settings = {"obs_dim": obs_dim, "action_dim": action_dim, **settings_of(state, action_dim)}
        return _vectors({**content, "bc_policy": settings}, most_bytes)
    # The names in a file are the user's own: only the order of the layers counts.
    names, widths = widths_of(state)
    if (widths[0], widths[-1]) != (obs_dim, action_dim):
        raise ValueError(f"obs_dim {obs_dim} and action_dim {action_dim} do not fit its layers of widths {widths}")
    weights = dict(zip(names, state.values(), strict=True))
    activation = content.get("activation", "relu")
    network = build_with_weights(lambda: perceptron(widths, activation), weights, most_bytes)
    space = _unbounded("a file", {"observation": obs_dim}, action_dim)
    policy = Entry("action", network)
    return InferencePolicy(policy, space, "Perceptron")


def _unbounded(source: str, widths: Mapping[str, int], num_numbers: int) -> AgentSpace:
    """Space of vectors of these widths and an action of any real numbers."""
    seen: dict[str, tuple[tuple[int, ...], str]] = {}
    for name, width in widths.items():
        seen[name] = ((width,), "float32")
    low = (-math.inf,) * num_numbers
    high = (math.inf,) * num_numbers
    return AgentSpace(source, (), seen, low=low, high=high)
