"""Behaviour cloning: statistics, losses and greedy choices.

Losses are by hand, choices are among legal actions.
"""

from __future__ import annotations

import math

import pytest
import torch
from tensordict import TensorDict
from torch import nn

from tests.training.tiny import packing_env
from torchrl_gpu.policies import AgentSpace, BCPolicy, ClonedChoice, PlacementScores, PolicyWrapper
from torchrl_gpu.policies.cloning import Cloned


def test_the_defaults_are_of_the_robot() -> None:
    policy = BCPolicy()
    assert policy(torch.zeros(5, 48)).shape == (5, 12)
    assert policy.in_keys == ["observation"]
    assert BCPolicy(loss="nll")(torch.zeros(2, 3, 48)).shape == (2, 3, 12)


def rows(num: int = 50) -> TensorDict:
    generator = torch.Generator().manual_seed(0)
    state = torch.randn(num, 2, generator=generator) * torch.tensor([1000.0, 0.01]) + torch.tensor([5.0, 70.0])
    # This entry never changes.
    hand = torch.full((num, 1), 3.0)
    action = torch.randn(num, 2, generator=generator) * 20 + 100
    return TensorDict({"state": state, "hand": hand, "action": action}, [num])


def test_statistics_are_of_the_demonstrations_and_in_the_state_dict() -> None:
    policy, shown = BCPolicy(3, 2, observations=["state", "hand"]), rows()
    joined = torch.cat([shown["state"], shown["hand"]], 1)
    policy.set_statistics(joined, shown["action"])
    state = policy.state_dict()
    torch.testing.assert_close(state["observation_mean"], joined.mean(0))
    torch.testing.assert_close(state["observation_std"][:2], joined.std(0, correction=0)[:2])
    assert state["observation_std"][2] == 1.0
    with torch.no_grad():
        for weight in policy.parameters():
            weight.zero_()
    torch.testing.assert_close(policy(shown["state"], shown["hand"])[0], shown["action"].mean(0))
    other = BCPolicy(3, 2, observations=["state", "hand"])
    other.load_state_dict(state)
    assert torch.equal(other(shown["state"], shown["hand"]), policy(shown["state"], shown["hand"]))


@pytest.mark.parametrize("loss", ["mse", "nll"])
def test_losses_by_hand(loss: str) -> None:
    policy = BCPolicy(1, 2, loss=loss)  # type: ignore[arg-type]
    # Means are 10 and −1, deviations 2 and 2.
    policy.set_statistics(torch.zeros(2, 1), torch.tensor([[8.0, -3.0], [12.0, 1.0]]))
    with torch.no_grad():
        for weight in policy.parameters():
            weight.zero_()
        if loss == "nll":
            # Standard deviations of one half.
            list(policy.parameters())[-1][2:] = math.log(0.5)
    scores = policy.scores(TensorDict({"observation": torch.zeros(1, 1), "action": torch.tensor([[14.0, -3.0]])}, [1]))
    # normalised: 2 and −1, predicted 0: squares 4 and 1
    wanted = 2.5 if loss == "mse" else (0.5 * (math.log(0.25) + 4 / 0.25) + 0.5 * (math.log(0.25) + 1 / 0.25)) / 2
    assert scores["loss"].item() == pytest.approx(wanted)
    assert scores["error"].item() == pytest.approx(math.sqrt(2.5))


def test_clone_without_observations_is_refused() -> None:
    with pytest.raises(ValueError, match=r"observations .*one name"):
        BCPolicy(observations=[])


class Table(nn.Module):
    """Gives the values that it was given, whatever it sees."""

    in_keys = ("item_id",)

    def __init__(self, values: list[float]) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.tensor(values))

    def forward(self, item_id: torch.Tensor) -> torch.Tensor:
        return self.values.expand(len(item_id), -1)


def choice(temperature: float = 1.0) -> ClonedChoice:
    env = packing_env(2, orientations="fixed")
    values = [0.0] * env.num_actions
    values[:3] = [5.0, 1.0, 2.0]
    return ClonedChoice(AgentSpace.of(env), Table(values), temperature)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_cross_entropy_over_legal_actions_by_hand(temperature: float) -> None:
    learner = choice(temperature)
    mask = torch.zeros(2, learner.space.num_actions, dtype=torch.bool)
    # The largest value is not legal.
    mask[:, 1:3] = True
    batch = TensorDict({"item_id": torch.zeros(2, 1, dtype=torch.int64), "action_mask": mask}, [2])
    batch["action"] = torch.tensor([2, 1])
    scores = learner.scores(batch)
    assert scores["agreement"].tolist() == [1.0, 0.0]
    # The values are 2 and 1.
    likely = 1 / (1 + math.exp(-1 / temperature))
    assert scores["loss"].tolist() == pytest.approx([-math.log(likely), -math.log(1 - likely)])
    scores["loss"].sum().backward()
    assert learner.network.values.grad[0] == 0  # type: ignore[union-attr, index]


def test_cloned_policy_acts_by_its_scores() -> None:
    env = packing_env(6)
    space = AgentSpace.of(env)
    torch.manual_seed(0)
    network = PlacementScores(space, 4, 1)
    nn.init.normal_(network.advantage.weight)
    learner = ClonedChoice(space, network)
    shown = PolicyWrapper(Cloned(space, learner.policy))(env.reset())
    assert learner.scores(shown)["agreement"].tolist() == [1.0] * 6
    assert bool(shown["action_mask"].gather(1, shown["action"][:, None]).all())


def test_cloned_choice_refuses_wrong_networks_and_options() -> None:
    space = AgentSpace.of(packing_env(2))
    with pytest.raises(ValueError, match=r"ClonedChoice: Table .*\(…, "):
        ClonedChoice(space, Table([1.0]))
    with pytest.raises(ValueError, match=r"BC: cvar 0\.\d"):
        PolicyWrapper(Cloned(space, choice().policy), cvar=0.5)
