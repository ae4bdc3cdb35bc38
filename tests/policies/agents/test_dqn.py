"""Double DQN with masks: the loss by hand, over Q-values that are tables."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torchrl.envs.utils import ExplorationType, set_exploration_type

from tests.no_host_reads import NoHostReads
from tests.tolerances import assert_near
from tests.training.tiny import dqn, packing_env
from torchrl_gpu.policies import DQN, AgentSpace, PolicyWrapper
from torchrl_gpu.training.collect.rollout import Rollout


class Table(nn.Module):
    in_keys = ("state",)

    def __init__(self, values: list[list[float]]) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.tensor(values))

    def forward(self, state: Tensor) -> Tensor:
        return self.values[state]


SPACE = AgentSpace("Somewhere", (), {"state": ((), "int64"), "action_mask": ((3,), "bool")}, num_actions=3)
ONLINE = [[1.5, 5.0, 0.0], [5.0, 9.0, 7.0], [4.0, 1.0, 0.0]]
TARGET = [[0.0, 0.0, 0.0], [10.0, 100.0, 2.0], [8.0, 50.0, 50.0]]


def tables() -> DQN:
    """An agent whose online and target Q-values are the tables above, gamma 1/2."""
    made = DQN(SPACE, network=lambda space: Table(TARGET), gamma=0.5)
    with torch.no_grad():
        made.policy[0].module.values.copy_(torch.tensor(ONLINE))
    return made


def batch_by_hand() -> TensorDict:
    """Three transitions: one that goes on, one that terminates, one that is cut off."""
    return TensorDict(
        {
            "state": torch.tensor([0, 0, 2]),
            "action": torch.tensor([0, 1, 0]),
            "action_mask": torch.ones(3, 3, dtype=torch.bool),
            "steps_to_next_obs": torch.tensor([[1], [2], [3]]),
            "next": {
                "state": torch.tensor([1, 1, 2]),
                "action_mask": torch.tensor([[True, False, True], [True, True, True], [True, True, True]]),
                "reward": torch.tensor([[1.0], [3.0], [0.0]]),
                "done": torch.tensor([[False], [True], [True]]),
                "terminated": torch.tensor([[False], [True], [False]]),
            },
        },
        batch_size=[3],
    )


# -- the loss --
#
# Huber: e²/2 up to e = 1, then e − 1/2.
#   0: in state 1 the online network prefers, of actions 0 and 2, action 2 (7 > 5; the 9 of action 1 is not legal). The
#      target network gives it 2, so y = 1 + 1/2 · 2 = 2; Q = 1.5, e = 0.5, loss 0.125.
#   1: terminated, so y = 3; Q = 5, e = 2, loss 1.5.
#   2: cut off, not terminated, so it bootstraps over three steps: the online network prefers action 0, the target
#      network gives it 8, y = 0 + (1/2)³ · 8 = 1; Q = 4, e = 3, loss 2.5.
ERRORS = [0.5, 2.0, 3.0]
LOSSES = [0.125, 1.5, 2.5]


def test_loss_and_gradients_by_hand() -> None:
    # The slope of the Huber loss is the error up to 1, then its sign: Q − y is −0.5, 2, 3. Nothing flows through
    # targets or through the choice of the next action.
    agent, batch = tables(), batch_by_hand()
    loss = agent.loss(batch)["loss"]
    assert loss.item() == pytest.approx(sum(LOSSES) / 3)
    assert batch["td_error"].shape == (3, 1)
    assert batch["td_error"].flatten().tolist() == pytest.approx(ERRORS)
    loss.backward()
    (weights,) = agent.parameters_to_train
    assert_near(weights.grad, torch.tensor([[-0.5, 1.0, 0.0], [0.0, 0.0, 0.0], [1.0, 0.0, 0.0]]) / 3)


def test_nothing_is_read_back_with_an_environment() -> None:
    env = packing_env(6, visible_items=2)
    packer = dqn(env)
    rollout = Rollout(env, env.stored_keys, 2, 0.9)
    with set_exploration_type(ExplorationType.RANDOM), NoHostReads():
        batch, _ = rollout.collect(PolicyWrapper(packer), 4)
        for part in (batch, batch["next"]):
            env.restore(part)
        packer.loss(batch)
        packer.anneal(50)
        packer.update_targets(1)


def test_an_observation_that_is_not_there() -> None:
    message = "DQN: PlacementScores wants z_map to observe; PackingEnv gives only box_heightmap"
    with pytest.raises(ValueError, match=message):
        dqn(packing_env(include=()))
