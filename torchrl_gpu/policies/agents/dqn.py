"""Double DQN with masks."""

from __future__ import annotations

from typing import final

from tensordict import TensorDictBase
from tensordict.nn import TensorDictSequential
from torch import Tensor
from torchrl.envs import EnvBase
from torchrl.objectives import DQNLoss, HardUpdate, SoftUpdate

from torchrl_gpu.policies.agents.base import Agent, NetworkFactory, check_targets
from torchrl_gpu.policies.agents.legal import greedy_module
from torchrl_gpu.policies.agents.shapes import check_shapes
from torchrl_gpu.policies.entry import Entry
from torchrl_gpu.policies.exploration import MaskedEpsilonGreedy


@final
class DQN(Agent):
    """Double Q-learning over legal actions: masks hold when acting and when bootstrapping.

    Mnih et al. 2015; van Hasselt et al. 2016. Loss and modules are TorchRL's. Departs from the papers: Adam's step and
    the Huber loss are chosen by the training module's configuration, targets may follow softly.

    Args:
        env: The environment to act in; its action is one index.
        network: Makes the Q-network of an environment: `forward` takes the entries named by its `in_keys` and gives
            Q-values (…, A) float32.
        gamma: Discount of a step.
        n_steps: Rewards summed before bootstrapping.
        double: Whether the online network chooses the bootstrapped action.
        tau: Share of the online weights that the targets take at each update; None for hard updates.
        target_period: Updates between hard updates, where `tau` is None.
        epsilon_start: Exploration at the first frame.
        epsilon_end: Exploration after `epsilon_frames`.
        epsilon_frames: Frames, over all environments, of the linear decay.
        upstream_compat: Nothing is bootstrapped behind a time limit.
    """

    def __init__(
        self,
        env: EnvBase,
        *,
        network: NetworkFactory,
        gamma: float = 0.99,
        n_steps: int = 3,
        double: bool = True,
        tau: float | None = 0.005,
        target_period: int = 500,
        epsilon_start: float = 1.0,
        epsilon_end: float = 0.05,
        epsilon_frames: int = 100_000,
        upstream_compat: bool = False,
    ) -> None:
        super().__init__(env, gamma=gamma, n_steps=n_steps, upstream_compat=upstream_compat)
        check_targets("DQN", tau, target_period)
        self.follows_alike = tau is not None
        net = network(env)
        self.space.check("DQN", net, discrete=True)
        check_shapes("DQN", self.space, net, gives=[self.space.values_shape])
        self.policy = TensorDictSequential(Entry("action_value", net), greedy_module(self.space))
        self.exploration = MaskedEpsilonGreedy(epsilon_start, epsilon_end, epsilon_frames, self.space.always_legal)
        self.objective = DQNLoss(
            self.policy, loss_function="smooth_l1", double_dqn=double, delay_value=True, action_space="categorical"
        )
        self.objective.set_keys(terminated=self.stop)
        self.objective.make_value_estimator(gamma=gamma)
        # TorchRL's own count of updates would not survive a resume: targets move whenever they are told to.
        hard = HardUpdate(self.objective, value_network_update_interval=0)
        self._targets = hard if tau is None else SoftUpdate(self.objective, tau=tau)
        self._target_period = target_period if tau is None else 1

    def _losses(self, batch: TensorDictBase) -> tuple[dict[str, Tensor], Tensor]:
        loss = self.objective(batch)["loss"]
        return {"value": loss}, batch["td_error"].sqrt()  # TorchRL writes its square

    def _follow(self, update: int) -> None:
        if update % self._target_period == 0:
            self._targets.step()

    @property
    def parameter_groups(self) -> dict[str, list[Tensor]]:
        """The online weights."""
        weights = self.objective.value_network_params.flatten_keys().values()
        return {"value": [weight for weight in weights if weight.requires_grad]}
