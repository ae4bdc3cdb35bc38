"""CMA-ES: an evolution strategy that adapts the covariance of its mutations."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

# Between the seeds of two generations: the golden ratio of 2**32.
_SEED_STEP = 0x9E3779B9

# Smallest variance along an axis.
_LEAST_VARIANCE = 1e-12


class Population(nn.Module):
    """Normal distribution whose mean and covariance follow the better vectors drawn.

    Hansen, "The CMA evolution strategy: a tutorial", arXiv 1604.00772, figure 6 with the default parameters of table 1,
    without negative weights. In float64. A generation is drawn from a seed and its number alone.

    Args:
        mean: (F,) float64, at first.
        step: Standard deviation along each axis at first.
        members: Of a generation.
    """

    mean: Tensor
    step: Tensor
    path: Tensor
    step_path: Tensor
    covariance: Tensor
    generation: Tensor

    def __init__(self, mean: Tensor, step: float, members: int) -> None:
        super().__init__()
        n = len(mean)
        self.members = members
        num_parents = members // 2
        parents = torch.arange(1, num_parents + 1, dtype=torch.float64, device=mean.device)
        share = math.log((members + 1) / 2) - parents.log()
        self.share = (share / share.sum()).tolist()
        mass = 1 / sum(each**2 for each in self.share)
        self.mass = mass
        self.path_rate = (4 + mass / n) / (n + 4 + 2 * mass / n)
        self.step_rate = (mass + 2) / (n + mass + 5)
        self.rank_one = 2 / ((n + 1.3) ** 2 + mass)
        many = 2 * (mass - 2 + 1 / mass) / ((n + 2) ** 2 + mass)
        self.rank_many = min(1 - self.rank_one, many)
        mass_per_axis = (mass - 1) / (n + 1)
        excess = max(0.0, mass_per_axis**0.5 - 1)
        self.damping = 1 + 2 * excess + self.step_rate
        # Expected length of a standard normal vector.
        self.length = n**0.5 * (1 - 1 / (4 * n) + 1 / (21 * n * n))
        self.register_buffer("mean", mean.double().clone())
        self.register_buffer("step", mean.new_tensor(step).double().clone())
        self.register_buffer("path", torch.zeros_like(mean))
        self.register_buffer("step_path", torch.zeros_like(mean))
        self.register_buffer("covariance", torch.eye(n, dtype=torch.float64, device=mean.device))
        self.register_buffer("generation", torch.zeros((), dtype=torch.int64, device=mean.device))

    def draw(self, seed: int) -> Tensor:
        """Draw the members (M, F) of the next generation, whose number is read back."""
        number = int(self.generation)
        generator = torch.Generator().manual_seed((seed + _SEED_STEP * (number + 1)) % 2**63)
        shape = self.members, len(self.mean)
        # Drawn on the host, so that a generation does not depend on the device.
        normal = torch.randn(shape, dtype=torch.float64, device="cpu", generator=generator)
        # For every generation, where the tutorial saves most of these decompositions: there are few weights, and an
        # episode takes longer.
        values, self._axes = torch.linalg.eigh(self.covariance)
        self._scale = values.clamp_min(_LEAST_VARIANCE).sqrt()
        self._moves = (normal.to(self.mean.device) * self._scale) @ self._axes.T
        return self.mean + self.step * self._moves

    def learn(self, fitness: Tensor) -> None:
        """Follow the members drawn last by their fitness (M,), largest first."""
        self.generation += 1
        order = fitness.argsort(descending=True, stable=True)[: len(self.share)]
        share = self.mean.new_tensor(self.share)
        better = self._moves[order]
        move = share @ better
        self.mean += self.step * move
        rate = self.step_rate
        # The path of the step size counts moves in standard deviations, so that long axes do not look like long steps.
        along_axes = (self._axes.T @ move) / self._scale
        white = self._axes @ along_axes
        self.step_path.mul_(1 - rate).add_((rate * (2 - rate) * self.mass) ** 0.5 * white)
        length = self.step_path.norm()
        settled = (1 - (1 - rate) ** (2 * self.generation)) ** 0.5
        # While the step size still grows fast, the other path waits: long steps in a row would look like a direction.
        n = len(self.mean)
        most = (1.4 + 2 / (n + 1)) * self.length
        goes_on = (length / settled < most).double()
        rate = self.path_rate
        self.path.mul_(1 - rate).add_(goes_on * (rate * (2 - rate) * self.mass) ** 0.5 * move)
        # A path that waits adds less variance, for which the old one stays a little longer.
        stalled = (1 - goes_on) * self.rank_one * rate * (2 - rate)
        kept = 1 - self.rank_one - self.rank_many + stalled
        self.covariance.mul_(kept)
        along_path = torch.outer(self.path, self.path)
        self.covariance += self.rank_one * along_path
        self.covariance += self.rank_many * (better.T * share) @ better
        longer = length / self.length - 1
        self.step *= (self.step_rate / self.damping * longer).exp()
