"""Networks that do not fit are refused when an agent is made: which agent, what it wants, what it got."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.policies.agents.corridor import Atoms, Corridor, Scores
from tests.policies.navigation_spaces import AGENTS, networks_for, spec_for
from torchrl_gpu import policies
from torchrl_gpu.policies.agents.shapes import check_network
from torchrl_gpu.policies.spaces import AgentSpace


class Wrong(nn.Module):
    def __init__(self, network: nn.Module, change: Callable[[Any], Any]) -> None:
        super().__init__()
        self.network, self.change = network, change
        self.in_keys = network.in_keys
        self.num_atoms = getattr(network, "num_atoms", None)

    def forward(self, *inputs: Tensor) -> Any:
        return self.change(self.network(*inputs))


def cut(out: Any) -> Any:
    return tuple(map(cut, out)) if isinstance(out, tuple) else out[..., :-1]


def made(name: str, change: Callable[[Any], Any], argument: str) -> None:
    networks = networks_for(name)
    inner = networks[argument]
    getattr(policies, name)(
        AgentSpace.of(spec_for(name)), **{**networks, argument: lambda env: Wrong(inner(env), change)}
    )


EACH = [(name, argument) for name in AGENTS for argument in networks_for(name)]


@pytest.mark.parametrize(("name", "argument"), EACH)
def test_a_wrong_width_is_refused(name: str, argument: str) -> None:
    made(name, lambda out: out, argument)  # the same wrapped, as it is
    with pytest.raises(ValueError, match=rf"^{name}: want Wrong to give \(…, .*\) for observation \(…, .*\); got \(…"):
        made(name, cut, argument)


@pytest.mark.parametrize(("name", "argument"), EACH)
def test_another_number_of_outputs_or_rows_is_refused(name: str, argument: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name}: want Wrong to give .*; got "):
        made(name, lambda out: out[0] if isinstance(out, tuple) else (out, out), argument)
    with pytest.raises(ValueError, match=rf"^{name}: want Wrong to give .*; got another batch shape$"):
        made(name, lambda out: tuple(o[:1] for o in out) if isinstance(out, tuple) else out[:1], argument)
    with pytest.raises(ValueError, match=rf"^{name}: want Wrong to give .*; got str$"):
        made(name, lambda out: ["scores"], argument)


@pytest.mark.parametrize(("name", "argument"), EACH)
def test_a_network_without_in_keys_is_refused(name: str, argument: str) -> None:
    networks = {**networks_for(name), argument: lambda env: nn.Linear(32, 25)}
    with pytest.raises(ValueError, match=f"^{name}: want a network with in_keys, a list of .*; Linear has none$"):
        getattr(policies, name)(AgentSpace.of(spec_for(name)), **networks)


def test_one_name_is_no_list_of_names() -> None:
    class OneName(Scores):
        in_keys = "observation"  # type: ignore[assignment]

    with pytest.raises(ValueError, match=r"^DQN: want a network with in_keys, .*; OneName has 'observation'$"):
        policies.DQN(AgentSpace.of(Corridor(2)), network=OneName)


@pytest.mark.parametrize(("atoms", "shown"), [(None, "none"), (1, "1"), (5.0, "5.0")])
def test_rainbow_wants_the_number_of_atoms(atoms: Any, shown: str) -> None:
    class Some(Atoms):
        num_atoms = atoms

    with pytest.raises(ValueError, match=rf"^Rainbow: want a network with num_atoms, .*; Some has {shown}$"):
        policies.Rainbow(AgentSpace.of(Corridor(2)), network=Some)
    if atoms is None:
        with pytest.raises(ValueError, match=r"^Rainbow: want a network with num_atoms, .*; Scores has none$"):
            policies.Rainbow(AgentSpace.of(Corridor(2)), network=Scores)


def test_rainbow_wants_as_many_atoms_as_it_is_told() -> None:
    class Fewer(Atoms):
        num_atoms = 7

    wanted = r"want Fewer to give \(…, 3, 7\) for observation \(…, 4\); got \(…, 3, 5\)"
    with pytest.raises(ValueError, match=wanted):
        policies.Rainbow(AgentSpace.of(Corridor(2)), network=Fewer)


def test_what_a_network_raises_is_told() -> None:
    class Broken(Scores):
        def forward(self, observation: Tensor) -> Tensor:
            return super().forward(observation[..., :2])

    with pytest.raises(ValueError, match=r"^DQN: want Broken to give \(…, 3\) .*; it raised RuntimeError: ") as raised:
        policies.DQN(AgentSpace.of(Corridor(2)), network=Broken)
    assert isinstance(raised.value.__cause__, RuntimeError)


@pytest.mark.parametrize("name", AGENTS)
def test_looking_draws_no_numbers_and_changes_nothing(name: str) -> None:
    torch.manual_seed(0)
    networks = {argument: network(AgentSpace.of(spec_for(name))) for argument, network in networks_for(name).items()}
    before = {a: {key: value.clone() for key, value in net.state_dict().items()} for a, net in networks.items()}
    state = torch.get_rng_state()
    getattr(policies, name)(
        AgentSpace.of(spec_for(name)), **{a: lambda env, net=net: net for a, net in networks.items()}
    )
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(net.state_dict()[key], was) for a, net in networks.items() for key, was in before[a].items())
    assert all(module.training for net in networks.values() for module in net.modules())


def test_layers_that_behave_otherwise_in_training_are_left_alone() -> None:
    class Noisy(Scores):
        def __init__(self, env: Any = None) -> None:
            super().__init__(env)
            self.norm, self.drop = nn.BatchNorm1d(3), nn.Dropout(0.5).eval()

        def forward(self, observation: Tensor) -> Tensor:
            return self.drop(self.norm(super().forward(observation)))

    net = Noisy()
    state = torch.get_rng_state()
    check_network("Some", AgentSpace.of(Corridor(2)), net, gives=[(3,)])
    assert net.norm.num_batches_tracked == 0
    assert (net.training, net.norm.training, net.drop.training) == (True, True, False)
    assert torch.equal(torch.get_rng_state(), state)
