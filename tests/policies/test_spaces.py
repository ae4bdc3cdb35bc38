"""What an agent finds in an environment's specifications."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torchrl.data import Composite, Unbounded

from tests.policies.navigation_spaces import NavigationSpec
from tests.training.tiny import packing_env
from torchrl_gpu.policies.spaces import AgentSpace


class Net(nn.Module):
    """Wants what its argument names."""

    def __init__(self, *keys: str) -> None:
        super().__init__()
        self.in_keys = keys


def test_robots_in_their_group() -> None:
    space = AgentSpace.of(NavigationSpec("v3"))  # type: ignore[arg-type]
    assert space.group == ("robots",)
    assert space.num_actions == 25
    assert space.observations["observation"] == (32,)
    assert space.observations["object_mask"] == (5,)
    assert space.size_of("clearance") == 1


def test_one_robot_at_the_root() -> None:
    space = AgentSpace.of(NavigationSpec("v2", num_actions=None, bounds=(-2.0, 3.0), flat=True))  # type: ignore[arg-type]
    assert space.group == ()
    assert space.observations["observation"] == (39,)
    assert [bound.tolist() for bound in space.bounds] == [[-2.0, -2.0], [3.0, 3.0]]


def test_a_packing_environment() -> None:
    env = packing_env()
    space = AgentSpace.of(env)
    assert space.group == ()
    assert space.num_actions == env.num_actions
    assert space.observations["box_heightmap"] == (5, 5)


def test_what_is_not_observed() -> None:
    space = AgentSpace.of(NavigationSpec())  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match="Some: Net wants pixels to observe; NavigationSpec gives only observation, obj"
    ):
        space.check("Some", Net("observation", "pixels"), discrete=True)
    with pytest.raises(ValueError, match="AgentSpace: want pixels to observe; NavigationSpec gives only observation"):
        space.size_of("pixels")


def test_an_action_of_the_other_kind() -> None:
    discrete, continuous = (AgentSpace.of(NavigationSpec(num_actions=n)) for n in (25, None))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Some: want a continuous action; that of NavigationSpec is discrete"):
        discrete.check("Some", Net(), discrete=False)
    with pytest.raises(ValueError, match="Some: want a discrete action; that of NavigationSpec is continuous"):
        continuous.check("Some", Net(), discrete=True)
    with pytest.raises(ValueError, match="AgentSpace: want a continuous action; that of NavigationSpec is discrete"):
        discrete.bounds  # noqa: B018


def test_an_environment_of_another_kind() -> None:
    spec = NavigationSpec(flat=True)
    spec.full_action_spec = Composite(action=Unbounded((4, 2)), shape=(4,))
    with pytest.raises(ValueError, match="AgentSpace: want an action that is an index or bounded; NavigationSpec has"):
        AgentSpace.of(spec)  # type: ignore[arg-type]
    spec.action_keys = ["left", "right"]
    with pytest.raises(ValueError, match="AgentSpace: want an environment with one action; NavigationSpec has"):
        AgentSpace.of(spec)  # type: ignore[arg-type]


def test_bounds_are_of_the_action_alone() -> None:
    low, high = AgentSpace.of(NavigationSpec(num_actions=None, num_envs=1, num_robots=7)).bounds  # type: ignore[arg-type]
    assert low.shape == high.shape == torch.Size([2])


def test_what_is_observed_has_a_dtype_and_a_device() -> None:
    env = packing_env()
    space = AgentSpace.of(env)
    assert space.dtypes["item_id"] == torch.int64
    assert space.device == env.device
    assert set(space.dtypes) == set(space.observations)


def test_a_mask_is_one_flag_for_each_action() -> None:
    assert AgentSpace.of(NavigationSpec("v3")).masked  # type: ignore[arg-type]
    spec = NavigationSpec("v3", flat=True)
    spec.observation_spec = Composite(action_mask=Unbounded((4, 24), dtype=torch.bool), shape=(4,))
    with pytest.raises(ValueError, match=r"AgentSpace: want an action_mask of one flag for each of 25 actions; .*24"):
        AgentSpace.of(spec)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("keys", "shown"), [(None, "none"), ("pixels", "'pixels'"), ([("a", "b")], r"\[\('a', 'b'\)\]")]
)
def test_a_network_names_what_it_takes(keys: object, shown: str) -> None:
    space, net = AgentSpace.of(NavigationSpec()), Net()  # type: ignore[arg-type]
    net.in_keys = keys  # type: ignore[assignment]
    with pytest.raises(ValueError, match=f"^Some: want a network with in_keys, a list of .*; Net has {shown}$"):
        space.check("Some", net, discrete=True)


def test_discrete_or_continuous() -> None:
    discrete, continuous = (AgentSpace.of(NavigationSpec(num_actions=n)) for n in (25, None))  # type: ignore[arg-type]
    assert (discrete.values_shape, continuous.action_shape) == ((25,), (2,))
    assert not continuous.masked
    with pytest.raises(ValueError, match="AgentSpace: want a discrete action; that of NavigationSpec is continuous"):
        continuous.values_shape  # noqa: B018
