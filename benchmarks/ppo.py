"""An iteration of PPO, ours against that of rsl_rl's runner.

Both have the same environments, networks, steps, epochs and minibatches.

Both play and learn in turn in one process, each warm; figures are samples per second of processor time, the medians of
all turns. Ours is a training step of `OnPolicy` with all that Lightning adds, as it is and with `torch_compile`, which
compiles steps of the environment and its policy, and losses with their gradients. Nothing is printed unless both do the
same: rewards, ends and observations of the adapter are the environment's, advantages are rsl_rl's, and after some
updates from the same rollout the weights are alike; compiled steps and losses are compared with plain ones first.

python benchmarks/ppo.py --output benchmarks/results/ppo.json
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from rsl_rl.runners import OnPolicyRunner
from tensordict import TensorDict
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.result_types import JsonObject
from benchmarks.tables import listed
from torchrl_gpu.envs import BatchedEnv, DishwashingEnv, MarineNavEnv, RslRlVecEnv
from torchrl_gpu.evaluation.reports import write_json
from torchrl_gpu.policies import PPO, AgentSpace
from torchrl_gpu.policies.losses import generalized_advantage
from torchrl_gpu.system import machine
from torchrl_gpu.training import OnPolicy
from torchrl_gpu.training.data.episodes import StepLoader
from torchrl_gpu.training.updates.compiled import CompiledLosses

STEPS = 24
EPOCHS = 5
MINIBATCHES = 4
RATE = 1e-3
GAMMA = 0.99
LAM = 0.95
CLIP = 0.2
NORM = 1.0


def _shifts(num_envs: int) -> BatchedEnv:
    return DishwashingEnv(num_envs, observe_as="state", device="cpu", seed=0)


def _vessels(num_envs: int) -> BatchedEnv:
    alone = [[0, 1, 0, 4, 30.0]]
    return MarineNavEnv(num_envs, version="v3", flat=True, curriculum=alone, pool=256, device="cpu", seed=0)


ENVS: dict[str, Callable[[int], BatchedEnv]] = {"dishwashing": _shifts, "navigation, one vessel": _vessels}


class Actor(nn.Module):
    """rsl_rl's Gaussian perceptron: one standard deviation for all states."""

    in_keys = ("observation",)

    def __init__(self, space: AgentSpace, hidden: list[int]) -> None:
        super().__init__()
        self.net = perceptron(space.size_of("observation"), hidden, space.action_shape[0])
        self.log_std = nn.Parameter(torch.zeros(space.action_shape))

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and logarithm of the standard deviation, (…, D)."""
        mean = self.net(observation)
        return mean, self.log_std.expand_as(mean)


class Critic(nn.Module):
    """rsl_rl's perceptron for values."""

    in_keys = ("observation",)

    def __init__(self, space: AgentSpace, hidden: list[int]) -> None:
        super().__init__()
        self.net = perceptron(space.size_of("observation"), hidden, 1)

    def forward(self, observation: Tensor) -> Tensor:
        """Values (…, 1)."""
        return self.net(observation)


def perceptron(size: int, hidden: list[int], out: int) -> nn.Sequential:
    """Linear layers with ELU between."""
    widths = [size, *hidden]
    layers: list[nn.Module] = []
    for one, other in pairwise(widths):
        layers += [nn.Linear(one, other), nn.ELU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], out))


def agent_of(space: AgentSpace, hidden: list[int]) -> PPO:
    """Ours, without a bonus for entropy, which squashing makes another one."""
    nets = {"actor": partial(Actor, hidden=hidden), "critic": partial(Critic, hidden=hidden)}
    return PPO(space, **nets, gamma=GAMMA, lam=LAM, clip=CLIP, entropy_coeff=0.0)


def runner_of(
    env: BatchedEnv, hidden: list[int], epochs: int = EPOCHS, minibatches: int = MINIBATCHES
) -> OnPolicyRunner:
    """rsl_rl's, with what it reads back by choice switched off."""
    net = {"class_name": "MLPModel", "hidden_dims": hidden, "activation": "elu"}
    gaussian = {"class_name": "GaussianDistribution", "init_std": 1.0, "std_type": "log"}
    algorithm = {"class_name": "PPO", "num_learning_epochs": epochs, "num_mini_batches": minibatches}
    algorithm |= {"clip_param": CLIP, "gamma": GAMMA, "lam": LAM, "entropy_coef": 0.0, "learning_rate": RATE}
    algorithm |= {"max_grad_norm": NORM, "use_clipped_value_loss": False, "schedule": "fixed", "desired_kl": None}
    config = {
        "num_steps_per_env": STEPS,
        "save_interval": 10**9,
        "check_for_nan": False,
        "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
        "algorithm": algorithm,
        "actor": net | {"distribution_cfg": gaussian},
        "critic": dict(net),
    }
    with contextlib.redirect_stdout(io.StringIO()):
        return OnPolicyRunner(RslRlVecEnv(env, ["observation"]), config, None, "cpu")


