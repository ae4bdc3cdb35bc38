"""SAC comes to the policy that is known to be best where nothing moves."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from torchrl.envs.utils import ExplorationType, set_exploration_type

from tests.training.tiny import trainer
from torchrl_gpu.envs import DishwashingEnv
from torchrl_gpu.envs.dishes.economics import slice_reward
from torchrl_gpu.policies import SAC, EpsilonGreedy, VectorCritic, VectorGaussian
from torchrl_gpu.training import DeviceReplay, Episodes, OffPolicy


def test_sac_comes_to_the_best_policy(tmp_path: Path) -> None:
    torch.manual_seed(0)
    env = DishwashingEnv(128, stationary=True, device="cpu", seed=0)
    sac = partial(SAC, actor=VectorGaussian, critic=VectorCritic, alpha=0.05, target_entropy=-3.0, gamma=0.5)
    made = OffPolicy(
        env,
        partial(sac, exploration=EpsilonGreedy(start=1.0, end=0.2, frames=50_000)),
        partial(torch.optim.Adam, lr=3e-3),
        replay=partial(DeviceReplay, capacity=100_000),
        batch_size=256,
        rollout_steps=16,
        updates_per_step=16,
        warmup_frames=20_000,
    )
    seen = env.reset().select("observation")

    def earned() -> float:
        with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
            action = made.policy_for(env).eval()(seen.clone())["action"].double().numpy()
        return float(slice_reward(env.economics, *action.T).mean())

    with torch.no_grad():  # far off: nearly as fast, and as careless, as can be
        made.agent.policy.network.net[-1].bias[:2] = torch.tensor([1.5, -1.5])
    assert earned() < 0.7 * env.optimum.reward
    trainer(tmp_path, 640).fit(made, Episodes(steps_per_epoch=30, num_val_episodes=2, pictures=False))
    assert earned() > 0.96 * env.optimum.reward
