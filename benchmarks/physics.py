"""What the three ways of judging stability cost and say: `python benchmarks/physics.py [FOLDER]`.

Packs bins of 40 × 40 × 30 cm by a rule and at random, and judges each in MuJoCo: let go as a whole, item by item, and
the last item alone after each placement. Seconds are of one processor core. FOLDER holds mesh files in metres, for the
first rows; they are packed at half to nine tenths of their size, those that fit. Without it those rows are left out.
Two and a half minutes of one core.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.progress import track
from rich.table import Table
from torchrl.envs.utils import step_mdp

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import ItemSource, ProceduralSolids
from torchrl_gpu.envs.packing.physics import PhysicsJudge, plan_of, settle
from torchrl_gpu.evaluation.reports import print_whole, write_json
from torchrl_gpu.machine import describe
from torchrl_gpu.policies.packing import HeightmapMinimization, RandomLegal, VolumeSorted

CPU = torch.device("cpu")
NO_HULLS = ("bowl", "mug", "l_shape", "u_shape", "cylinder")
COLUMNS = {
    "items": "items of a bin",
    "packed": "items",
    "parts": "parts",
    "whole": "whole: S",
    "whole_s": "seconds",
    "one_by_one": "one by one: S",
    "one_by_one_s": "seconds",
    "last": "last only: S",
    "last_ms": "ms each",
}


class Bins(NamedTuple):
    """What is packed."""

    name: str
    items: ItemSource
    resolution: int


def main() -> None:
    """Prints the table and writes it."""
    args = _arguments()
    every = list(_bins(args.folder))
    rows = [judged(bins, *rule, args.items) for bins in every for rule in _rules()]
    result = {
        "benchmark": "physics",
        "machine": describe(CPU),
        "bins_of_a_row": 1,
        "files": _files(every[0].items) if args.folder else [],
        "sections": [{"title": "modes", "columns": COLUMNS, "rows": rows}],
    }
    table = Table(*COLUMNS.values())
    for row in rows:
        table.add_row(*(f"{v:.3g}" if isinstance(v, float) else str(v) for v in map(row.__getitem__, COLUMNS)))
    print_whole(table)
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        write_json(args.output, result)


def _files(meshes: Any) -> list[str]:
    """Names of the files whose objects were packed."""
    left_out = {str(path) for path, _ in meshes.skipped}
    return sorted({Path(item.shape.name).name for item in meshes.items if item.shape.name not in left_out})


def _bins(folder: Path | None) -> Iterator[Bins]:
    if folder is not None:
        from torchrl_gpu.envs.packing.items import MeshItems

        yield Bins("meshes", MeshItems(folder, scale=(0.5, 0.9), num_scales=5, skip_invalid=True, device=CPU), 200)
    yield Bins("procedural, cells of 4 mm", ProceduralSolids(60, 0.04, 0.1, shapes=NO_HULLS), 100)
    yield Bins("procedural, cells of 2 mm", ProceduralSolids(60, 0.04, 0.1), 200)


def _rules() -> Iterator[tuple[str, Callable[[PackingEnv], Any]]]:
    yield "heightmap minimisation", lambda env: VolumeSorted(env, HeightmapMinimization(env), by="box")
    yield "random legal", RandomLegal


def judged(bins: Bins, rule: str, policy_of: Callable[[PackingEnv], Any], num_items: int) -> dict[str, Any]:
    """The row of a bin packed by a rule."""
    env = PackingEnv(
        1,
        bin_size=(0.4, 0.4, 0.3),
        resolution=bins.resolution,
        grid_step=4,
        items=bins.items,
        num_items=num_items,
        visible_items=5,
        orientations="cube",
        order="box",
        include=["z_map"],
        device=CPU,
        seed=0,
    )
    name = f"{bins.name}, {rule}"
    stands, last_s = _packed(env, policy_of(env), name)
    plan = plan_of(env, 0)
    (whole, whole_s), (one_by_one, one_by_one_s) = (
        _timed(lambda sequential=sequential: settle(*plan, sequential=sequential)) for sequential in (False, True)
    )
    return {
        "items": name,
        "packed": len(stands),
        "parts": sum(len(solid.parts) for solid in plan.solids),
        "whole": whole.share,
        "whole_s": whole_s,
        "one_by_one": one_by_one.share,
        "one_by_one_s": one_by_one_s,
        "last": sum(stands) / len(stands),
        "last_ms": 1e3 * last_s / len(stands),
    }


def _packed(env: PackingEnv, policy: Any, name: str) -> tuple[list[bool], float]:
    """Fills the bin; whether each item stood when it was placed, and the seconds that it took to tell."""
    judge, current, stands, seconds = PhysicsJudge(workers=1), env.reset(), [], 0.0
    torch.manual_seed(0)
    for _ in track(range(env.num_items), name):
        stepped = env.step(policy(current))
        verdict, busy = _timed(lambda: judge(env, torch.tensor([True])))
        stands.append(bool(verdict))
        seconds += busy
        current = step_mdp(stepped)
        if stepped["next", "done"].item():
            break
    return stands, seconds


def _timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """What a call gives, and its processor time in seconds."""
    start = time.process_time()
    given = call()
    return given, time.process_time() - start


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--items", type=int, default=50, help="offered to a bin")
    parser.add_argument("--output", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
