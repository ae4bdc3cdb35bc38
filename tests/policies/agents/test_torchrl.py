"""Losses of our own against TorchRL's, where it has them, over the same weights and the same random numbers."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from torch import nn
from torchrl.envs.utils import ExplorationType
from torchrl.modules import DistributionalQValueActor, TanhNormal
from torchrl.objectives import DistributionalDQNLoss, HardUpdate, SACLoss, SoftUpdate

from tests.policies.navigation_spaces import make, transitions
from tests.tolerances import assert_near
from torchrl_gpu.policies import SAC, Rainbow

KEYS = ["observation", "object_mask"]


class AtomsFirst(nn.Module):
    """Logarithms of chances (…, Z, A), as TorchRL wants them, of logits (…, A, Z)."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, *observed: torch.Tensor) -> torch.Tensor:
        return self.network(*observed).log_softmax(-1).transpose(-1, -2)


class Expanded(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, *observed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, log_std = self.network(*observed)
        return mean, log_std.exp()


def distributional_loss(agent: Rainbow) -> DistributionalDQNLoss:
    online, target = (
        DistributionalQValueActor(
            TensorDictModule(AtomsFirst(network), in_keys=KEYS, out_keys=["action_value"]),
            in_keys=KEYS,
            support=agent.online.support.clone(),
            action_space="categorical",
        )
        for network in (agent.online.network, agent.target.network)
    )
    theirs = DistributionalDQNLoss(online, gamma=agent.gamma, delay_value=True)
    HardUpdate(theirs, value_network_update_interval=1)  # it warns where there is none
    theirs.deterministic_sampling_mode = ExplorationType.RANDOM  # else it switches the noise off
    theirs.target_value_network_params.data.update_(TensorDict.from_module(target).detach())
    return theirs


def test_rainbow() -> None:
    agent, batch = make("Rainbow", gamma=0.9), transitions("Rainbow", 32)
    for part in (batch, batch["next"]):
        part["action_mask"] = torch.ones_like(part["action_mask"])  # TorchRL's knows none
    assert isinstance(agent, Rainbow)
    same = batch.clone()
    theirs = distributional_loss(agent)(same)["loss"]
    ours = agent.losses(batch)["value"]
    assert_near(ours, theirs)
    assert_near(batch["td_error"].flatten(), same["td_error"].flatten())


def soft_loss(agent: SAC) -> SACLoss:
    actor = ProbabilisticTensorDictSequential(
        TensorDictModule(Expanded(agent.policy.network), in_keys=KEYS, out_keys=["loc", "scale"]),
        ProbabilisticTensorDictModule(
            ["loc", "scale"], ["action"], distribution_class=TanhNormal, return_log_prob=True
        ),
    )
    critics = [
        TensorDictModule(critic, in_keys=[*KEYS, "action"], out_keys=["state_action_value"]) for critic in agent.critics
    ]
    learnt = agent.target_entropy is not None
    theirs = SACLoss(
        actor,
        critics,
        loss_function="l2",
        alpha_init=agent.log_alpha.exp().item(),
        fixed_alpha=not learnt,
        target_entropy=agent.target_entropy if learnt else 0.0,
    )
    theirs.set_keys(terminated="terminated")
    theirs.make_value_estimator(gamma=agent.gamma)
    SoftUpdate(theirs, tau=0.1)
    targets = [TensorDict.from_module(critic).detach() for critic in agent.target_critics]
    theirs.target_qvalue_network_params["module"].data.update_(torch.stack(targets))
    return theirs


@pytest.mark.parametrize("target_entropy", [None, -2.0])
@pytest.mark.parametrize("weights", [False, True])
def test_sac(target_entropy: float | None, weights: bool) -> None:
    agent, batch = make("SAC", gamma=0.9, target_entropy=target_entropy), transitions("SAC", 32)
    assert isinstance(agent, SAC)
    if weights:
        batch["priority_weight"] = torch.linspace(0, 1, 32)
    # TorchRL draws for the target first, ours for the actor: one draw of zeros makes the order not matter.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "randn_like", lambda like: torch.full_like(like, 0.7))
        patch.setattr(
            torch.distributions.normal, "_standard_normal", lambda shape, dtype, device: torch.full(shape, 0.7)
        )
        same = batch.clone()
        theirs = soft_loss(agent)(same)
        ours = agent.losses(batch)
    assert_near(ours["critic"], theirs["loss_qvalue"])
    assert_near(ours["actor"], theirs["loss_actor"])
    assert_near(batch["td_error"].flatten(), same["td_error"].flatten())
    if target_entropy is not None:
        assert_near(ours["alpha"], theirs["loss_alpha"])