# -- that both do the same --


def check_adapter(make: Callable[[int], BatchedEnv]) -> None:
    """ValueError unless rows of the adapter are those of the environment."""
    adapter, env = RslRlVecEnv(make(8), ["observation"]), make(8)
    low = env.full_action_spec["action"].space.low
    high = env.full_action_spec["action"].space.high
    current = env.reset()
    torch.manual_seed(0)
    for _ in range(150):
        action = torch.randn(8, adapter.num_actions)
        stepped, current = env.step_and_maybe_reset(
            current.set("action", low + (action.clamp(-1, 1) + 1) * (high - low) / 2)
        )
        seen, reward, done, _ = adapter.step(action)
        after = stepped["next"]
        same = torch.equal(reward, after["reward"][:, 0]) and torch.equal(done, after["done"][:, 0])
        if not (same and torch.equal(seen["policy"], current["observation"])):
            raise ValueError("ppo: rewards, ends or observations of the adapter are not those of the environment")


def check_learning(make: Callable[[int], BatchedEnv], hidden: list[int]) -> None:
    """Raise unless advantages and trained weights are those of rsl_rl.

    Both learn from the same rollout.
    """
    torch.manual_seed(0)
    runner, updates = runner_of(make(16), hidden, epochs=6, minibatches=1), 6
    alg, storage = runner.alg, runner.alg.storage
    agent = agent_of(AgentSpace.of(make(1)), hidden)
    copy_weights(alg, agent)
    obs = runner.env.get_observations()
    with torch.inference_mode():
        for _ in range(STEPS):
            obs, rewards, dones, extras = runner.env.step(alg.act(obs))
            alg.process_env_step(obs, rewards, dones, extras)
        alg.compute_returns(obs)
        last = alg.critic(obs)
    value, done = storage.values.transpose(0, 1), storage.dones.transpose(0, 1).bool()
    following = torch.cat([value[:, 1:], last[:, None]], 1)
    reward = storage.rewards.transpose(0, 1)
    ours = generalized_advantage(reward, value, following, done, done, gamma=GAMMA, lam=LAM)
    near(ours + value, storage.returns.transpose(0, 1), "advantages")
    z = storage.actions.flatten(0, 1).clone()
    log_prob = storage.actions_log_prob.flatten() - agent.policy.squash.log_slope(z).sum(-1)
    rows = {"observation": storage.observations["policy"].flatten(0, 1).clone(), "unsquashed_action": z}
    rows["action_log_prob"] = log_prob.clone()
    rows["advantage"] = storage.advantages.flatten(0, 1).clone()
    rows["value_target"] = storage.returns.flatten(0, 1).clone()
    batch = TensorDict(rows, [len(z)])
    alg.update()
    optimizer = torch.optim.Adam(agent.parameters_to_train, lr=RATE)
    for _ in range(updates):
        optimizer.zero_grad()
        agent.loss(batch)["loss"].backward()
        for weights in agent.parameter_groups.values():
            nn.utils.clip_grad_norm_(weights, NORM)
        optimizer.step()
    other = copy.deepcopy(agent)
    copy_weights(alg, other)
    for weight, theirs in zip(agent.parameters_to_train, other.parameters_to_train, strict=True):
        near(weight, theirs, "weights after updates")


def copy_weights(alg: Any, agent: PPO) -> None:
    """Give our networks the weights of rsl_rl."""
    actor: Any = agent.policy.network
    actor.net.load_state_dict(alg.actor.mlp.state_dict())
    agent.critic.net.load_state_dict(alg.critic.mlp.state_dict())  # type: ignore[union-attr]
    actor.log_std.data.copy_(alg.actor.distribution.log_std_param)


def near(ours: Tensor, theirs: Tensor, what: str) -> None:
    """ValueError unless two tensors are alike to rounding."""
    if not torch.allclose(ours, theirs, rtol=1e-3, atol=1e-4):
        raise ValueError(f"ppo: {what} differ from those of rsl_rl by {(ours - theirs).abs().max():.2g}")


