"""Agent spaces, read from an environment's specifications.

They are plain data.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torchrl.data import Composite, Unbounded

from tests.policies.agents.corridor import Corridor
from tests.policies.navigation_spaces import NavigationSpec, space_of
from tests.training.tiny import dqn, packing_env
from torchrl_gpu.envs import DishwashingEnv
from torchrl_gpu.policies import AgentSpace


def test_robots_in_their_group() -> None:
    space = space_of("v3")
    assert (space.group, space.num_actions, space.masked) == (("robots",), 25, True)
    assert space.observations["observation"] == ((32,), "float32")
    assert space.observations["object_mask"] == ((5,), "bool")
    assert space.size_of("clearance") == 1


def test_space_of_one_robot_at_the_root() -> None:
    space = space_of("v2", num_actions=None, bounds=(-2.0, 3.0), flat=True)
    assert space.group == ()
    assert space.observations["observation"] == ((39,), "float32")
    assert [bound.tolist() for bound in space.bounds] == [[-2.0, -2.0], [3.0, 3.0]]
    assert space.extras == {}


def test_a_packing_environment_tells_its_bin() -> None:
    env = packing_env(stability="support")
    space = AgentSpace.of(env)
    assert space.group == ()
    assert space.num_actions == env.num_actions
    assert space.observations["box_heightmap"] == ((5, 5), "float32")
    assert space.observations["item_id"] == ((1,), "int64")
    wanted = {"size": [5.0, 5.0, 5.0], "cells": [5, 5], "step": 1, "stability": "support"}
    assert space.extras == {"bin": wanted, "action_shape": list(env.action_shape)}


def test_an_environment_of_another_kind() -> None:
    spec: Any = NavigationSpec(flat=True)
    spec.full_action_spec = Composite(action=Unbounded((4, 2)), shape=(4,))
    with pytest.raises(ValueError, match=r"AgentSpace: .*action of NavigationSpec .*Unbounded"):
        AgentSpace.of(spec)
    spec.action_keys = ["left", "right"]
    with pytest.raises(ValueError, match=r"AgentSpace: NavigationSpec .*one action"):
        AgentSpace.of(spec)


def test_a_mask_is_one_flag_for_each_action() -> None:
    spec: Any = NavigationSpec("v3", flat=True)
    spec.observation_spec = Composite(action_mask=Unbounded((4, 24), dtype=torch.bool), shape=(4,))
    with pytest.raises(ValueError, match=r"AgentSpace: action_mask .*25.*24"):
        AgentSpace.of(spec)


def test_discrete_or_continuous() -> None:
    discrete = space_of(num_actions=25)
    continuous = space_of(num_actions=None)
    assert (discrete.values_shape, continuous.action_shape) == ((25,), (2,))
    assert not continuous.masked
    with pytest.raises(ValueError, match=r"AgentSpace: .*NavigationSpec .*continuous"):
        continuous.values_shape  # noqa: B018
    with pytest.raises(ValueError, match=r"AgentSpace: .*NavigationSpec .*discrete"):
        discrete.bounds  # noqa: B018
    with pytest.raises(ValueError, match=r"AgentSpace: NavigationSpec .*pixels.*observation"):
        discrete.size_of("pixels")


# -- plain data --

SPACES = {
    "discrete": lambda: space_of("v2", num_actions=9),
    "continuous": lambda: space_of("v3", num_actions=None, bounds=(-0.1, 0.3)),
    "unmasked": lambda: AgentSpace.of(Corridor(2)),
    "packing": lambda: AgentSpace.of(packing_env(visible_items=2, stability="com")),
}


@pytest.mark.parametrize("kind", SPACES)
def test_space_survives_json_and_checkpoints(kind: str, tmp_path: Path) -> None:
    space = SPACES[kind]()
    given = space.to_dict()
    assert AgentSpace.from_dict(json.loads(json.dumps(given))) == space
    torch.save(given, tmp_path / "space.pt")
    assert AgentSpace.from_dict(torch.load(tmp_path / "space.pt", weights_only=True)) == space
    assert AgentSpace.from_dict(given).to_dict() == given
    # The space holds a copy.
    given["observations"].clear()
    assert space.observations


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"more": 1}, "space must be a mapping of source, group, observations, .*; got "),
        ({"source": 3}, "source must be a name; got 3"),
        ({"group": "robots"}, "group must be a list of names; got 'robots'"),
        ({"group": ["robots", 1]}, "group must be a list of names; got "),
        ({"observations": [1]}, "observations must be shape and dtype of each observation by its name; got"),
        ({"observations": {"a": [[-1], "float32"]}}, "observations must be shape and dtype"),
        ({"observations": {"a": [[1.0], "float32"]}}, "observations must be shape and dtype"),
        ({"observations": {"a": [[1], "Tensor"]}}, "observations must be shape and dtype"),
        ({"observations": {"a": [[1], "float32", 0]}}, "observations must be shape and dtype"),
        ({"observations": {1: [[1], "float32"]}}, "space must be made of numbers, text, lists and dicts by name"),
        ({"num_actions": 0}, "num_actions must be a whole number above 0, or none; got 0"),
        ({"num_actions": True}, "num_actions must be a whole number above 0, or none; got True"),
        ({"num_actions": 24}, "action_mask .*24.*\\(25,\\)"),
        ({"num_actions": None}, "num_actions.*None actions, low \\[\\]"),
        ({"low": [0.0], "high": [1.0]}, "num_actions.*25 actions"),
        ({"num_actions": None, "low": [0.0, 2.0], "high": [1.0, 1.0]}, "low <= high.*None actions"),
        ({"num_actions": None, "low": [0.0], "high": [1.0, 1.0]}, "low <= high.*None actions"),
        ({"num_actions": None, "low": [float("nan")], "high": [1.0]}, "low must be finite numbers, or none; got"),
        ({"num_actions": None, "low": ["0"], "high": [1.0]}, "low must be finite numbers, or none; got"),
        ({"extras": []}, "extras must be a mapping of names; got"),
        ({"extras": {"map": torch.ones(2)}}, "made of numbers, text, lists and dicts by name; got Tensor"),
        ({"extras": {"a": [[[[[[[[[[1]]]]]]]]]]}}, "made of numbers, text, lists and dicts by name; got"),
    ],
)
def test_space_of_another_environment_is_refused(changes: dict[Any, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^AgentSpace: .*{message}"):
        AgentSpace.from_dict(space_of().to_dict() | changes)


@pytest.mark.parametrize("given", [None, [], "space", {"source": "here"}])
def test_space_from_other_data_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match=r"^AgentSpace: space .*source, group, .*; got "):
        AgentSpace.from_dict(given)


@pytest.mark.parametrize("changes", [{"cells": [5]}, {"cells": [0, 5]}, {"size": [5.0, 5.0]}, {"more": 1}])
def test_a_bin_that_was_tampered_with(changes: dict[str, Any]) -> None:
    given = AgentSpace.of(packing_env()).to_dict()
    given["extras"]["bin"] |= changes
    with pytest.raises(ValueError, match=r"^(Bin: .* must |AgentSpace: .*the bin )"):
        dqn(AgentSpace.from_dict(given))
    with pytest.raises(ValueError, match=r"NavigationSpec .*bin None"):
        dqn(space_of("v2"))


def test_outcomes_are_not_seen() -> None:
    space = AgentSpace.of(DishwashingEnv(2, device="cpu", seed=0))
    assert space.observations == {"observation": ((6,), "float32")}
