"""Double DQN with masks: the loss by hand, over Q-values that are tables; acting against a naive twin."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torchrl.data import Categorical, Composite, Unbounded
from torchrl.envs.utils import ExplorationType, set_exploration_type

from tests.no_host_reads import NoHostReads
from tests.tolerances import assert_near
from tests.training.tiny import dqn, packing_env
from torchrl_gpu.policies import DQN, AgentSpace, PolicyWrapper
from torchrl_gpu.training.collect.rollout import Rollout


class Table(nn.Module):
    """Q-values of three states and three actions."""

    in_keys = ("state",)

    def __init__(self, values: list[list[float]]) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.tensor(values))

    def forward(self, state: Tensor) -> Tensor:
        return self.values[state]


class Spec:
    """As much of an environment as an agent looks at."""

    def __init__(self, *keys: str) -> None:
        known = {"state": Unbounded((), dtype=torch.int64), "action_mask": Unbounded((3,), dtype=torch.bool)}
        self.observation_spec = Composite({key: known.get(key, Unbounded(())) for key in keys})
        self.full_action_spec = Composite(action=Categorical(3))
        self.action_keys, self.batch_size = ["action"], torch.Size([])


ONLINE = [[1.5, 5.0, 0.0], [5.0, 9.0, 7.0], [4.0, 1.0, 0.0]]
TARGET = [[0.0, 0.0, 0.0], [10.0, 100.0, 2.0], [8.0, 50.0, 50.0]]


def tables(**changes: object) -> DQN:
    """An agent whose online and target Q-values are the tables above, gamma 1/2."""
    made = DQN(AgentSpace.of(Spec("state", "action_mask")), network=lambda space: Table(TARGET), gamma=0.5, **changes)  # type: ignore[arg-type]
    with torch.no_grad():
        made.policy[0].module.values.copy_(torch.tensor(ONLINE))
    return made


def target_values(agent: DQN) -> Tensor:
    (values,) = agent.objective.target_value_network_params.values(True, True)
    return values


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


def test_loss_by_hand() -> None:
    batch = batch_by_hand()
    loss = tables().loss(batch)["loss"]
    assert loss.item() == pytest.approx(sum(LOSSES) / 3)
    assert batch["td_error"].shape == (3, 1)
    assert batch["td_error"].flatten().tolist() == pytest.approx(ERRORS)


def test_loss_by_hand_without_the_double() -> None:
    #   0: the target network's largest over legal actions is 10: y = 6, e = 4.5, loss 4; 1: as before, 1.5;
    #   2: its largest is 50: y = 6.25, e = 2.25, loss 1.75
    assert tables(double=False).loss(batch_by_hand())["loss"].item() == pytest.approx((4 + 1.5 + 1.75) / 3)


def test_gradients_by_hand() -> None:
    # The slope of the Huber loss is the error up to 1, then its sign: Q − y is −0.5, 2, 3. Nothing flows through
    # targets or through the choice of the next action.
    agent = tables()
    agent.loss(batch_by_hand())["loss"].backward()
    (weights,) = agent.parameters_to_train
    expected = torch.tensor([[-0.5, 1.0, 0.0], [0.0, 0.0, 0.0], [1.0, 0.0, 0.0]]) / 3
    assert_near(weights.grad, expected)


def test_priority_weights_by_hand() -> None:
    # TorchRL's mean with weights is theirs too: Σ w · loss / Σ w
    batch, weight = batch_by_hand(), [1.0, 0.5, 0.25]
    batch["priority_weight"] = torch.tensor(weight)
    expected = sum(w * loss for w, loss in zip(weight, LOSSES, strict=True)) / sum(weight)
    assert tables().loss(batch)["loss"].item() == pytest.approx(expected)


# -- acting --


def states(masks: list[list[int]]) -> TensorDict:
    """State 1, whose values are 5, 9 and 7, under several masks."""
    return TensorDict(
        {"state": torch.ones(len(masks), dtype=torch.int64), "action_mask": torch.tensor(masks).bool()}, [len(masks)]
    )


def test_an_illegal_action_never_wins() -> None:
    seen = states([[1, 1, 1], [1, 0, 1], [1, 0, 0], [0, 0, 1]])
    assert tables().policy(seen)["action"].tolist() == [1, 2, 0, 2]


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


# -- targets --


def test_targets_start_as_the_online_weights() -> None:
    made = DQN(AgentSpace.of(Spec("state", "action_mask")), network=lambda space: Table(TARGET))  # type: ignore[arg-type]
    assert torch.equal(target_values(made), torch.tensor(TARGET))


def test_targets_are_saved_and_what_explores_is_not_saved_twice() -> None:
    agent = tables()
    names = list(agent.state_dict())
    assert len([name for name in names if "target" in name]) == 1
    fresh = tables()
    fresh.update_targets(1)
    fresh.load_state_dict(agent.state_dict())
    assert torch.equal(target_values(fresh), target_values(agent))
    assert sum("epsilon" in name for name in names) == 1


# -- what is refused --


def test_an_observation_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="DQN: Table wants state to observe; Spec gives only pixels, action_mask"):
        DQN(AgentSpace.of(Spec("pixels", "action_mask")), network=lambda space: Table(TARGET))  # type: ignore[arg-type]


def test_a_map_that_was_left_out() -> None:
    with pytest.raises(
        ValueError, match="DQN: PlacementScores wants z_map to observe; PackingEnv gives only box_heightmap"
    ):
        dqn(packing_env(include=()))
