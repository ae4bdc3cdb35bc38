"""How good the trained policies of the shift at the sink are, in the same shifts that none of them was trained on:
`python benchmarks/dishwashing.py --state CKPT --video CKPT --stationary CKPT [--output FILE]`.

Checkpoints are those of `dishwashing_feasible.yaml`, of `dishwashing_video.yaml` and of the former with
`--model.env.stationary true`. Beside the first two stand the best pair of speed and care that is kept for a whole
shift, and the best policy that is linear in the state behind a sigmoid; both are searched for by the cross-entropy
method, in other shifts. What the third earns is the mean of the formula, without luck, over the states that it comes
to. A few minutes.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.envs.utils import ExplorationType, set_exploration_type

from torchrl_gpu import machine
from torchrl_gpu.envs import DishwashingEnv
from torchrl_gpu.envs.dishes.economics import slice_reward
from torchrl_gpu.evaluation.reports import write_json
from torchrl_gpu.play.loading import load_run

SEARCH, TEST = 1, 2  # seeds of shifts
_CANDIDATES, _SHIFTS, _ELITE = 40, 64, 8

Act = Callable[[TensorDictBase], Tensor]


@torch.no_grad()
def earned(env: DishwashingEnv, act: Act) -> Tensor:
    """EUR of one shift in each environment, (N,)."""
    current, total = env.reset(), torch.zeros(env.num_envs)
    for _ in range(env.max_steps):
        after = env.step(current.set("action", act(current)))["next"]
        total += after["reward"][:, 0]
        current = after.exclude("reward")
    return total


def linear(weights: Tensor) -> Act:
    """Speed and care of states (N, 6), by weights (2, 7), or (N, 2, 7), behind a sigmoid."""

    def act(state: TensorDictBase) -> Tensor:
        seen = state["observation"]
        known = torch.cat([seen, torch.ones(len(seen), 1)], 1)
        return torch.sigmoid((weights * known[:, None]).sum(-1))

    return act


def search(free: Tensor, start: Tensor, rounds: int) -> Tensor:
    """Weights (2, 7) whose shifts earn most, by the cross-entropy method; only those that are `free` are changed."""
    torch.manual_seed(0)
    env = DishwashingEnv(_CANDIDATES * _SHIFTS, device="cpu", seed=SEARCH)
    middle, spread = start, torch.ones(2, 7) * free
    for _ in range(rounds):
        tried = middle + spread * torch.randn(_CANDIDATES, 2, 7)
        score = earned(env, linear(tried.repeat_interleave(_SHIFTS, 0))).view(_CANDIDATES, _SHIFTS).mean(1)
        best = tried[score.topk(_ELITE).indices]
        middle = 0.3 * middle + 0.7 * best.mean(0)
        spread = (0.3 * spread + 0.7 * best.std(0) + 0.03) * free
    return middle


def trained(config: str, checkpoint: Path, *options: str) -> tuple[Any, Act]:
    """The environment of a config, and the greedy policy of a checkpoint."""
    cli, _ = load_run("benchmark", ["--config", config, *options], str(checkpoint))
    module: Any = cli.model
    policy = module.policy_for(module.env).eval()

    def act(state: TensorDictBase) -> Tensor:
        with set_exploration_type(ExplorationType.DETERMINISTIC):
            return policy(state.copy())["action"]

    return module.env, act


def row(name: str, profits: Tensor) -> dict[str, Any]:
    """Mean and standard error."""
    return {"policy": name, "profit": profits.mean().item(), "error": (profits.std() / math.sqrt(len(profits))).item()}


def stationary(checkpoint: Path, shifts: int) -> dict[str, float]:
    """What a policy earns in a shift that does not move, without luck, and what could be earned, EUR."""
    env, act = trained("dishwashing_feasible.yaml", checkpoint, "--model.env.stationary=true")
    env, rewards = env.like(shifts, seed=TEST), []

    def watched(state: TensorDictBase) -> Tensor:
        action = act(state)
        rewards.append(slice_reward(env.economics, *action.double().numpy().T).mean())
        return action

    luck = earned(env, watched)
    best = env.optimum.reward * env.max_steps
    return {"profit": sum(rewards), "optimum": best, "share": sum(rewards) / best, "with_luck": luck.mean().item()}


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("state", "video", "stationary"):
        parser.add_argument(f"--{name}", type=Path, required=True, help="checkpoint")
    parser.add_argument("--shifts", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=40, help="of a search")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "dishwashing.json")
    args = parser.parse_args()
    free = torch.zeros(2, 7)
    free[:, 6] = 1.0
    constant = search(free, torch.zeros(2, 7), args.rounds)
    bent = search(torch.ones(2, 7), constant, args.rounds)
    fresh = DishwashingEnv(args.shifts, device="cpu", seed=TEST)
    rows = [row("best constant", earned(fresh, linear(constant)))]
    rows.append(row("best linear", earned(fresh.like(args.shifts), linear(bent))))
    for name in ("state", "video"):
        config = "dishwashing_feasible.yaml" if name == "state" else "dishwashing_video.yaml"
        env, act = trained(config, getattr(args, name))
        rows.append(row(f"SAC, {name}", earned(env.like(args.shifts, seed=TEST), act)))
    for each in rows:
        print(f"{each['policy']}: {each['profit']:.2f} ± {each['error']:.2f} EUR a shift")
    still = stationary(args.stationary, args.shifts)
    print(f"where nothing moves: {still['profit']:.2f} of {still['optimum']:.2f} EUR, {still['share']:.1%}")
    result = {
        "command": "python benchmarks/dishwashing.py --state CKPT --video CKPT --stationary CKPT",
        "machine": machine.describe(torch.device("cpu")),
        "shifts": args.shifts,
        "rows": rows,
        "video_share_of_state": rows[3]["profit"] / rows[2]["profit"],
        "stationary": still,
    }
    write_json(args.output, result)
    print(f"Written: {args.output}")


if __name__ == "__main__":
    main()
