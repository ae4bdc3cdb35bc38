"""Policies from checkpoints and weight files: no code runs, nothing is imported, all content is validated."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from tensordict import TensorDict
from torch import nn

from torchrl_gpu.device import get_device
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.policies.agents import Agent
from torchrl_gpu.policies.cloning import Cloned, ClonedChoice, settings_of, vectors_of
from torchrl_gpu.policies.encoders.from_clips import FromClips
from torchrl_gpu.policies.encoders.settings import ClipEncoder
from torchrl_gpu.policies.inference import InferencePolicy
from torchrl_gpu.policies.networks.vectors import perceptron, widths_of
from torchrl_gpu.policies.packing.hierarchical.packer import HierarchicalPacker, PackerNetworks
from torchrl_gpu.policies.packing.ntuple.packed_tables import unpack_tables
from torchrl_gpu.policies.packing.ntuple.tables import PatchTables
from torchrl_gpu.policies.packing.placement_values import NAMES, LinearPlacementValues
from torchrl_gpu.policies.packing.pretrained import PackingPolicy, register_reader
from torchrl_gpu.policies.policy import Entry
from torchrl_gpu.policies.registry import REGISTRY, Registry, check_plain
from torchrl_gpu.policies.spaces import AgentSpace
from torchrl_gpu.policies.weights import check_weights, without_memory, without_settings
from torchrl_gpu.policies.wrapper import PolicyWrapper
from torchrl_gpu.system import arguments
from torchrl_gpu.system.archives import ENTRY, read_archive

Module = TypeVar("Module", bound=nn.Module)

_LONGEST = 600  # characters of an error
_FREE_BYTES, _BYTES_PER_BYTE = 2**28, 8  # that networks may take, and how many more for each byte of the file
_OF_A_RUN = "a checkpoint that `lightning fit --config …` wrote"
_NO_ENV = "want no env, which only the hierarchical packer takes; got one"
_PLAIN = "a dict of model_state_dict, obs_dim and action_dim"


def load_policy(
    path: str | Path,
    device: str | torch.device = "auto",
    *,
    env: PackingEnv | None = None,
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
    most_bytes = _FREE_BYTES + _BYTES_PER_BYTE * Path(path).stat().st_size
    try:
        policy = _policy(content, env, most_bytes, Registry([*REGISTRY.classes, *classes]))
        if env is None:
            _try_out(policy, most_bytes)
    except Exception as error:  # of settings that are a stranger's: constructors raise what they like
        raise ValueError(f"{where}: {_said(error)}") from error
    return policy.to(chosen)


def _words(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _said(error: Exception) -> str:
    words = _words(error)
    words = words if "; got" in words else f"want settings that an agent can be made of; got what fails with: {words}"
    return words if len(words) <= _LONGEST else words[: _LONGEST - 1] + "…"


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
        came = f"one where they fail: {_words(error)}"
        raise ValueError(f"want an agent_space that its networks act in; got {came}") from error
    wanted = (1,) if space.num_actions is not None else (1, *space.action_shape)
    if tuple(action.shape) != wanted:
        raise ValueError(f"want actions of shape {wanted}, as agent_space says; got {tuple(action.shape)}")


def _policy(content: Mapping[str, Any], env: PackingEnv | None, most_bytes: int, registry: Registry) -> InferencePolicy:
    if "bc_policy" in content or "model_state_dict" in content:
        if env is not None:
            raise ValueError(_NO_ENV)
        return (_vectors if "bc_policy" in content else _plain)(content, most_bytes)
    state, record = content.get("state_dict"), content.get(ENTRY)
    if not isinstance(state, Mapping) or not isinstance(record, Mapping):
        named = ", ".join(map(str, itertools.islice(content, 5))) or "none"
        raise ValueError(f"want {_OF_A_RUN}, or {_PLAIN}; got one with the entries {named}")
    settings = _settings(record)
    about = _about(content, record, settings)
    if "networks" in settings:
        return _packer(state, settings, env, about, most_bytes)
    if env is not None:
        raise ValueError(_NO_ENV)
    space = _space(content)
    if _packs_by_values(settings):
        name = "afterstate values" if "tables" in settings else "placement values"
        values = _packing_values(state, settings, space, most_bytes, registry)
        return InferencePolicy(PackingPolicy(space, values), space, name, about)
    if "agent" not in settings:
        network = registry.build("network", settings.get("network"), nn.Module)
        given = {name: settings[name] for name in ("temperature",) if name in settings}
        choice = _built(lambda: ClonedChoice(space, network(space), **given), _behind(state, "learner."), most_bytes)
        return InferencePolicy(PolicyWrapper(Cloned(space, choice.policy), flat=True), space, "BC", about)
    agent = _built(lambda: _agent(space, settings, registry), _behind(state, "agent."), most_bytes)
    return InferencePolicy(PolicyWrapper(agent, flat=True), space, agent.name, about)


def _packs_by_values(settings: Mapping[str, Any]) -> bool:
    return "tables" in settings or "members" in settings


def _packing_values(
    state: Mapping[str, Any], settings: Mapping[str, Any], space: AgentSpace, most_bytes: int, registry: Registry
) -> PatchTables | LinearPlacementValues:
    """The values of bins or of placements that a run has learned, in an environment's space."""
    if "tables" in settings:
        make_tables = registry.build("tables", settings["tables"], PatchTables)
        tables: PatchTables = _built(lambda: make_tables(space), _behind(state, "tables."), most_bytes)
        return tables
    candidates = arguments.whole("config", "candidates", settings.get("candidates", 40), 1, 2**16)
    make_values = partial(LinearPlacementValues, space, [0.0] * len(NAMES), candidates)
    values: LinearPlacementValues = _built(make_values, _behind(state, "values."), most_bytes)
    return values


