"""Policies from checkpoints and weight files: no code runs, nothing is imported, all content is validated."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

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
    most_bytes_for,
    origin_of,
    settings_of_run,
    weights_behind,
    words_of,
)
from torchrl_gpu.policies.spaces import AgentSpace
from torchrl_gpu.policies.wrapper import PolicyWrapper
from torchrl_gpu.system import arguments
from torchrl_gpu.system.archives import ENTRY, read_archive
from torchrl_gpu.tasks import load_part, tasks

Module = TypeVar("Module", bound=nn.Module)

_PLAIN = "a dict of model_state_dict, obs_dim and action_dim"


def load_policy(
    path: str | Path,
    device: str | torch.device = "auto",
    *,
    env: BatchedEnv | None = None,
    classes: Sequence[type] = (),
) -> InferencePolicy:
    """The greedy policy of a file, ready for inference.

    A file is a checkpoint of one of this package's runs, which needs no config beside it, or a dict
    `{"model_state_dict", "obs_dim", "action_dim"}` that `torch.save` wrote: the weights of linear layers one after the
    other, from observations (…, obs_dim) to actions (…, action_dim); `activation` beside them says what stands between
    them, "relu" without it. The weights of a `BCPolicy` may stand there too; those of several observations want its
    `settings` beside them as `bc_policy`.

    Args:
        path: The file. It is read with `weights_only`; classes that it names must be registered.
        device: As in `get_device`; on whatever device it was saved.
        env: Gives the hierarchical packer the items that it knows; only that takes one.
        classes: Agents and networks of one's own, registered for this call; `register` does so for all.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is something else, is cut off, holds code, other weights than it says, or ones that are not
            finite. The message is one line that says what is wanted.
    """
    chosen, where = get_device(device), f"policy {path}"
    content = read_archive(Path(path), "policy", every_byte=True)
    most_bytes = most_bytes_for(Path(path))
    try:
        policy = _policy(content, env, most_bytes, REGISTRY.with_classes(classes))
        if env is None:
            _try_out(policy, most_bytes)
    except Exception as error:  # of settings that are a stranger's: constructors raise what they like
        raise ValueError(f"{where}: {describe_error(error)}") from error
    return policy.to(chosen)


@torch.no_grad()
def _try_out(policy: InferencePolicy, most_bytes: int) -> None:
    """Runs a policy once on synthetic observations, as its record may contradict itself."""
    space = policy.space
    names = [*policy.in_keys, *(["active"] if "active" in space.observations else [])]
    forms = {name: space.observations[name] for name in names}
    sizes = [math.prod(shape) * getattr(torch, dtype).itemsize for shape, dtype in forms.values()]
    if sum(sizes) > most_bytes:
        raise ValueError(f"want observations of at most {most_bytes:,} bytes; got {sum(sizes):,}")
    seen = {name: space.zeros(name, 1) for name in forms}
    seen = {name: torch.ones_like(value) if value.dtype == torch.bool else value for name, value in seen.items()}
    try:
        action = policy(TensorDict(seen, [1])).get("action")
    except Exception as error:  # of networks in a space that they were not made for: many kinds
        came = f"one where they fail: {words_of(error)}"
        raise ValueError(f"want an agent_space that its networks act in; got {came}") from error
    wanted = (1,) if space.num_actions is not None else (1, *space.action_shape)
    if tuple(action.shape) != wanted:
        raise ValueError(f"want actions of shape {wanted}, as agent_space says; got {tuple(action.shape)}")


def _policy(content: Mapping[str, Any], env: BatchedEnv | None, most_bytes: int, registry: Registry) -> InferencePolicy:
    if "bc_policy" in content or "model_state_dict" in content:
        if env is not None:
            raise ValueError(NO_ENV)
        return (_vectors if "bc_policy" in content else _plain)(content, most_bytes)
    saved = SavedPolicy.of(content, most_bytes, registry)
    if saved is None:
        named = ", ".join(map(str, itertools.islice(content, 5))) or "none"
        raise ValueError(f"want {OF_A_RUN}, or {_PLAIN}; got one with the entries {named}")
    for task in tasks():
        if task.reader:
            read: Reader = load_part(task.reader)
            policy = read(saved, env)
            if policy is not None:
                return policy
    if env is not None:
        raise ValueError(NO_ENV)
    space = saved.space()
    settings = saved.settings
    if "agent" not in settings:
        network = registry.build("network", settings.get("network"), nn.Module)
        given = {name: settings[name] for name in ("temperature",) if name in settings}
        choice = saved.build(lambda: ClonedChoice(space, network(space), **given), "learner.")
        return InferencePolicy(PolicyWrapper(Cloned(space, choice.policy), flat=True), space, "BC", saved.about)
    agent = saved.build(lambda: _agent(space, settings, registry), "agent.")
    return InferencePolicy(PolicyWrapper(agent, flat=True), space, agent.name, saved.about)


def wants_env(path: str | Path) -> bool:
    """True for a checkpoint of the hierarchical packer, for which `load_policy` wants an `env`."""
    record = read_archive(Path(path), "policy").get(ENTRY)
    found: Any = record
    for name in ("config", "model", "init_args"):
        found = found.get(name) if isinstance(found, Mapping) else None
    return isinstance(found, Mapping) and "networks" in found


def _agent(space: AgentSpace, settings: Mapping[str, Any], registry: Registry) -> Agent:
    """The agent that a run's settings describe, with fresh weights, behind an encoder of clips where they have one."""
    make = registry.build("agent", settings["agent"], Agent)
    if settings.get("encoder") is None:
        agent: Agent = make(space)
        return agent
    encoder: ClipEncoder = registry.build("encoder", settings["encoder"], ClipEncoder)
    # The checkpoint holds the encoder's weights: those that it began with are not read again.
    norm = "frozen" if encoder.pretrained and encoder.norm == "auto" else encoder.norm
    encoder = replace(encoder, pretrained=False, norm=norm)
    given = {name: settings[name] for name in ("shift", "reconstruction") if name in settings}
    return FromClips(space, encoder=encoder.make, agent=make, **given)


