"""Checkpoints as runs of the command line write them, without the runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from tests.policies.navigation_spaces import AGENTS, make, networks_for, states
from tests.training.tiny import packing_env
from torchrl_gpu import policies
from torchrl_gpu.envs import BatchedEnv
from torchrl_gpu.policies import Agent, AgentSpace, BCPolicy, ClipEncoder, ClonedChoice, FromClips
from torchrl_gpu.policies.cloning import Cloned
from torchrl_gpu.system.archives import ENTRY

CLIP = (4, 3, 16, 16)
PACKING = {"DQN": "PlacementScores", "IQN": "PlacementQuantiles", "Rainbow": "PlacementAtoms"}


def class_path(name: str, **arguments: Any) -> dict[str, Any]:
    """A class of the package with its arguments, as a configuration holds it."""
    return {"class_path": f"torchrl_gpu.policies.{name}", "init_args": arguments}


def content_of(agent: Agent, init_args: dict[str, Any], env: dict[str, Any] | None = None) -> dict[str, Any]:
    """Build a checkpoint as Lightning saves it with this agent.

    As far as loading it depends on it.
    """
    arguments = {"env": class_of_env(agent.space, env or {}), **init_args}
    config = {"model": {"class_path": "torchrl_gpu.training.OffPolicy", "init_args": arguments}}
    return {
        "state_dict": {f"agent.{name}": value for name, value in agent.state_dict().items()},
        "global_step": 6,
        "frames": 96,
        "agent_space": agent.space.to_dict(),
        ENTRY: {"config": config, "versions": {"torch": str(torch.__version__)}, "commit": None, "module": "OffPolicy"},
    }


def class_of_env(space: AgentSpace, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"class_path": f"torchrl_gpu.envs.{space.source}", "init_args": arguments}


@torch.no_grad()
def stir(weights: Iterable[Tensor], size: float = 0.1) -> None:
    for weight in weights:
        weight.add_(size * torch.randn_like(weight))


def navigator(name: str, **arguments: Any) -> tuple[Agent, dict[str, Any]]:
    """Return a navigation agent, and how a configuration names it.

    Its weights differ from those of a fresh one.
    """
    networks = networks_for(name)
    named = {key: class_path(getattr(net, "func", net).__name__) for key, net in networks.items()}
    for key, net in networks.items():
        named[key]["init_args"] = dict(getattr(net, "keywords", {}))
    return make(name, **arguments), {"agent": class_path(name, **named, **arguments)}


def packer(name: str, env: BatchedEnv | None = None) -> tuple[Agent, dict[str, Any]]:
    """Return an agent that packs the bins of an environment.

    Of 5×5×5 cells by default, one box at a time.
    """
    network, small = PACKING[name], {"channels": 4, "blocks": 1}
    torch.manual_seed(1)
    made = getattr(policies, name)(
        AgentSpace.of(env or packing_env()), network=partial(getattr(policies, network), **small)
    )
    stir(made.parameters_to_train)
    return made, {"agent": class_path(name, network=class_path(network, **small), targets={"tau": 0.01})}


def washer(video: bool) -> tuple[Agent, dict[str, Any]]:
    """SAC at the sink, from six numbers or from clips."""
    seen = {"clip": (CLIP, "uint8")} if video else {"observation": ((6,), "float32")}
    space = AgentSpace("DishwashingEnv", (), seen, low=(0.0, 0.0), high=(1.0, 1.0))
    torch.manual_seed(2)
    sac = partial(policies.SAC, actor=policies.VectorGaussian, critic=policies.VectorCritic)
    named = class_path("SAC", actor=class_path("VectorGaussian"), critic=class_path("VectorCritic"), exploration=None)
    if not video:
        return sac(space), {"agent": named}
    encoder = {"arch": "simple2dcnn", "num_features": 8, "pretrained": False}
    rest = {"shift": 0, "reconstruction": 1.0}
    made = FromClips(space, encoder=ClipEncoder(**encoder).make, agent=sac, **rest)  # type: ignore[arg-type]
    return made, {"agent": named, "encoder": encoder, **rest}


def on_policy(source: str) -> tuple[Agent, dict[str, Any]]:
    """PPO, which packs, or washes by six numbers."""
    torch.manual_seed(3)
    if source == "packs":
        space, small = AgentSpace.of(packing_env()), {"channels": 4, "blocks": 1}
        names = {"actor": "PlacementLogits", "critic": "PlacementValue"}
    else:
        space, small = washer(False)[0].space, {"hidden": [8]}
        names = {"actor": "VectorGaussian", "critic": "VectorValue"}
    networks = {key: partial(getattr(policies, name), **small) for key, name in names.items()}
    named = {key: class_path(name, **small) for key, name in names.items()}
    made = policies.PPO(space, **networks)
    stir(made.parameters())
    return made, {"agent": class_path("PPO", **named)}


EVERY: dict[str, Callable[[], tuple[Agent, dict[str, Any]]]] = {
    **{f"{name} navigates": partial(navigator, name) for name in AGENTS},
    **{f"{name} packs": partial(packer, name) for name in PACKING},
    "PPO packs": partial(on_policy, "packs"),
    "PPO washes": partial(on_policy, "washes"),
    "SAC washes": partial(washer, False),
    "SAC watches": partial(washer, True),
}
"""Results of runs of the shipped kinds: the agent, and `model.init_args` of its configuration."""


def cloned(kind: str) -> tuple[dict[str, Any], TensorDictModuleBase, AgentSpace]:
    """Return the checkpoint of a run of behaviour cloning, its policy and its space.

    "choice" packs, "washes" acts in an environment, "alone" by two vectors without one, and "plain" is a file that
    `examples/train_bc.py` writes of the same.
    """
    torch.manual_seed(4)
    learner: BCPolicy | ClonedChoice
    if kind == "choice":
        space, small = AgentSpace.of(packing_env()), {"channels": 4, "blocks": 1}
        learner = ClonedChoice(space, policies.PlacementScores(space, **small), 0.1)
        init_args = {"network": class_path("PlacementScores", **small), "temperature": 0.1, "policy": None}
    else:
        names = ["observation"] if kind == "washes" else ["state", "hand"]
        space = washer(False)[0].space
        learner = BCPolicy(6, 2 if kind == "washes" else 3, (8,), observations=names, loss="nll", layer_norm=True)
        learner.set_statistics(3 + torch.randn(50, 6), torch.rand(50, learner.action_dim))
        init_args = {"policy": class_path("BCPolicy", **learner.settings), "network": None}
    stir(learner.parameters())
    config = {"model": {"class_path": "torchrl_gpu.training.BehaviourCloning", "init_args": init_args}}
    state = {f"learner.{name}": value for name, value in learner.state_dict().items()}
    content: dict[str, Any] = {
        "state_dict": state,
        "frames": 0,
        ENTRY: {"config": config, "module": "BehaviourCloning"},
    }
    if isinstance(learner, BCPolicy):
        content["bc_policy"] = learner.settings | {"widths": [6] if kind == "washes" else [4, 2]}
    if kind in ("choice", "washes"):
        init_args["env"] = class_of_env(space, {})
        content["agent_space"] = space.to_dict()
    else:
        seen = {"state": ((4,), "float32"), "hand": ((2,), "float32")}
        space = AgentSpace("demonstrations", (), seen, low=(-torch.inf,) * 3, high=(torch.inf,) * 3)
    if kind == "plain":
        about = {"obs_dim": 6, "action_dim": 3, "bc_policy": content["bc_policy"]}
        content = {"model_state_dict": learner.state_dict(), **about}
    return content, learner.policy, space


CLONES = ("choice", "washes", "alone", "plain")


def saved(folder: Path, kind: str) -> tuple[Path, Agent]:
    agent, init_args = EVERY[kind]()
    path = folder / "last.ckpt"
    torch.save(content_of(agent, init_args), path)
    return path, agent


def observations(agent: Agent | Cloned, rows: int, seed: int = 3) -> dict[str, Tensor]:
    """Return made-up observations of an agent or clone, (rows, …).

    Masks with a legal action, bytes of pictures, numbers.
    """
    if agent.space.source == "NavigationSpec":
        seen = states(rows, version="v3", num_actions=agent.space.num_actions, seed=seed)
        return {name: seen[name] for name in agent.space.observations}
    if agent.space.source == "PackingEnv":
        env = packing_env(rows)
        shown = env.reset()
        return {name: shown[name].clone() for name in agent.space.observations}
    generator = torch.Generator().manual_seed(seed)
    out = {}
    for name, (shape, dtype) in agent.space.observations.items():
        drawn = torch.rand((rows, *shape), generator=generator)
        out[name] = (255 * drawn).to(torch.uint8) if dtype == "uint8" else drawn
    return out