def packing_policy(path: str | Path, space: AgentSpace | None = None) -> PackingPolicy:
    """The policy of a checkpoint whose run learned values of bins or of placements, on the CPU.

    Args:
        path: The file.
        space: Of the environment that it will pack in; None stands for the one that it was trained in.

    Raises:
        ValueError: It is something else, is cut off, or its values do not fit that environment.
    """
    where = f"policy {path}"
    content = read_archive(Path(path), "policy", every_byte=True)
    most_bytes = _FREE_BYTES + _BYTES_PER_BYTE * Path(path).stat().st_size
    try:
        state, record = content.get("state_dict"), content.get(ENTRY)
        settings = _settings(record) if isinstance(record, Mapping) else {}
        if not isinstance(state, Mapping) or not _packs_by_values(settings):
            raise ValueError(
                "want a checkpoint of a run that learns values of bins or of placements (AfterstateLearning,"
                " PlacementEvolution), which pack in other environments than their own, too; got another one"
            )
        about = _about(content, record or {}, settings)
        found = _space(content) if space is None else space
        return PackingPolicy(found, _packing_values(state, settings, found, most_bytes, REGISTRY), about)
    except Exception as error:  # of settings that are a stranger's, as in `load_policy`
        raise ValueError(f"{where}: {_said(error)}") from error


register_reader(packing_policy)


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


def _space(content: Mapping[str, Any]) -> AgentSpace:
    check_plain("agent_space", content.get("agent_space"))
    return AgentSpace.from_dict(content.get("agent_space"))


def _about(content: Mapping[str, Any], record: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    about = {name: record.get(name) for name in ("module", "versions", "commit")}
    about |= {"frames": content.get("frames"), "env": settings.get("env")}
    check_plain("record", about)
    return about


def _settings(record: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Any = record
    for name in ("config", "model", "init_args"):
        found = found.get(name) if isinstance(found, Mapping) else None
    if not isinstance(found, Mapping):
        raise ValueError(f"want {_OF_A_RUN}, which records how its agent is made; got one without that record")
    check_plain("config", found)
    return found


def _behind(state: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in state.items() if str(name).startswith(prefix)}


def _built(make: Callable[[], Module], weights: Mapping[str, Any], most_bytes: int) -> Module:
    """The module that a function makes, with weights from a file; no memory is taken before they are known to fit."""
    shapes = without_memory(make, "settings", most_bytes)
    weights = unpack_tables("weights", shapes, weights)
    check_weights("weights", weights, shapes)
    with torch.random.fork_rng(devices=[]):  # fresh weights are drawn, and thrown away
        module = make()
    module.load_state_dict(without_settings(weights, module))
    return module


def _packer(
    state: Mapping[str, Any],
    settings: Mapping[str, Any],
    env: PackingEnv | None,
    about: Mapping[str, Any],
    most_bytes: int,
) -> InferencePolicy:
    if env is None:
        raise ValueError(
            "want the environment of the hierarchical packer, whose item maps no checkpoint holds: env=PackingEnv(…)"
            " with the arguments of its run, or the --config of `torchrl-gpu serve-policy`, which serves it where"
            " `export` cannot; got none"
        )
    make = REGISTRY.build("networks", settings["networks"], PackerNetworks)
    networks: PackerNetworks = _built(make, _behind(state, "networks."), most_bytes)
    names = ("margin", "shortlist", "item_shortlist")
    given = {name: settings[name] for name in names if name in settings}
    return InferencePolicy(HierarchicalPacker(env, networks, **given), AgentSpace.of(env), "HierarchicalPacker", about)


def _vectors(content: Mapping[str, Any], most_bytes: int) -> InferencePolicy:
    """A `BCPolicy` of a run, or of a file that holds its `model_state_dict` alone."""
    plain = "model_state_dict" in content
    state = content.get("model_state_dict" if plain else "state_dict")
    if not isinstance(state, Mapping):
        raise ValueError(f"want the weights of a BCPolicy beside its bc_policy; got a {type(state).__name__}")
    check_plain("bc_policy", content["bc_policy"])
    make, widths = vectors_of(content["bc_policy"])
    policy = _built(make, state if plain else _behind(state, "learner."), most_bytes)
    if not min(policy.observation_std.min(), policy.action_std.min()) > 0:
        raise ValueError("want standard deviations above 0 to normalise by; got others")
    record: Any = content.get(ENTRY) or {}
    about = _about(content, record, _settings(record) if record.get("config") else {})
    if content.get("agent_space") is None:
        space = _unbounded("demonstrations", widths, policy.action_dim)
        return InferencePolicy(policy.policy, space, "BC", about)
    space = _space(content)
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
    network = _built(lambda: perceptron(widths, content.get("activation", "relu")), weights, most_bytes)
    space = _unbounded("a file", {"observation": inputs}, outputs)
    return InferencePolicy(Entry("action", network), space, "Perceptron")


def _unbounded(source: str, widths: Mapping[str, int], num_numbers: int) -> AgentSpace:
    """Space of vectors of these widths and an action of any real numbers."""
    seen: dict[str, tuple[tuple[int, ...], str]] = {name: ((width,), "float32") for name, width in widths.items()}
    return AgentSpace(source, (), seen, low=(-math.inf,) * num_numbers, high=(math.inf,) * num_numbers)
