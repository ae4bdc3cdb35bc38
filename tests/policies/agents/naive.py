"""Decisions and losses of each agent in Python's own numbers.

One sample, one quantile, one atom at a time.

Networks are the agent's; random numbers are drawn in the order in which the agent draws them, from the same seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import product
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from torchrl_gpu.policies import Agent


def seen(network: Any, sample: TensorDict) -> list[Tensor]:
    return [sample[key] for key in network.in_keys]


def best(scores: Iterable[float], mask: Tensor) -> int:
    return max((score, -a) for a, score in enumerate(scores) if mask[a])[1] * -1


def huber(error: float) -> float:
    return 0.5 * error**2 if abs(error) <= 1 else abs(error) - 0.5


def bootstrap(sample: TensorDict, agent: Agent, value: float) -> float:
    after = sample["next"]
    if after["terminated"].item():
        return after["reward"].item()
    return after["reward"].item() + agent.gamma ** sample["steps_to_next_obs"].item() * value


def quantile_loss(values: list[float], taus: list[float], wanted: list[float]) -> float:
    total = 0.0
    for value, tau in zip(values, taus, strict=True):
        for target in wanted:
            error = target - value
            total += abs(tau - (1.0 if error < 0 else 0.0)) * huber(error) / len(wanted)
    return total


def distance(values: list[float], wanted: list[float]) -> float:
    total = sum(abs(target - value) for target, value in product(wanted, values))
    return total / (len(wanted) * len(values))


# -- scores: what a decision is made by, for one state -----------------------------------------------------------------


def q_scores(network: Any, state: TensorDict) -> list[float]:
    return network(*seen(network, state)).tolist()


def atom_scores(network: Any, support: Tensor, state: TensorDict) -> list[float]:
    scores = []
    for logits in network(*seen(network, state)).tolist():
        powers = [math.exp(logit) for logit in logits]
        scores.append(sum(p * z for p, z in zip(powers, support.tolist(), strict=True)) / sum(powers))
    return scores


def quantile_scores(network: Any, state: TensorDict, number: int, level: float = 1.0) -> list[float]:
    total: list[float] | None = None
    for k in range(number):
        tau = torch.tensor([level * (k + 0.5) / number])
        (row,) = network(*seen(network, state), tau).tolist()
        total = row if total is None else [a + b for a, b in zip(total, row, strict=True)]
    assert total is not None
    return [value / number for value in total]


def scores(agent: Any, state: TensorDict, level: float = 1.0) -> list[float]:
    """Scores of every action, by any discrete agent."""
    if agent.name == "DQN":
        return q_scores(agent.policy[0].module, state)
    if agent.name == "Rainbow":
        return atom_scores(agent.online.network, agent.online.support, state)
    return quantile_scores(agent.scores.network, state, agent.scores.num_taus, level)


def squashed(numbers: Tensor, kind: str = "tanh") -> list[float]:
    return [math.tanh(z) if kind == "tanh" else 2 / math.pi * math.atan(z) for z in numbers.tolist()]


def decided(agent: Any, state: TensorDict) -> list[float]:
    """The action of any continuous agent within [−1, 1]."""
    if agent.name == "SAC":
        return squashed(agent.policy.network(*seen(agent.policy.network, state))[0], agent.policy.squash.kind)
    actor = agent.policy.module
    return squashed(actor.network(*seen(actor.network, state)), actor.squash.kind)


# -- losses: of one transition, with the size of the error -------------------------------------------------------------


def dqn(agent: Any, target: Any, sample: TensorDict, double: bool = True) -> tuple[float, float]:
    online, after = agent.policy[0].module, sample["next"]
    chosen = best(q_scores(online if double else target, after), after["action_mask"])
    wanted = bootstrap(sample, agent, q_scores(target, after)[chosen])
    error = q_scores(online, sample)[int(sample["action"])] - wanted
    return huber(error), abs(error)


def rainbow(agent: Any, sample: TensorDict, double: bool = True) -> tuple[float, float]:
    """Algorithm 1 of Bellemare et al. 2017."""
    online = agent.online.network
    target = agent.target.network
    support = agent.online.support
    after = sample["next"]
    chosen = best(atom_scores(online if double else target, support, after), after["action_mask"])
    chances = target(*seen(target, after))[chosen].softmax(-1).tolist()
    atoms = support.tolist()
    lowest = atoms[0]
    highest = atoms[-1]
    gap = (atoms[-1] - atoms[0]) / (len(atoms) - 1)
    wanted = [0.0] * len(atoms)
    for chance, atom in zip(chances, atoms, strict=True):
        place = (min(max(bootstrap(sample, agent, atom), lowest), highest) - lowest) / gap
        below = min(int(place), len(atoms) - 1)
        wanted[below] += chance * (1 - (place - below))
        if place > below:
            wanted[below + 1] += chance * (place - below)
    logits = online(*seen(online, sample))[int(sample["action"])].log_softmax(-1).tolist()
    loss = -sum(p * q for p, q in zip(wanted, logits, strict=True))
    return loss, loss


def iqn(
    agent: Any, sample: TensorDict, taus: Tensor, next_taus: Tensor, double: bool = True, level: float = 1.0
) -> tuple[float, float]:
    online = agent.scores.network
    target = agent.target
    after = sample["next"]
    mask, action = after["action_mask"], int(sample["action"])
    values = [online(*seen(online, sample), tau[None])[0, action].item() for tau in taus]
    following = [target(*seen(target, after), tau[None])[0].tolist() for tau in next_taus]
    chosen = best(quantile_scores(online if double else target, after, len(taus), level), mask)
    samples = [row[chosen] for row in following]
    wanted = [bootstrap(sample, agent, value) for value in samples]
    return quantile_loss(values, taus.tolist(), wanted), distance(values, wanted)


def ddpg(agent: Any, target: Any, sample: TensorDict) -> tuple[float, float, float]:
    """Return the critic's and the actor's loss and the error.

    `target` holds target actor and critic.
    """
    target_actor, target_critic = target
    critic = agent.objective.value_network.module
    actor = agent.policy.module
    after = sample["next"]
    action = torch.tensor(squashed(target_actor.network(*seen(target_actor.network, after)), actor.squash.kind))
    value = target_critic(*seen(target_critic, after), action).item()
    wanted = bootstrap(sample, agent, value)
    error = critic(*seen(critic, sample), sample["action"]).item() - wanted
    own = critic(*seen(critic, sample), torch.tensor(decided(agent, sample))).item()
    return huber(error), saturation(agent, sample) - own, abs(error)


def saturation(agent: Any, sample: TensorDict) -> float:
    network = agent.policy.module.network
    return agent.saturation_penalty * sum(z**2 for z in network(*seen(network, sample)).tolist())


def drawn(policy: Any, sample: TensorDict, noise: Tensor) -> tuple[Tensor, float]:
    """An action of SAC and the logarithm of its density, by the change of variables."""
    mean, log_std = policy.network(*seen(policy.network, sample))
    action, log_prob = [], 0.0
    for mu, log_sigma, eps in zip(mean.tolist(), log_std.tolist(), noise.tolist(), strict=True):
        z = mu + math.exp(log_sigma) * eps
        (a,) = squashed(torch.tensor([z], dtype=torch.float64), policy.squash.kind)
        action.append(a)
        if policy.squash.kind == "tanh":
            slope = 1 / math.cosh(z) ** 2
        else:
            slope = 2 / math.pi / (1 + z**2)
        log_prob += -0.5 * eps**2 - log_sigma - 0.5 * math.log(2 * math.pi) - math.log(slope)
    return torch.tensor(action), log_prob


def sac(agent: Any, sample: TensorDict, noise: Tensor, next_noise: Tensor) -> tuple[float, float, float]:
    after, alpha = sample["next"], agent.log_alpha.exp().item()
    action, log_prob = drawn(agent.policy, after, next_noise)
    worth = min(critic(*seen(critic, after), action).item() for critic in agent.target_critics)
    wanted = bootstrap(sample, agent, worth - alpha * log_prob)
    errors = [critic(*seen(critic, sample), sample["action"]).item() - wanted for critic in agent.critics]
    action, log_prob = drawn(agent.policy, sample, noise)
    worth = min(critic(*seen(critic, sample), action).item() for critic in agent.critics)
    return sum(e**2 for e in errors), alpha * log_prob - worth, max(abs(e) for e in errors)


def ac_iqn(
    agent: Any, sample: TensorDict, taus: Tensor, actor_taus: Tensor, next_taus: Tensor, level: float = 1.0
) -> tuple[float, float, float]:
    critic = agent.critic
    target = agent.target_critic
    after = sample["next"]
    values = [critic(*seen(critic, sample), sample["action"], tau[None]).item() for tau in taus]
    network = agent.target_actor.network
    action = torch.tensor(squashed(network(*seen(network, after)), agent.actor.squash.kind))
    samples = [target(*seen(target, after), action, tau[None]).item() for tau in next_taus]
    wanted = [bootstrap(sample, agent, value) for value in samples]
    own = torch.tensor(decided(agent, sample))
    worth = [critic(*seen(critic, sample), own, level * tau[None]).item() for tau in actor_taus]
    climbed = saturation(agent, sample) - sum(worth) / len(worth)
    return quantile_loss(values, taus.tolist(), wanted), climbed, distance(values, wanted)
