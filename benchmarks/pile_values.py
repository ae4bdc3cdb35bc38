"""What piles of irregular objects are worth, learned from rollouts: `python benchmarks/pile_values.py play --seed S
[--minutes M] [--samples FILE]`, once for each seed, then `python benchmarks/pile_values.py fit FILE ...`.

`play` packs the objects of `packing_irregular.yaml` and now and then stops: it makes every placement of an item that
`PileValuePacker` would look at, and finishes each of these bins by box order and heightmap minimisation, with the items
that this very episode still has. So placements from one pile are compared on one future, which the policy never sees
(Bertsekas, Tsitsiklis and Wu 1997, rollout policies). What is kept of each are its fifteen numbers and the compactness
that its bin ended with; FILE is written anew every minute.

`fit` finds by ridge regression the weights that tell the placements from one pile apart, says what the best of them by
these weights would gain over heightmap minimisation in piles that were left out (tenfold), and writes the weights into
the package. The policy itself is measured by `torchrl-gpu evaluate --config packing_irregular.yaml --methods hm waste
values --sets easy hard`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))

from torchrl_gpu import machine
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import ProceduralSolids
from torchrl_gpu.evaluation.reports import write_json
from torchrl_gpu.policies.packing.pile_values import _SHIPPED, NAMES, Looked, PileValuePacker, PileValues

RESULTS = Path(__file__).parent / "results" / "pile_values.json"
RIDGE, FOLDS = 100.0, 10
STOPS, BINS, ITEMS = 0.15, 8, 8  # chance that a pile is looked at, bins side by side, items to pick from


def environment(seed: int) -> PackingEnv:
    """That of `packing_irregular.yaml`, with its objects."""
    items = ProceduralSolids(num_objects=300, min_size=0.045, max_size=0.15, seed=1)
    size = {"bin_size": (0.4, 0.4, 0.3), "resolution": 200, "grid_step": 4, "orientations": "cube", "order": "box"}
    shown = {"num_items": 50, "visible_items": 20, "include": ["z_map"]}
    return PackingEnv(BINS, items=items, device="cpu", seed=seed, **size, **shown)  # type: ignore[arg-type]


class Bins(NamedTuple):
    """Bins on their way: piles, their items largest first, which of them are still to come, and what is packed."""

    pile: Tensor  # (B, X, Y) float32
    items: Tensor  # (B, T) int64
    left: Tensor  # (B, T) bool
    unfit: Tensor  # (B, T) bool, no longer fits anywhere, and never will
    packed: Tensor  # (B,) float32, utilization

    def rows(self, index: Tensor) -> Bins:
        """Some of them, as copies."""
        return Bins(*(each[index] for each in self))

    def in_view(self, visible: int) -> Tensor:
        """(B, T) bool, items that are visible and may fit."""
        return self.left & (self.left.cumsum(1) <= visible) & ~self.unfit


class Player:
    """Packs bins by rules, without an environment, which would make the maps of all visible items."""

    def __init__(self, env: PackingEnv) -> None:
        self.env, self.visible = env, env.visible_items
        self.packer = PileValuePacker(env, PileValues([0.0] * len(NAMES)), ITEMS)

    def begin(self) -> Bins:
        """New episodes."""
        self.env.reset()
        key, (n, length) = self.env.state.key, (self.env.num_envs, self.env.item_sequences.length)
        items = self.env.item_sequences.items(key, torch.arange(length).expand(n, -1))
        left = items >= 0
        return Bins(torch.zeros(n, *self.env.bin.cells), items, left, torch.zeros_like(left), torch.zeros(n))

    def look(self, bins: Bins, items: int) -> tuple[Tensor, Looked]:
        """Positions (B, J) of the largest items that may fit, and their placements; notes those that fit nowhere."""
        length = bins.items.shape[1]
        order = torch.where(bins.in_view(self.visible), torch.arange(length), length).sort(1).values[:, :items]
        there, position = order < length, order.clamp_max(length - 1)
        item = bins.items.gather(1, position)
        planes, turns = self.packer.planes, self.env.num_orientations
        variants = (item[:, :, None] * turns + torch.arange(turns)).flatten(1)
        maps = planes.kernels.drop_map(bins.pile, variants, planes.catalogue, planes.bin)
        z_map, legal = (each[:, :, 0].unflatten(1, (-1, turns)) for each in maps)
        looked = self.packer.look(bins.pile, item, z_map, legal & there[:, :, None, None, None])
        bins.unfit[torch.arange(len(item))[:, None], position] |= there & looked.growth.isinf().all(2)
        return position, looked

    def put(self, bins: Bins, position: Tensor, looked: Looked, at: tuple[Tensor, Tensor, Tensor]) -> Bins:
        """Copies of bins, with one placement made in each: of bins, items and placements `at`."""
        row, item, _ = at
        made = bins.rows(row)
        one = Looked(looked.item[row, item][:, None], *(each[at][:, None, None] for each in looked[1:]))
        made.left[torch.arange(len(row)), position[row, item]] = False
        packed = made.packed + self.packer.volume[one.item[:, 0]]
        return made._replace(pile=self.packer.after(made.pile, one), packed=packed)

    def finish(self, bins: Bins) -> Tensor:
        """Compactness (B,) of bins that box order and heightmap minimisation pack to the end."""
        pile, packed = bins.pile.clone(), bins.packed.clone()
        index = torch.arange(len(pile))
        while len(index):
            position, looked = self.look(bins, 1)
            fits = looked.growth[:, 0, 0].isfinite().nonzero()[:, 0]
            first = torch.zeros_like(fits)
            for mine, theirs in zip(bins, self.put(bins, position, looked, (fits, first, first)), strict=True):
                mine[fits] = theirs
            pile[index], packed[index] = bins.pile, bins.packed
            going = bins.in_view(self.visible).any(1).nonzero()[:, 0]
            bins, index = bins.rows(going), index[going]
        return packed / (pile.amax((1, 2)) / self.env.bin.size[2])


def play(seed: int, minutes: float, file: Path) -> None:
    """Plays, and keeps samples."""
    torch.manual_seed(seed)
    player = Player(environment(1000 + seed))
    bins, begun, written = player.begin(), time.process_time(), 0.0
    samples: list[dict[str, Tensor]] = []
    while (spent := time.process_time() - begun) < 60 * minutes:
        position, looked = player.look(bins, ITEMS)
        fits = looked.growth[:, :, 0].isfinite()  # (B, J)
        largest, least, any_fits = fits.int().argmax(1), player.packer.pick(looked), fits.any(1)
        item = torch.where(torch.rand(BINS) < 0.5, largest, least)
        stops = (torch.rand(BINS) < STOPS) & any_fits
        samples += [sample(player, bins, position, looked, index, item[index]) for index in stops.nonzero()[:, 0]]
        # The next item goes where its best placement is, or now and then to one of the others.
        places = looked.growth[torch.arange(BINS), item].isfinite()  # (B, T)
        drawn = torch.where(places, torch.rand(places.shape), -1.0).argmax(1)
        which = torch.where(torch.rand(BINS) < 0.3, drawn, 0)
        rows = any_fits.nonzero()[:, 0]
        put = player.put(bins, position, looked, (rows, item[rows], which[rows]))
        for mine, theirs in zip(bins, put, strict=True):
            mine[rows] = theirs
        over = ~bins.in_view(player.visible).any(1)
        if over.any():
            for mine, fresh in zip(bins, player.begin(), strict=True):
                mine[over] = fresh[over]
        if spent - written > 60:
            written = spent
            torch.save({"seed": seed, "seconds": spent, "samples": samples}, file)
            gain = sum(float(each["compactness"].max() - each["compactness"][0]) for each in samples) / len(samples)
            print(f"{spent / 60:.1f} min, {len(samples)} piles, the best placement ends {gain:.4f} higher", flush=True)
    torch.save({"seed": seed, "seconds": time.process_time() - begun, "samples": samples}, file)


def sample(
    player: Player, bins: Bins, position: Tensor, looked: Looked, index: Tensor, item: Tensor
) -> dict[str, Tensor]:
    """The numbers (M, 15) of the piles that placements of one item leave, and how compact each bin ended, (M,); the
    first is that of heightmap minimisation."""
    which = looked.growth[index, item].isfinite().nonzero()[:, 0]
    at = index.expand_as(which), item.expand_as(which), which
    made = player.put(bins, position, looked, at)
    packer = player.packer
    base = looked.base[at] / player.env.bin.size[2]
    numbers = packer.values.numbers(packer.heights(made.pile), looked.growth[at], base)
    return {"numbers": numbers, "compactness": player.finish(made)}


def fit(files: list[Path]) -> None:
    """Fits, prints and writes."""
    runs = [torch.load(file, weights_only=True) for file in files]
    samples = [each for run in runs for each in run["samples"] if len(each["compactness"]) > 1]
    numbers = [each["numbers"].double() - each["numbers"].double().mean(0) for each in samples]
    ended = [each["compactness"].double() for each in samples]
    weights = regressed(numbers, ended)
    curve = []
    for share in (0.25, 0.5, 1.0):
        number = int(share * len(samples))
        gains = left_out(numbers[:number], ended[:number])
        curve.append({"piles": number, "gain": gains.mean().item(), "error": (gains.std() / number**0.5).item()})
        print(f"{number} piles: {curve[-1]['gain']:+.5f} ± {curve[-1]['error']:.5f} a placement, left out")
    commands = [
        f"python benchmarks/pile_values.py play --seed {run['seed']} --minutes {run['seconds'] / 60:.0f}"
        for run in runs
    ]
    about = {
        "command": "; ".join([*commands, "python benchmarks/pile_values.py fit FILE ..."]),
        "machine": machine.describe(torch.device("cpu")),
        "seconds": [run["seconds"] for run in runs],
        "placements": sum(len(each) for each in ended),
        "best": sum(float(each.max() - each[0]) for each in ended) / len(ended),
        "left_out": curve,
    }
    held = {
        "weights": [round(each, 6) for each in weights.tolist()],
        "names": NAMES,
        "commit": about["machine"]["commit"],
    }
    _SHIPPED.write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")
    write_json(RESULTS, about | held)
    print(json.dumps(dict(zip(NAMES, held["weights"], strict=True)), indent=1))


def regressed(numbers: list[Tensor], ended: list[Tensor]) -> Tensor:
    """Weights (15,) of numbers that tell the outcomes from one pile apart."""
    x = torch.cat(numbers)
    y = torch.cat([each - each.mean() for each in ended])
    scale = x.std(0).clamp_min(1e-9)
    x = x / scale
    return torch.linalg.solve(x.T @ x + RIDGE * torch.eye(len(scale), dtype=x.dtype), x.T @ y) / scale


def left_out(numbers: list[Tensor], ended: list[Tensor]) -> Tensor:
    """What the placement of the largest value gains over the first, in piles that the weights were not fitted to."""
    gains, order = [], torch.randperm(len(ended), generator=torch.Generator().manual_seed(0)).tolist()
    for fold in range(FOLDS):
        others = [index for at, index in enumerate(order) if at % FOLDS != fold]
        weights = regressed([numbers[i] for i in others], [ended[i] for i in others])
        gains += [ended[i][(numbers[i] @ weights).argmax()] - ended[i][0] for i in order[fold::FOLDS]]
    return torch.stack(gains)


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    jobs = parser.add_subparsers(dest="job", required=True)
    playing, fitting = jobs.add_parser("play"), jobs.add_parser("fit")
    playing.add_argument("--seed", type=int, default=0)
    playing.add_argument("--minutes", type=float, default=25.0)
    playing.add_argument("--samples", type=Path, default=Path("pile_values.pt"))
    fitting.add_argument("samples", type=Path, nargs="+")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.job == "play":
        play(args.seed, args.minutes, args.samples)
    else:
        fit(args.samples)


if __name__ == "__main__":
    main()
