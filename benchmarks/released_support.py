"""The shipped policy of `discrete125` by the rule `support` as GOPT released it, which refuses some edge cases.

python benchmarks/released_support.py

The released rule asks matplotlib's `Path.contains_point` whether the hull of the contact cells holds the centre, which
refuses a hull with nothing before the centre along y (`docs/environments/packing.md`). Where the policy would make such
a placement it makes the best one that the released rule takes; an episode ends where there is none.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from torchrl_gpu import machine
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.evaluation.packing.protocols import ProtocolSuite
from torchrl_gpu.evaluation.reports import write_json
from torchrl_gpu.policies import PackingPolicy

RESULT = Path(__file__).parent / "results" / "released_support.json"
PROTOCOL = "discrete125"


class ByReleasedRule(TensorDictModuleBase):
    """A policy with values of placements, kept to those that the released rule takes.

    Args:
        env: The protocol's, with `z_map`.
        policy: Writes `action_value`.
        keeps: Whether it is; otherwise its placements that the released rule refuses are made, and only counted.
    """

    knows = "nothing"

    def __init__(self, env: PackingEnv, policy: PackingPolicy, *, keeps: bool) -> None:
        super().__init__()
        self.keeps, self.env, self.policy, self.edge_cases, self.placements = keeps, env, policy, 0, 0
        self.in_keys, self.out_keys = policy.in_keys, ["action"]
        self._over = torch.zeros(0, dtype=torch.bool, device=env.device)  # episodes that the released rule has ended

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Writes `action`, −1 where the released rule takes none."""
        values = self.policy(tensordict.clone(False))["action_value"].clone()
        begins = tensordict["step_count"][:, 0] == 0
        self._over = torch.zeros_like(begins) if len(self._over) != len(begins) else self._over & ~begins
        legal = tensordict["legal_mask"].flatten(1) & ~self._over[:, None]
        values[~legal] = -torch.inf
        self.placements += int(legal.any(1).sum())
        first = True
        while True:
            best, action = values.max(1)
            refused = refuses(self.env, tensordict, action) & best.isfinite()
            self.edge_cases += int(refused.sum()) if first else 0
            first = False
            if not (self.keeps and refused.any()):
                self._over |= ~best.isfinite()
                return tensordict.set("action", torch.where(best.isfinite(), action, -1))
            values[refused, action[refused]] = -torch.inf


def refuses(env: PackingEnv, shown: TensorDictBase, action: Tensor) -> Tensor:
    """Whether the released rule refuses placements (N,) that are legal by ours, (N,) bool; one item is shown."""
    heights, rows = shown["box_heightmap"], torch.arange(len(action), device=action.device)
    grid = env.grid[0] * env.grid[1]
    orientation, place = action // grid, action % grid
    x, y = place // env.grid[1], place % env.grid[1]
    z = shown["z_map"].flatten(1)[rows, action]
    extent = env.catalogue.extent[shown["item_id"][:, 0].clamp_min(0), orientation]  # (N, 2)
    p, q = (torch.arange(side, device=action.device) for side in env.catalogue.footprint)
    inside = (p[:, None] < extent[:, :1, None]) & (q < extent[:, 1:, None])  # (N, P, Q)
    at_x = (x[:, None] + p).clamp_max(env.bin.cells[0] - 1)
    at_y = (y[:, None] + q).clamp_max(env.bin.cells[1] - 1)
    window = heights[rows[:, None, None], at_x[:, :, None], at_y[:, None, :]]
    contact = (window >= (z - env.bin.tolerance)[:, None, None]) & inside
    number = contact.sum((1, 2))
    i, j = (each.expand_as(contact) * contact for each in (p[:, None], q))
    sums = [(each * contact).sum((1, 2)) for each in (i, j, i * i, j * j, i * j)]
    spread = (number * sums[2] - sums[0] ** 2) * (number * sums[3] - sums[1] ** 2)
    in_line = spread == (number * sums[4] - sums[0] * sums[1]) ** 2
    before = (contact & (2 * q < extent[:, 1:, None] - 1)).any(2).any(1)
    half = 2 * number > extent.prod(1)
    return (z > env.bin.tolerance) & ~half & ~in_line & ~before


def main() -> None:
    """Plays the suite by our rule and by the released one, and writes both rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, help="sequences; all 2,000 by default")
    parser.add_argument("--output", type=Path, default=RESULT)
    args = parser.parse_args()
    suite = ProtocolSuite(PROTOCOL, args.cases, device="cpu")
    policy = PackingPolicy.from_pretrained(PROTOCOL, "cpu")
    rules = {name: ByReleasedRule(suite.env, policy, keeps=name == "released") for name in ("ours", "released")}
    rows = [asdict(each.score(name)) for name, each in suite.play_all(rules).items()]
    edge = {"edge_cases": rules["ours"].edge_cases, "placements": rules["ours"].placements}
    edge |= {"share": rules["ours"].edge_cases / rules["ours"].placements}
    for row in rows:
        shares = f"{row['utilization']:.2%} ± {row['utilization_error']:.2%}"
        print(f"{row['policy']}: {shares}, {row['num_packed']:.2f} items")
    print("edge cases: {edge_cases:,} of {placements:,} placements, {share:.2%}".format(**edge))
    about = {"benchmark": "released_support", "machine": machine.describe(suite.env.device)}
    write_json(args.output, about | {"sequences": suite.describe(), "policies": rows} | edge)


if __name__ == "__main__":
    main()