# -- how fast --


class InTurn(Callback):
    """Callback that runs an iteration of rsl_rl's runner after every training step.

    It keeps the processor seconds of both.
    """

    def __init__(self, runner: OnPolicyRunner) -> None:
        self.runner = runner
        self.ours: list[float] = []
        self.theirs: list[float] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The first turn begins."""
        self._begun = time.process_time()

    def on_train_batch_end(self, *args: object) -> None:
        """Ours is over, and theirs follows."""
        between = time.process_time()
        self.runner.learn(1)
        end = time.process_time()
        self.ours.append(between - self._begun)
        self.theirs.append(end - between)
        self._begun = time.process_time()


def measure(
    make: Callable[[int], BatchedEnv], num_envs: int, hidden: list[int], turns: int, compiled: bool, warm: int = 3
) -> dict[str, float]:
    """Measure samples per second of ours and of rsl_rl in `turns` turns.

    The turns that warm both up do not count.
    """
    torch.manual_seed(0)
    in_turn = InTurn(runner_of(make(num_envs), hidden))
    module = OnPolicy(
        make(num_envs),
        partial(agent_of, hidden=hidden),
        partial(torch.optim.Adam, lr=RATE, fused=True),
        rollout_steps=STEPS,
        epochs=EPOCHS,
        minibatches=MINIBATCHES,
        max_grad_norm=NORM,
        # On a CPU this runs the same operators, without Lightning between them.
        graph_updates=True,
        torch_compile=compiled,
    )
    with tempfile.TemporaryDirectory() as folder:
        Trainer(
            default_root_dir=folder,
            max_steps=(turns + warm) * EPOCHS * MINIBATCHES,
            accelerator="cpu",
            logger=False,
            callbacks=[in_turn],
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            log_every_n_steps=10**9,
        ).fit(module, StepLoader(turns + warm))
    steps: Any = module.rollout._compiled
    if compiled and not (cast("CompiledLosses", module._losses).proven and steps.proven):
        raise ValueError("ppo: steps or losses ran their operators one by one, not compiled")
    kept = {"ours": in_turn.ours, "rsl_rl": in_turn.theirs}
    return {name: num_envs * STEPS / statistics.median(each[warm:]) for name, each in kept.items()}


def row_of(make: Callable[[int], BatchedEnv], num_envs: int, hidden: list[int], turns: int) -> JsonObject:
    """A line of the table."""
    plain = measure(make, num_envs, hidden, turns, False)
    compiled = measure(make, num_envs, hidden, turns, True)
    rates = plain | {"compiled": compiled["ours"]}
    return {name: round(rate) for name, rate in rates.items()} | {
        "ratio": round(plain["ours"] / plain["rsl_rl"], 2),
        "compiled_ratio": round(compiled["ours"] / compiled["rsl_rl"], 2),
    }


COLUMNS = {
    "env": "environment",
    "num_envs": "environments",
    "ours": "ours, samples/s",
    "compiled": "ours compiled",
    "rsl_rl": "rsl_rl",
    "ratio": "ours / rsl_rl",
    "compiled_ratio": "compiled / rsl_rl",
}


def main(argv: list[str]) -> None:
    """Checks, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", nargs="+", type=int, default=[16, 64, 256], help="environments side by side")
    parser.add_argument("--hidden", nargs="+", type=int, default=[64, 64], help="widths of the hidden layers")
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    rows = []
    for name, make in ENVS.items():
        check_adapter(make)
        check_learning(make, args.hidden)
        for num_envs in args.envs:
            row = {"env": name, "num_envs": num_envs, "hidden": args.hidden}
            rows.append(row | row_of(make, num_envs, args.hidden, args.turns))
    section = {"title": "iteration", "columns": COLUMNS, "rows": rows}
    print(listed(section))
    if args.output:
        versions = {each: metadata.version(each) for each in ("torch", "torchrl", "lightning", "rsl-rl-lib")}
        settings = {"steps": STEPS, "epochs": EPOCHS, "minibatches": MINIBATCHES, "turns": args.turns, "threads": 1}
        about = machine.describe(torch.device("cpu"))
        about["versions"] |= versions
        result = {"benchmark": "ppo", "settings": settings, "machine": about, "sections": [section]}
        write_json(args.output, result)
        print(f"Written: {args.output}")


if __name__ == "__main__":
    main(sys.argv[1:])
