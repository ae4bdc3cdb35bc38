"""What placements of the boxes of orders are worth, learned from whole orders: `python benchmarks/placement_values.py
learn [--seed S] [--minutes M]`, then `python benchmarks/placement_values.py measure [--macs ORDERS] [--orders FILE]`.

`learn` searches the weights of `LinearPlacementValues` by CMA-ES (Hansen and Ostermeier 2001, with the settings of
Hansen's tutorial, arXiv 1604.00772): in each generation every member packs the same new orders of `OrderBoxes`, and
what counts is how full their pallets are at the end. It begins at a rule, low and near to the corner. Each number
counts in units of its spread over the placements of one box. The mean of the population is looked at
now and then on validation orders, and the best of these means is written into the package. M are minutes of one core.

`measure` packs the fixed suite of 500 orders by what ships and by the rules, maximal accessible space the first ORDERS
of them only, and says by how much the policy differs from each rule on the same orders. Articles and orders of
training, of validation and of the suite are drawn from different seeds. With a file of orders, such as five real ones
of BED-BPP (Kagerer et al., IJRR 2023), those are packed as well.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))

from torchrl_gpu import machine
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import BoxSequences, OrderBoxes
from torchrl_gpu.envs.packing.items.source import SameItems
from torchrl_gpu.envs.packing.protocols import make_protocol
from torchrl_gpu.envs.packing.types import Placement
from torchrl_gpu.evaluation.packing.episodes import PackingResults, evaluate
from torchrl_gpu.evaluation.packing.protocols import SUITE_SEED, sequence_hash, sequence_sizes
from torchrl_gpu.evaluation.reports import write_json
from torchrl_gpu.policies import AgentSpace, PackingPolicy
from torchrl_gpu.policies.packing import BASELINES
from torchrl_gpu.policies.packing.placement_values import NAMES, Candidates, LinearPlacementValues
from torchrl_gpu.policies.policy import Policy

WEIGHTS = Path(__file__).parents[1] / "torchrl_gpu" / "policies" / "packing" / "weights"
RESULTS = Path(__file__).parent / "results"
FIRST = {"base": -3.0, "reach": -0.5}  # weights at first, in units of spread
MEMBERS, ORDERS, STEP = 14, 32, 0.3  # of a generation; first standard deviation of a member's weights
VALIDATION, SUITE = 256, 500  # orders
RULES = ("random", "first-fit", "dbl", "hm", "lsah", "macs")
SUITE_HASH: str | None = "2a3024ee198db5ceaa52a77ab7cb1b0284df800fb94c31438aafe415b9cda4bd"  # see `sequence_hash`
CARD = """# A policy for orders on a pallet

- Protocol: the setting `orders` (`packing_orders.yaml`): a pallet of 1200×800 mm, 1.5 m high, in cells of 10 mm, places
  50 mm apart, two turns about the vertical, stability `support`, one box visible.
- Result: {utilization} of the pallet, {items} boxes, on a suite of {orders} orders that nothing was learned from
  (`OrderBoxes`). The best rule there, {rule}: {best[utilization]}; on the same orders the policy fills
  {best[more]} points more.
