"""Trained packing policies that come with the package: `python benchmarks/packing_policies.py PROTOCOL
[--ckpt_path FILE ... --rows ROWS ... [--patches small|large] [--with_shipped]] [--seeds S ... --rows ROWS ...]
[--visible K ...] [--expecting CASES [--candidates M]] [--knowledge CASES [--candidates M --depth D --beam W]]
[--foretell STEPS] [--bins X Y ...]`.

With `--ckpt_path` a policy is put into the package, with its card: saved as it ships and read back. Of several runs
with different seeds the mean ships: values are sums of entries, so that the mean of the tables is the mean of the
values, at the cost of one; `--with_shipped` adds runs to those that ship already. What is measured is what ships, on
the 2,000 sequences of the protocol's fixed suite, which nothing trained on: packed in a batch, and a few alone for the
time of one decision. ROWS are the `rows.json` of the `benchmarks/equal_time.py` runs, in the same order: the curve of
the first, and where each ended. `--seeds` adds the curves of other runs, which do not ship, with the seeds that they
had. `--visible` packs the same sequences where K boxes are there to choose from, and `--expecting` the first CASES once
more one item ahead. `--knowledge` packs the first CASES by the same values with four degrees of knowledge of the boxes
to come. `--foretell` fits a network to what comes next where boxes are cut, and puts it into the package. `--bins`
packs bins of other floors, X × Y cells, of which nothing was trained, and has two rules pack the same. Each call
replaces the rows of what it measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.equal_time import with_row
from torchrl_gpu import machine
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.protocols import make_protocol
from torchrl_gpu.evaluation.packing.episodes import evaluate
from torchrl_gpu.evaluation.packing.protocols import PUBLISHED, SUITE_SEED, ProtocolSuite
from torchrl_gpu.evaluation.reports import write_json
from torchrl_gpu.policies import AgentSpace, PackingPolicy, load_policy
from torchrl_gpu.policies.packing import baselines
from torchrl_gpu.policies.packing.expectation import ExpectedPlacement, fill_of, shares_of_next
from torchrl_gpu.policies.packing.next_items import (
    FOLDER,
    NextItems,
    learn_next_items,
    next_item_loss,
    pretrained_next_items,
    sequences_cut,
)
from torchrl_gpu.policies.packing.patch_tables import PatchTables
from torchrl_gpu.policies.packing.stream_search import StreamSearch
from torchrl_gpu.policies.policy import known

WEIGHTS = Path(__file__).parents[1] / "torchrl_gpu" / "policies" / "packing" / "weights"
RESULTS = Path(__file__).parent / "results" / "packing_policies.json"
RANDOM = "--model.env.items=torchrl_gpu.envs.packing.items.RandomBoxes"
LARGE = "--model.tables.patches=[2x2,1x4,2x3,1x6,3x3:2,2x4:2]"
OPTIONS = {
    "rs": f"{RANDOM} --model.env.items.min_side=2 --model.env.items.max_side=5",
    "cut1": "--model.env.items.order=layers",
    "cut2": "",
    "discrete125": f"{RANDOM} --model.env.items.min_side=1 --model.env.items.max_side=5"
    " --model.env.orientations=yaw --model.env.stability=support",
    "free125": f"{RANDOM} --model.env.items.min_side=1 --model.env.items.max_side=5"
    " --model.env.orientations=axis --model.env.stability=none",
}
TRAINED = {
    "protocol": "protocol",
    "published": "published",
    "utilization": "policy alone",
    "items": "items",
    "each": "each run, %, other episodes",
    "minutes": "minutes of a core",
    "alone_ms": "ms, one bin",
    "megabytes": "MB",
}
FORETOLD = {
    "protocol": "protocol",
    "network": "nats an item, network",
    "counted": "pairs counted",
    "steps": "steps of 2,048 sequences",
    "minutes": "minutes of a core",
    "megabytes": "MB",
}
AHEAD = {
    "protocol": "protocol",
    "utilization": "one item ahead",
    "alone": "policy alone, same sequences",
    "candidates": "candidates",
    "sequences": "sequences",
    "seconds": "s a sequence, one core",
}
KNOWLEDGE = {
    "protocol": "protocol",
    "nothing": "nothing",
    "the distribution": "the distribution",
    "the boxes but not their order": "the boxes but not their order",
    "the true stream": "the true stream",
    "sequences": "sequences",
    "cpu_minutes": "minutes of a core, all four",
}
VISIBLE = {
    "protocol": "protocol",
    "visible": "boxes to choose from",
    "published": "published",
    "utilization": "policy",
    "items": "items",
    "alone_ms": "ms, one bin",
}
BINS = {
    "protocol": "protocol",
    "cells": "bin, cells",
    "utilization": "policy",
    "dbl": "deepest bottom left",
    "macs": "maximal accessible space",
    "sequences": "sequences",
}


def main() -> None:
    """Saves, measures and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("protocol", choices=OPTIONS)
    parser.add_argument("--ckpt_path", type=Path, nargs="+")
    parser.add_argument("--rows", type=Path, nargs="+")
    parser.add_argument("--seeds", type=int, nargs="+", default=[])
    parser.add_argument("--with_shipped", action="store_true")
    parser.add_argument("--patches", choices=("small", "large"), default="large")
    parser.add_argument("--foretell", type=int, default=0, metavar="STEPS")
    parser.add_argument("--visible", type=int, nargs="+", default=[])
    parser.add_argument("--expecting", type=int, default=0)
    parser.add_argument("--candidates", type=int, default=6)
    parser.add_argument("--knowledge", type=int, default=0)
    parser.add_argument("--depth", type=int, default=10)
    parser.add_argument("--beam", type=int, default=32)
    parser.add_argument("--bins", type=int, nargs="+", default=[])
    parser.add_argument("--cases", type=int, default=2000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.ckpt_path:
        ship(args.protocol, args.ckpt_path, args.rows, args.patches, args.cases, args.with_shipped)
    for seed, rows in zip(args.seeds, args.rows if args.seeds else [], strict=True):
        curve = json.loads(rows.read_text(encoding="utf-8"))
        options = _options(args.protocol, args.patches)
        write_json(RESULTS, _with_curve(f"{args.protocol}, {args.patches}, seed {seed}", options, curve, args.cases))
    if args.foretell:
        _write("foretold", foretold(args.protocol, args.foretell), FORETOLD)
    for visible in args.visible:
        _write("visible", seen(args.protocol, visible, args.cases), VISIBLE)
    for x, y in zip(args.bins[::2], args.bins[1::2], strict=True):
        _write("bins", in_another_bin(args.protocol, x, y, args.cases), BINS)
    if args.expecting:
        _write("ahead", looked_ahead(args.protocol, args.expecting, args.candidates), AHEAD)
    if args.knowledge:
        row = with_knowledge(args.protocol, args.knowledge, args.candidates, args.depth, args.beam)
        _write("knowledge", row, KNOWLEDGE)


def ship(name: str, paths: list[Path], rows: list[Path], patches: str, cases: int, with_shipped: bool) -> None:
    """Puts the mean of the tables of checkpoints into the package, and writes what they reach."""
    runs = [load_policy(path, "cpu") for path in paths]
    before, earlier = shipped(name) if with_shipped else ({}, [])
    loaded, tables = runs[0], mean_of([*(_tables_of(each) for each in runs), *earlier])
    curves = [json.loads(each.read_text(encoding="utf-8")) for each in rows]
    curve, ends = curves[0], [f"{100 * each[-1]['value']:.1f}" for each in curves]
    ends = [*([before["each"] or "–"] if before else []), *ends]
    options = _options(name, patches)
    marks = " ".join(f"{each['minutes']:g}" for each in curve)
    command = f"python benchmarks/equal_time.py {name} --config packing.yaml --table curves --episodes 2000"
    command += f" --minutes {marks} -- --seed_everything SEED {options}".rstrip()
    minutes = before.get("minutes", 0.0) + sum(_spent(path) for path in paths) / 60
    frames = before.get("frames", 0) + sum(each.about["frames"] for each in runs)
    number = len(runs) + len(earlier)
    about = {"protocol": name, "command": command, "runs": number, "minutes": minutes, "frames": frames}
    WEIGHTS.mkdir(exist_ok=True)
    path = WEIGHTS / f"{name}.safetensors"
    PackingPolicy(loaded.space, tables, about | {"commit": loaded.about["commit"]}).save(path)

    (played,) = _played(name, cases)
    row = {
        "name": name,
        "protocol": f"`{name}`",
        "published": _published(name, 1),
        "utilization": f"**{_percent(played)}**",
        "items": f"{played['num_packed']:.2f}",
        "each": ", ".join(ends),
        "minutes": f"{minutes:.0f}",
        "alone_ms": f"{played['decision_alone_ms']:.2f}",
        "megabytes": f"{path.stat().st_size / 1e6:.1f}",
        "command": command,
        "commit": loaded.about["commit"],
    }
    _write("trained", row, TRAINED)
    if not with_shipped:  # the curve is the first run's
        write_json(RESULTS, _with_curve(f"{name}, {patches}", options, curve, cases))
    path.with_suffix(".md").write_text(_card(name, row, played, about), encoding="utf-8")


def shipped(name: str) -> tuple[dict[str, Any], list[PatchTables]]:
    """What the policy in the package is, and its tables once for each run that they are the mean of."""
    from safetensors import safe_open

    policy = PackingPolicy.from_pretrained(name, "cpu")
    with safe_open(str(WEIGHTS / f"{name}.safetensors"), "pt") as file:
        policy.tables.path[file.get_tensor("entry").long()] = 1.0  # entries that were learned, and so saved
    sections = json.loads(RESULTS.read_text(encoding="utf-8"))["sections"]
    rows = next(each["rows"] for each in sections if each["title"] == "trained")
    row = next(each for each in rows if each["name"] == name)
    return {**policy.about, "each": row.get("each", "")}, [policy.tables] * policy.about.get("runs", 1)


def mean_of(tables: list[PatchTables]) -> PatchTables:
    """The mean of tables of the same patches, of each entry over the runs that learned it; in place of the first."""
    weight = torch.stack([each.weight for each in tables])
    learned = torch.stack([(each.path > 0)[each.plan.first_images] for each in tables])
    number = learned.sum(0)
    mean = (weight * learned).sum(0) / number.clamp_min(1)
    tables[0].weight.copy_(torch.where(number > 0, mean, weight[0]))
    tables[0].path.copy_(torch.stack([each.path for each in tables]).sum(0))
    return tables[0]


def _options(name: str, patches: str) -> str:
    return " ".join(filter(None, [OPTIONS[name], LARGE if patches == "large" else ""]))


def _tables_of(policy: torch.nn.Module) -> PatchTables:
    return next(each for each in policy.modules() if isinstance(each, PatchTables))


def _spent(path: Path) -> float:
    callbacks = torch.load(path, weights_only=True, mmap=True)["callbacks"]
    return float(next(each["spent"] for each in callbacks.values() if "spent" in each))


def seen(name: str, visible: int, cases: int) -> dict[str, Any]:
    """The row of a shipped policy that has so many boxes to choose from."""
    (played,) = _played(name, cases, visible)
    return {
        "name": f"{name}, {visible}",
        "protocol": f"`{name}`",
        "visible": visible,
        "published": _published(name, visible),
        "utilization": f"**{_percent(played)}**",
        "items": f"{played['num_packed']:.2f}",
        "alone_ms": f"{played['decision_alone_ms']:.2f}",
    }


def foretold(name: str, steps: int) -> dict[str, Any]:
    """Fits a network to what comes next in cut sequences and puts it into the package; its row."""
    torch.manual_seed(0)
    env = make_protocol(name, 1, device="cpu", seed=SUITE_SEED)
    network = NextItems.of(env, ages=24)
    began = time.process_time()
    losses = learn_next_items(network, env, steps, batch=2048)
    minutes = (time.process_time() - began) / 60
    command = f"python benchmarks/packing_policies.py {name} --foretell {steps}"
    commit = machine.describe(torch.device("cpu"))["commit"]
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{name}.safetensors"
    network.save(path, {"protocol": name, "command": command, "minutes": minutes, "commit": commit})

    rows = sequences_cut(env, SUITE_SEED, 0, 20_000)  # the first 2,000 are the suite's
    draws = torch.rand(len(rows), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        of_network = next_item_loss(NextItems.from_file(path), rows, draws).item()
    path.with_suffix(".md").write_text(
        f"""# What comes next in `{name}`

- What it is: the probability that each box comes next, by the boxes that came before (`NextItems`), in half precision.
  `ExpectedPlacement` looks one box ahead by it.
- Result: {of_network:.3f} nats a box on 20,000 sequences of the suite's seed; by counting pairs of boxes
  {counted_loss(env, rows, draws):.3f}.
- Command: `{command}`
- Cost: {minutes:.0f} minutes of one core of a CPU, {steps * 2048:,} sequences; commit {commit[:12]}.
- Licence: Apache-2.0, as the package. No data was used: boxes are cut from seeds.
""",
        encoding="utf-8",
    )
    return {
        "name": name,
        "protocol": f"`{name}`",
        "network": f"**{of_network:.3f}**",
        "counted": f"{counted_loss(env, rows, draws):.3f}",
        "steps": f"{steps:,}",
        "minutes": f"{minutes:.0f}",
        "megabytes": f"{path.stat().st_size / 1e6:.1f}",
        "losses": [round(each, 4) for each in losses],
        "command": command,
        "commit": commit,
    }


def counted_loss(env: PackingEnv, rows: torch.Tensor, draws: torch.Tensor) -> float:
    """What `shares_of_next` has in place of `next_item_loss`."""
    shares, number = shares_of_next(env, 200_000), (rows >= 0).sum(1)
    last = ((number - 1) * draws).long()
    volume = env.catalogue.volume[rows.clamp_min(0)] * (rows >= 0) / env.bin.volume
    came = volume.cumsum(1).gather(1, last[:, None])[:, 0]
    item, following = (rows.gather(1, at[:, None])[:, 0] for at in (last, last + 1))
    return -shares[fill_of(came), item, following].log().mean().item()


def looked_ahead(name: str, cases: int, candidates: int) -> dict[str, Any]:
    """The row of a shipped policy that takes the expectation over the next item of its best placements."""
    suite = ProtocolSuite(name, cases, include=("z_map", "packed_items"), device="cpu")
    policy = PackingPolicy.from_pretrained(name, "cpu", space=AgentSpace.of(suite.env))
    foretold = pretrained_next_items(suite.env)
    ahead = ExpectedPlacement(suite.env, policy.tables, candidates, next_items=foretold)
    began = time.process_time()
    (played,) = suite.compared({name: ahead})["policies"]
    seconds = time.process_time() - began
    (alone,) = suite.compared({name: policy})["policies"]
    return {
        "name": name,
        "protocol": f"`{name}`",
        "utilization": f"**{_percent(played)}**",
        "alone": _percent(alone),
        "candidates": candidates,
        "sequences": f"{cases:,}",
        "seconds": f"{seconds / cases:.2f}",
    }


def with_knowledge(name: str, cases: int, candidates: int, depth: int, beam: int) -> dict[str, Any]:
    """The row of the values of a shipped policy with each degree of knowledge, on the same sequences.

    Cells say the mean utilization, and by how much it is above the policy alone, with the error of that difference.
    """
    suite = ProtocolSuite(name, cases, include=("z_map", "packed_items", "future_items"), device="cpu")
    policy = PackingPolicy.from_pretrained(name, "cpu", space=AgentSpace.of(suite.env))
    began = time.process_time()
    planners = [
        policy,
        ExpectedPlacement(suite.env, policy.tables, candidates, next_items=pretrained_next_items(suite.env)),
        ExpectedPlacement(suite.env, policy.tables, candidates, knows="the boxes but not their order"),
        StreamSearch(suite.env, policy.tables, depth, beam),
    ]
    measured, alone = {}, torch.empty(0)
    for planner in planners:
        started, knows = time.process_time(), known(planner)
        found = suite.play(planner)
        alone = found.utilization if knows == "nothing" else alone
        more = (found.utilization - alone).double()
        measured[knows] = {
            "utilization": found.utilization.mean().item(),
            "utilization_error": found.score(knows).utilization_error,
            "items": found.num_packed.mean().item(),
            "more": more.mean().item(),
            "more_error": (more.std() / len(more) ** 0.5).item(),
            "seconds_a_sequence": (time.process_time() - started) / cases,
        }
        print(knows, measured[knows], flush=True)
    told = {
        knows: f"{each['utilization']:.2%} ({100 * each['more']:+.2f} ± {100 * each['more_error']:.2f})"
        for knows, each in measured.items()
    }
    return {
        "name": name,
        "protocol": f"`{name}`",
        **told,
        "nothing": f"{measured['nothing']['utilization']:.2%} ± {measured['nothing']['utilization_error']:.2%}",
        "sequences": f"{cases:,}",
        "cpu_minutes": f"{(time.process_time() - began) / 60:.1f}",
        "settings": {"candidates": candidates, "depth": depth, "beam": beam},
        "measured": measured,
    }


def in_another_bin(name: str, x: int, y: int, cases: int) -> dict[str, Any]:
    """The row of a shipped policy in a bin of X × Y × 10 cells, and of two rules on the same boxes."""

    def env() -> PackingEnv:
        return make_protocol(
            name,
            cases,
            bin_size=(float(x), float(y), 10.0),
            resolution=(x, y),
            num_items=x * y,
            include=("z_map",),
            device="cpu",
            seed=SUITE_SEED,
        )

    policy = PackingPolicy.from_pretrained(name, "cpu", space=AgentSpace.of(env()))
    rules = baselines(env(), ["dbl", "macs"])
    found = {word: evaluate(env(), each).score(word) for word, each in {"policy": policy, **rules}.items()}
    told = {word: f"{each.utilization:.2%} ± {each.utilization_error:.2%}" for word, each in found.items()}
    best, dbl, macs = told.values()
    return {
        "name": f"{name}, {x}×{y}",
        "protocol": f"`{name}`",
        "cells": f"{x}×{y}×10",
        "utilization": f"**{best}**",
        "dbl": dbl,
        "macs": macs,
        "sequences": f"{cases:,}",
    }


def _played(name: str, cases: int, visible: int = 1) -> list[dict[str, Any]]:
    suite = ProtocolSuite(name, cases, visible_items=visible, device="cpu")
    policy = PackingPolicy.from_pretrained(name, "cpu", space=AgentSpace.of(suite.env))
    played: list[dict[str, Any]] = suite.compared({name: policy}, timed=3)["policies"]
    return played


def _published(name: str, visible: int) -> str:
    told = PUBLISHED.get((name, visible), ())
    best = max(told, key=lambda each: each[1], default=None)
    return "–" if best is None else f"{best[1]}% ({best[0]})"


def _write(title: str, row: dict[str, Any], columns: dict[str, str]) -> None:
    """The row, in place of the one of the same name."""
    about = machine.describe(torch.device("cpu"))
    row = row | {"cpu": about["cpu"]}
    sections = json.loads(RESULTS.read_text(encoding="utf-8"))["sections"] if RESULTS.is_file() else []
    before = next((each["rows"] for each in sections if each["title"] == title), [])
    rows = [each for each in before if each["name"] != row["name"]] + [row]
    rows.sort(key=lambda each: (list(OPTIONS).index(each["protocol"].strip("`")), each.get("visible", 1)))
    content = {
        "command": "python benchmarks/packing_policies.py PROTOCOL",
        "machine": about,
        "sections": [
            *(each for each in sections if each["title"] != title),
            {"title": title, "columns": columns, "rows": rows},
        ],
    }
    write_json(RESULTS, content)
    print(row)


def _with_curve(name: str, options: str, curve: list[dict[str, Any]], episodes: int) -> dict[str, Any]:
    told = {f"after_{each['minutes']:g}": f"{each['value']:.1%} ({each['updates']:,})" for each in curve}
    row = {"name": name, "options": options or "–", "episodes": episodes, "after": curve, **told}
    content = with_row(RESULTS, "curves", row)
    (table,) = (each for each in content["sections"] if each["title"] == "curves")
    marks = {
        key: told.split(" (")[0].removeprefix("after ") for key, told in table["columns"].items() if "after_" in key
    }
    table["columns"] = {"name": "", **marks}
    return content | {"command": "python benchmarks/packing_policies.py PROTOCOL"}


def _percent(row: dict[str, Any]) -> str:
    return f"{row['utilization']:.2%} ± {row['utilization_error']:.2%}"


def _card(name: str, row: dict[str, Any], played: dict[str, Any], about: dict[str, Any]) -> str:
    return f"""# A policy for `{name}`

- Protocol: `{name}`, see docs/packing-protocols.md; one visible box, bin of 10×10×10 cells.
- Result: {_percent(played)} utilization, {played["num_packed"]:.2f} boxes, on the {played["num_episodes"]:,}
  sequences of the fixed suite. It knew nothing of the boxes to come. Published: {row["published"]}.
- Command: `{about["command"]}`
- Cost: {about["minutes"]:.0f} minutes of one core of a CPU, {about["frames"]:,} placements, in {about["runs"]} runs
  of different seeds, of which this is the mean; commit {row["commit"][:12]}.
- What it is: values of the bin after each placement, by look-up tables of patches of its heightmap (`PatchTables`), in
  half precision.
- Licence: Apache-2.0, as the package. No data was used: boxes are drawn from seeds.
"""


if __name__ == "__main__":
    main()
