"""Double DQN with action masks."""

from __future__ import annotations

from typing import ClassVar, final

from tensordict import TensorDictBase
from tensordict.nn import TensorDictSequential
from torch import Tensor
from torchrl.objectives import DQNLoss, HardUpdate

from torchrl_gpu.policies.agents.base import Agent, NetworkFactory
from torchrl_gpu.policies.exploration import EpsilonGreedy
from torchrl_gpu.policies.policy import Entry
from torchrl_gpu.policies.spaces import AgentSpace, greedy_module
from torchrl_gpu.policies.targets import SoftTargets, TargetUpdate, forget_settings, loss_pairs


@final
class DQN(Agent):
    """Double DQN agent: action masks apply when acting and when bootstrapping.

    Mnih et al. 2015; van Hasselt et al. 2016. Loss and modules are TorchRL's. Departs from the papers: Adam's step and
    the Huber loss are chosen by the training module's configuration, targets may follow softly.

    Args:
        space: Its action is one index.
        network: Makes the Q-network of a space: `forward` takes the entries named by its `in_keys` and gives Q-values
            (…, A) float32.
        double: Whether the online network chooses the bootstrapped action.
        gamma, n_steps, exploration, targets: As in `Agent`.
    """

    discrete: ClassVar = True

    def __init__(
        self,
        space: AgentSpace,
        *,
        network: NetworkFactory,
        gamma: float = 0.99,
        n_steps: int = 3,
        double: bool = True,
        exploration: EpsilonGreedy | None = EpsilonGreedy(),
        targets: TargetUpdate = SoftTargets(),
    ) -> None:
        super().__init__(space, gamma=gamma, n_steps=n_steps, exploration=exploration, targets=targets)
        net = self._check_network(network(space), gives=[space.values_shape])
        self.policy = TensorDictSequential(Entry("action_value", net), greedy_module(space))
        self.objective = DQNLoss(
            self.policy, loss_function="smooth_l1", double_dqn=double, delay_value=True, action_space="categorical"
        )
        self.objective.make_value_estimator(gamma=gamma)
        forget_settings(self.objective, value_network=self.policy)
        # Without an updater TorchRL warns. Its own count of updates would not survive a resume, so it is never stepped.
        HardUpdate(self.objective)

    def _losses(self, batch: TensorDictBase) -> tuple[dict[str, Tensor], Tensor]:
        out = self.objective(batch)
        loss = out["loss"]
        # TorchRL writes the square of the error.
        return {"value": loss}, batch["td_error"].sqrt()

    def _target_pairs(self) -> list[tuple[Tensor, Tensor]]:
        return loss_pairs(self.objective, "value_network")

    @property
    def parameter_groups(self) -> dict[str, list[Tensor]]:
        weights = self.objective.value_network_params.flatten_keys().values()
        return {"value": [weight for weight in weights if weight.requires_grad]}