- Command: `{command}`
- Cost: {last[minutes]:.0f} minutes of one core of a CPU, {last[generations]} generations; commit {commit}.
- What it is: {number} weights of numbers of a placement (`LinearPlacementValues`).
- Licence: Apache-2.0, as the package. No data was used: orders are drawn from seeds.
"""
COLUMNS = {
    "policy": "policy",
    "utilization": "utilization",
    "more": "placement values fill more, points",
    "items": "boxes",
    "ms": "ms per decision",
    "orders": "orders",
}
EVERY = 1.0  # minutes between looks at the mean


class Bins(NamedTuple):
    """Bins on their way."""

    pile: Tensor  # (B, X, Y) float32, metres
    order: Tensor  # (B, T) int64, items; -1 behind the last
    position: Tensor  # (B,) int64, of the next item
    packed: Tensor  # (B,) float32, utilization

    def rows(self, index: Tensor) -> Bins:
        """Some of them, as copies."""
        return Bins(*(each[index] for each in self))


class Looked(NamedTuple):
    """Placements of the next item of each bin."""

    item: Tensor  # (B,) int64
    z: Tensor  # (B, M) float32, metres
    found: Candidates  # (B, M)
    numbers: Tensor  # (B, M, F)

    def rows(self, index: Tensor) -> Looked:
        """Of some bins."""
        found = Candidates(*(each[index] for each in self.found))
        return Looked(self.item[index], self.z[index], found, self.numbers[index])

    def value(self, weights: Tensor) -> Tensor:
        """(B, M) by weights (F,) or (B, F), minus infinity for what is no placement."""
        return torch.where(self.found.there, (self.numbers * weights[..., None, :]).sum(2), -torch.inf)


class Population:
    """CMA-ES: a normal distribution of weights whose mean and covariance follow the better members.

    Hansen, "The CMA evolution strategy: a tutorial", arXiv 1604.00772, figure 6 with the default parameters of table 1.

    Args:
        mean: (F,) float64.
        step: Standard deviation along each axis at first.
        members: Of a generation.
        seed: Decides the draws.
    """

    def __init__(self, mean: np.ndarray, step: float, members: int, seed: int) -> None:
        self.mean, self.step, self.members = mean, step, members
        self.rng, n, parents = np.random.default_rng(seed), len(mean), members // 2
        share = np.log((members + 1) / 2) - np.log(np.arange(1, parents + 1))
        self.share = share / share.sum()
        mass = self.mass = 1 / (self.share**2).sum()
        self.path_rate = (4 + mass / n) / (n + 4 + 2 * mass / n)
        self.step_rate = (mass + 2) / (n + mass + 5)
        self.rank_one = 2 / ((n + 1.3) ** 2 + mass)
        self.rank_many = min(1 - self.rank_one, 2 * (mass - 2 + 1 / mass) / ((n + 2) ** 2 + mass))
        self.damping = 1 + 2 * max(0, ((mass - 1) / (n + 1)) ** 0.5 - 1) + self.step_rate
        self.length = n**0.5 * (1 - 1 / (4 * n) + 1 / (21 * n * n))  # expected, of a standard normal vector
        self.path, self.step_path, self.covariance, self.generation = np.zeros(n), np.zeros(n), np.eye(n), 0

    def drawn(self) -> np.ndarray:
        """The members (M, F) of a generation."""
        values, self.axes = np.linalg.eigh(self.covariance)
        self.scale = np.sqrt(np.maximum(values, 1e-12))
        self.moves = (self.rng.standard_normal((self.members, len(self.mean))) * self.scale) @ self.axes.T
        return self.mean + self.step * self.moves

    def learn(self, fitness: np.ndarray) -> None:
        """Follows the members of the largest fitness (M,)."""
        self.generation += 1
        better = self.moves[np.argsort(-fitness, kind="stable")[: len(self.share)]]
        move = self.share @ better
        self.mean = self.mean + self.step * move
        rate = self.step_rate
        white = self.axes @ ((self.axes.T @ move) / self.scale)
        self.step_path = (1 - rate) * self.step_path + (rate * (2 - rate) * self.mass) ** 0.5 * white
        length = np.linalg.norm(self.step_path)
        settled = (1 - (1 - rate) ** (2 * self.generation)) ** 0.5
        moves_on = float(length / settled < (1.4 + 2 / (len(self.mean) + 1)) * self.length)
        rate = self.path_rate
        self.path = (1 - rate) * self.path + moves_on * (rate * (2 - rate) * self.mass) ** 0.5 * move
        kept = 1 - self.rank_one - self.rank_many + (1 - moves_on) * self.rank_one * rate * (2 - rate)
        self.covariance = (
            kept * self.covariance
            + self.rank_one * np.outer(self.path, self.path)
            + self.rank_many * (better.T * self.share) @ better
        )
        self.step *= np.exp(self.step_rate / self.damping * (length / self.length - 1))


class Player:
    """Packs bins without an environment, which would play on those that are done."""

    def __init__(self, seed: int) -> None:
        self.env = make_protocol("orders", 1, items=OrderBoxes(seed=seed), seed=seed, device="cpu")
        self.space = AgentSpace.of(self.env)
        self.values = LinearPlacementValues(self.space, [0.0] * len(NAMES))
        self.begun = 0

    def begin(self, number: int) -> Bins:
        """New orders."""
        row, sequences = torch.arange(self.begun, self.begun + number), self.env.item_sequences
        self.begun += number
        key = sequences.begin(self.env.seed, row, torch.zeros_like(row))
        order = sequences.items(key, torch.arange(sequences.length).expand(number, -1))
        order = torch.cat([order, torch.full_like(order[:, :1], -1)], 1)
        return Bins(torch.zeros(number, *self.env.bin.cells), order, torch.zeros_like(row), torch.zeros(number))

    def look(self, bins: Bins) -> Looked:
        """What may be done with the next item of each."""
        env = self.env
        item = bins.order.gather(1, bins.position[:, None])
        z_map, legal = env.kernels.drop_map(bins.pile, item, env.catalogue, env.bin)
        found = self.values.find(env.item_sizes[item.clamp_min(0)], z_map, legal)
        numbers = self.values.numbers(bins.pile / env.bin.size[2], found)
        return Looked(item[:, 0], z_map.flatten(1).gather(1, found.action), found, numbers)

    def put(self, bins: Bins, looked: Looked, choice: Tensor) -> Bins:
        """After one of the placements of each bin; all of them have one."""
        env, found = self.env, looked.found
        turn = found.action // (env.bin.grid[0] * env.bin.grid[1])
        turn, x, y, z = (each.gather(1, choice[:, None])[:, 0] for each in (turn, found.x, found.y, looked.z))
        pile = env.kernels.place(bins.pile, Placement(looked.item, turn, x, y, z), env.catalogue, env.bin)
        packed = bins.packed + env.catalogue.volume[looked.item] / env.bin.volume
        return bins._replace(pile=pile, position=bins.position + 1, packed=packed)

    def finish(self, bins: Bins, weights: Tensor) -> Tensor:
        """Utilization (B,) of bins that weights (F,), or of each its own (B, F), pack to the end."""
        weights = weights.expand(len(bins.packed), -1)
        ended, index = bins.packed.clone(), torch.arange(len(bins.packed))
        while len(index):
            looked = self.look(bins)
            going = looked.found.there.any(1).nonzero()[:, 0]
            bins, looked, index = bins.rows(going), looked.rows(going), index[going]
            bins = self.put(bins, looked, looked.value(weights[index]).argmax(1))
            ended[index] = bins.packed
        return ended

    def spread(self, weights: Tensor, orders: int = 24, steps: int = 25) -> Tensor:
        """Standard deviation (F,) of each number over the placements of one box, after each of some steps."""
        bins, found = self.begin(orders), []
        for _ in range(steps):
            looked = self.look(bins)
            there = looked.found.there
            numbers = torch.where(there[..., None], looked.numbers, torch.nan)
            found.append((numbers - numbers.nanmean(1, keepdim=True))[there])
            going = there.any(1).nonzero()[:, 0]
            bins, looked = bins.rows(going), looked.rows(going)
            bins = self.put(bins, looked, looked.value(weights).argmax(1))
        return torch.cat(found).std(0).clamp_min(1e-3)


def learn(seed: int, minutes: float) -> None:
    """Learns, and writes what ships."""
    commit = machine.commit()  # before weights are written that it does not hold
    player, validation, begun = Player(1000 + seed), Player(SUITE_SEED + 1), time.process_time()
    orders = validation.begin(VALIDATION)
    first = torch.tensor([FIRST.get(name, 0.0) for name in NAMES])
    spread = player.spread(first)
    population = Population(first.double().numpy(), STEP, MEMBERS, seed)
    rows: list[dict[str, Any]] = []
    while True:
        spent = (time.process_time() - begun) / 60
        if spent >= len(rows) * EVERY or spent >= minutes:
            weights = torch.from_numpy(population.mean).float() / spread
            weights = weights / weights.abs().max()
            ended = validation.finish(orders, weights)
            row = {"minutes": spent, "generations": population.generation, "step": population.step}
            row |= {"utilization": ended.mean().item(), "error": (ended.std() / len(ended) ** 0.5).item()}
            rows.append(row | {"weights": [round(each, 6) for each in weights.tolist()]})
            print(", ".join(f"{name} {value:.4g}" for name, value in row.items()), flush=True)
            written(rows, seed, minutes, player, commit)
        if spent >= minutes:
            return
        bins = player.begin(ORDERS).rows(torch.arange(ORDERS).repeat(MEMBERS))
        weights = (torch.from_numpy(population.drawn()).float() / spread).repeat_interleave(ORDERS, 0)
        population.learn(player.finish(bins, weights).view(MEMBERS, ORDERS).mean(1).double().numpy())


def written(rows: list[dict[str, Any]], seed: int, minutes: float, player: Player, commit: str | None) -> None:
    """Writes the best weights so far into the package, and the curve."""
    best = max(rows, key=lambda row: row["utilization"])
    command = f"python benchmarks/placement_values.py learn --seed {seed} --minutes {minutes:g}"
    about = {"setting": "orders", "command": command, "commit": commit}
    policy = PackingPolicy(player.space, LinearPlacementValues(player.space, best["weights"]), about)
    policy.save(WEIGHTS / "orders.safetensors")
    write_json(RESULTS / "placement_values_training.json", about | {"names": NAMES, "rows": rows})


def measure(macs: int, orders: Path | None) -> None:
    """Packs the suite, and the orders of a file; writes the figures and the card of what ships."""
    env = suite(SUITE)
    found = sequence_hash(sequence_sizes(env, SUITE))
    if SUITE_HASH not in (None, found):
        raise ValueError(f"placement_values: want the suite {SUITE_HASH}; got {found}")
    sections = [section("suite", env, macs)]
    if orders is not None:
        items = BoxSequences(str(orders), "mm", in_order=True)
        number, longest = items.num_sequences, max(len(episode) for episode in items.episodes)
        env = make_protocol("orders", number, items=items, num_items=longest, device="cpu", seed=SUITE_SEED)
        sections.append(section(orders.name, env, number))
    file = "" if orders is None else f" --orders {orders.name}"
    command = f"python benchmarks/placement_values.py measure --macs {macs}{file}"
    about = {"command": command, "machine": machine.describe(env.device), "sha256": found}
    write_json(RESULTS / "placement_values.json", about | {"sections": sections})
    write_card(sections[0])


def write_card(measured: dict[str, Any]) -> None:
    """What comes with the package, in words."""
    trained = json.loads((RESULTS / "placement_values_training.json").read_text(encoding="utf-8"))
    by_name = {row["policy"].strip("*"): row for row in measured["rows"]}
    ours = by_name.pop("placement values")
    rule, best = max(by_name.items(), key=lambda each: each[1]["share"])
    about = {"number": len(NAMES), "rule": rule, "best": best, "last": trained["rows"][-1]}
    (WEIGHTS / "orders.md").write_text(CARD.format(**ours, **trained, **about), encoding="utf-8")


def suite(orders: int) -> PackingEnv:
    """The first so many orders of the suite."""
    return make_protocol("orders", orders, items=OrderBoxes(seed=SUITE_SEED), seed=SUITE_SEED, device="cpu")


def section(title: str, env: PackingEnv, macs: int) -> dict[str, Any]:
    """What each policy makes of the orders of an environment; by MACS only so many of them."""
    ours = packed(env, PackingPolicy.from_pretrained(WEIGHTS / "orders.safetensors", "cpu", space=AgentSpace.of(env)))
    rows = [row("placement values", ours, ours)]
    for word in RULES:
        fewer = word == "macs" and macs < env.num_envs
        some = env.like(macs, items=SameItems(env)) if fewer else env
        name, make = BASELINES[word]
        rows.append(row(name, packed(some, make(some)), ours))
    return {"title": title, "columns": COLUMNS, "rows": sorted(rows, key=lambda each: each["share"])}


def packed(env: PackingEnv, policy: Policy) -> PackingResults:
    """The first episodes of all bins."""
    torch.manual_seed(0)
    return evaluate(env, policy)


def row(name: str, theirs: PackingResults, ours: PackingResults) -> dict[str, Any]:
    """A policy and, on the same orders, what ours packs more."""
    utilization, more = theirs.utilization, ours.utilization[: len(theirs.utilization)] - theirs.utilization
    error = [(each.std() / len(each) ** 0.5).item() for each in (utilization, more)]
    own = theirs is ours
    print(f"{name}: {utilization.mean():.2%} ± {error[0]:.2%}, ours {more.mean():+.2%} ± {error[1]:.2%}", flush=True)
    return {
        "policy": f"**{name}**" if own else name,
        "share": utilization.mean().item(),
        "utilization": f"{utilization.mean():.1%} ± {error[0]:.1%}",
        "more": "" if own else f"{100 * more.mean():+.1f} ± {100 * error[1]:.1f}",
        "items": f"{theirs.num_packed.mean():.1f}",
        "ms": f"{theirs.decision_ms:.2f}",
        "orders": len(utilization),
        "utilizations": [round(each, 5) for each in utilization.tolist()],
    }


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    jobs = parser.add_subparsers(dest="job", required=True)
    learning, measuring = jobs.add_parser("learn"), jobs.add_parser("measure")
    learning.add_argument("--seed", type=int, default=0)
    learning.add_argument("--minutes", type=float, default=6.0)
    measuring.add_argument("--macs", type=int, default=50)
    measuring.add_argument("--orders", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.job == "learn":
        learn(args.seed, args.minutes)
    else:
        measure(args.macs, args.orders)


if __name__ == "__main__":
    main()
