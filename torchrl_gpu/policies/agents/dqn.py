"""Double DQN with masks."""

from __future__ import annotations

from collections.abc import Callable

from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import Tensor, nn
from torchrl.envs import EnvBase
from torchrl.modules import QValueModule
from torchrl.objectives import DQNLoss, HardUpdate, SoftUpdate

from torchrl_gpu.policies.exploration import MaskedEpsilonGreedy

NetworkFactory = Callable[[EnvBase], nn.Module]


class DQN(nn.Module):
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
    ) -> None:
        super().__init__()
        if not 0 < gamma <= 1 or n_steps < 1:
            raise ValueError(f"DQN: want 0 < gamma <= 1 and n_steps >= 1; got gamma {gamma}, n_steps {n_steps}")
        self.gamma, self.n_steps = gamma, n_steps
        net = network(env)
        _check_inputs(net, env)
        scores = TensorDictModule(net, in_keys=list(net.in_keys), out_keys=["action_value"])  # type: ignore[arg-type]
        greedy = QValueModule(action_space="categorical", action_mask_key="action_mask")
        self.policy = TensorDictSequential(scores, greedy)
        self.exploration = MaskedEpsilonGreedy(epsilon_start, epsilon_end, epsilon_frames)
        # Held outside the module: its weights are the policy's, and would be saved twice.
        self.__dict__["explorer"] = TensorDictSequential(self.policy, self.exploration)
        self.objective = DQNLoss(
            self.policy, loss_function="smooth_l1", double_dqn=double, delay_value=True, action_space="categorical"
        )
        self.objective.make_value_estimator(gamma=gamma)
        # TorchRL's own count of updates would not survive a resume: targets move whenever they are told to.
        hard = HardUpdate(self.objective, value_network_update_interval=0)
        self._targets = hard if tau is None else SoftUpdate(self.objective, tau=tau)
        self._target_period = target_period if tau is None else 1

    def loss(self, batch: TensorDictBase) -> TensorDict:
        """Huber loss of a batch of transitions.

        Args:
            batch: (B,) with the network's inputs, `action_mask` and `action`; in `next` the same, `reward` (the n-step
                return so far), `done`, `terminated`; `steps_to_next_obs` (B, 1); optionally `priority_weight` (B,).

        Returns:
            `loss`, a scalar; `td_error` (B, 1), the size of the error, is written into `batch`, for priorities.
        """
        loss = self.objective(batch)
        batch["td_error"] = batch["td_error"].sqrt()  # TorchRL writes its square
        return loss

    @property
    def acting(self) -> nn.Module:
        """The exploring policy: writes `action`, at random with probability epsilon."""
        return self.__dict__["explorer"]

    def anneal(self, frame: int) -> None:
        """Sets what depends on how many frames have been played."""
        self.exploration.anneal(frame)

    def follow(self, update: int) -> None:
        """Moves the targets after update number `update`, the first being 1."""
        if update % self._target_period == 0:
            self._targets.step()

    @property
    def parameters_to_train(self) -> list[Tensor]:
        """The online weights."""
        return [p for p in self.objective.value_network_params.flatten_keys().values() if p.requires_grad]


def _check_inputs(network: nn.Module, env: EnvBase) -> None:
    given = [str(key) for key in env.observation_spec]
    missing = [key for key in network.in_keys if key not in given]  # type: ignore[union-attr]
    if missing:
        raise ValueError(
            f"DQN: {type(network).__name__} wants {', '.join(missing)} to observe; {type(env).__name__} gives only"
            f" {', '.join(given)}"
        )