def _vectors(content: Mapping[str, Any], most_bytes: int) -> InferencePolicy:
    """A `BCPolicy` of a run, or of a file that holds its `model_state_dict` alone."""
    plain = "model_state_dict" in content
    state = content.get("model_state_dict" if plain else "state_dict")
    if not isinstance(state, Mapping):
        raise ValueError(f"want the weights of a BCPolicy beside its bc_policy; got a {type(state).__name__}")
    check_plain("bc_policy", content["bc_policy"])
    make, widths = vectors_of(content["bc_policy"])
    policy = build_with_weights(make, state if plain else weights_behind(state, "learner."), most_bytes)
    if not min(policy.observation_std.min(), policy.action_std.min()) > 0:
        raise ValueError("want standard deviations above 0 to normalise by; got others")
    record: Any = content.get(ENTRY) or {}
    about = origin_of(content, record, settings_of_run(record) if record.get("config") else {})
    if content.get("agent_space") is None:
        space = _unbounded("demonstrations", widths, policy.action_dim)
        return InferencePolicy(policy.policy, space, "BC", about)
    check_plain("agent_space", content["agent_space"])
    space = AgentSpace.from_dict(content["agent_space"])
    shapes = {name: space.observations.get(name, ((),))[0] for name in widths}
    if shapes != {name: (width,) for name, width in widths.items()} or space.action_shape != (policy.action_dim,):
        raise ValueError(f"want a space with vectors {widths} and {policy.action_dim} actions; got one with {shapes}")
    return InferencePolicy(PolicyWrapper(Cloned(space, policy.policy), flat=True), space, "BC", about)


def _plain(content: Mapping[str, Any], most_bytes: int) -> InferencePolicy:
    inputs, outputs = (arguments.whole("file", name, content.get(name), 1, 2**24) for name in ("obs_dim", "action_dim"))
    state = content["model_state_dict"]
    if not isinstance(state, Mapping):
        raise ValueError(f"want {_PLAIN}; got a model_state_dict that is a {type(state).__name__}")
    if "observation_mean" in state:
        settings = {"obs_dim": inputs, "action_dim": outputs, **settings_of(state, outputs)}
        return _vectors({**content, "bc_policy": settings}, most_bytes)
    names, widths = widths_of(state)
    if (widths[0], widths[-1]) != (inputs, outputs):
        raise ValueError(f"want weights from {inputs} numbers to {outputs}, as the file says; got some of {widths}")
    weights = dict(zip(names, state.values(), strict=True))
    network = build_with_weights(lambda: perceptron(widths, content.get("activation", "relu")), weights, most_bytes)
    space = _unbounded("a file", {"observation": inputs}, outputs)
    return InferencePolicy(Entry("action", network), space, "Perceptron")


def _unbounded(source: str, widths: Mapping[str, int], num_numbers: int) -> AgentSpace:
    """Space of vectors of these widths and an action of any real numbers."""
    seen: dict[str, tuple[tuple[int, ...], str]] = {name: ((width,), "float32") for name, width in widths.items()}
    return AgentSpace(source, (), seen, low=(-math.inf,) * num_numbers, high=(math.inf,) * num_numbers)
