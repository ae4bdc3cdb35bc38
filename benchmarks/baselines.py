"""The baselines in every protocol: prints the table of `docs/environments/packing.md` and writes its figures as JSON.

python benchmarks/baselines.py --num_episodes 1000 --output benchmarks/results/baselines.json
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from rich.progress import track

from torchrl_gpu.envs.packing.protocols import PROTOCOLS, make_protocol
from torchrl_gpu.evaluation.packing.episodes import Score, evaluate
from torchrl_gpu.policies.packing import baselines


def main() -> None:
    """Packs the same episodes with every baseline, one protocol after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num_episodes", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1_000_003)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/baselines.json"))
    args = parser.parse_args()
    results: dict[str, list[Score]] = {}
    for name in track(PROTOCOLS, "protocols"):
        env = make_protocol(name, args.num_episodes, seed=args.seed, device=args.device, include=["z_map"])
        results[name] = [evaluate(env, policy).score(label) for label, policy in baselines(env).items()]
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps({k: [asdict(row) for row in v] for k, v in results.items()}, indent=2) + "\n")
    print(markdown(results))


def markdown(results: dict[str, list[Score]]) -> str:
    """The table, a row for each baseline: mean utilization ± standard error in per cent / items packed."""
    lines = ["| policy | " + " | ".join(results) + " |", "|---" * (len(results) + 1) + "|"]
    for rows in zip(*results.values(), strict=True):
        cells = [
            f"{100 * row.utilization:.1f} ± {100 * row.utilization_error:.1f} / {row.num_packed:.1f}" for row in rows
        ]
        lines.append(f"| {rows[0].policy} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
