"""Training of a navigator in a loop of one's own, without Lightning.

It takes a few minutes on one core:

python examples/plain_loop.py --updates 5000
"""

from __future__ import annotations

import argparse

import torch
from torchrl.envs.utils import ExplorationType, set_exploration_type

from torchrl_gpu.envs import MarineNavEnv
from torchrl_gpu.evaluation.marine import evaluate
from torchrl_gpu.policies import IQN, AgentSpace, EpsilonGreedy, NavigationQuantiles, PolicyWrapper, SoftTargets
from torchrl_gpu.training.collect.rollout import Rollout
from torchrl_gpu.training.replay.buffer import replay_buffer


def main() -> None:
    """Train one agent on all robots of 64 seas, then evaluate it on unseen seas."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=5000)
    parser.add_argument("--worlds", type=int, default=100, help="to be judged in")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    sea = {"robots": 3, "cores": 4, "obstacles": 0, "min_distance": 30.0, "max_steps": 300}
    env = MarineNavEnv(64, **sea, device=args.device, seed=args.seed)
    unseen = env.like(args.worlds, seed=args.seed + 1, pool=args.worlds, in_order=True)
    exploration, targets = EpsilonGreedy(0.6, frames=40_000), SoftTargets(0.01)
    settings = {"network": NavigationQuantiles, "acting_taus": 8, "n_steps": 3}
    agent = IQN(AgentSpace.of(env), **settings, exploration=exploration, targets=targets).to(env.device)
    policy, optimizer = PolicyWrapper(agent), torch.optim.Adam(agent.parameters_to_train, lr=1e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, args.updates)
    kept = [("robots", name) for name in (*agent.observations, "active")]
    rollout = Rollout(env, kept, agent.n_steps, agent.gamma, group=("robots",))
    replay = replay_buffer(300_000, 128, env.device, prioritized=True, masked=True)

    def play(steps: int) -> None:
        with set_exploration_type(ExplorationType.RANDOM):
            transitions, _ = rollout.collect(policy, steps)
        index = replay.extend(transitions)
        replay.sampler.leave_out(index, ~transitions["active"])

    print(
        f"untrained: {evaluate(unseen, policy).scores()['success']:.0%} of {args.worlds} worlds crossed by all robots"
    )
    play(steps=50)
    for update in range(1, args.updates + 1):
        if update % 10 == 0:
            play(steps=4)
            agent.anneal(frame=4 * env.num_envs * update // 10)
        batch = replay.sample()
        batch["next", "reward"] *= 0.1
        loss = agent.loss(batch)["loss"]
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(agent.parameters_to_train, 10.0)
        optimizer.step()
        schedule.step()
        agent.update_targets(update)
        replay.update_priority(batch["index"], batch["td_error"])
        if update % max(1, args.updates // 10) == 0:
            print(f"update {update}: loss {loss.item():.3f}")
    careful = PolicyWrapper(agent, cvar="adaptive")
    print(f"trained: {evaluate(unseen, policy).scores()['success']:.0%}")
    print(f"careful: {evaluate(unseen, careful).scores()['success']:.0%}")


if __name__ == "__main__":
    main()
