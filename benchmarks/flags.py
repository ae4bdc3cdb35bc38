"""What the flags of a run change in the time of an update: mixed precision, compiled losses, deterministic operators.

Whole updates of six agents on 256 transitions of marine navigation, as `trainer.precision`, `model.compile_losses` and
`trainer.deterministic` have them. All take turns, warm, on the same weights and rows. Parity comes first: compiled and
deterministic losses and gradients are those of the plain update, those in bfloat16 within its few digits. The ceiling
is the rate of matrix products of the same turns, in float32: an update's products at that rate.

python benchmarks/flags.py --output benchmarks/results/flags.json
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torch.profiler import profile

sys.path.insert(0, str(Path(__file__).parent.parent))  # made-up transitions lie among the tests

from benchmarks import agents_updates as updates
from benchmarks import report
from benchmarks.agents_acting import CEILING, matrix_products
from benchmarks.tables import listed
from tests.policies.navigation_spaces import AGENTS
from torchrl_gpu import machine
from torchrl_gpu.bench.timing import TimedRow, measure
from torchrl_gpu.console import progress
from torchrl_gpu.device import get_device
from torchrl_gpu.evaluation.reports import write_json

PLAIN = "32-true"
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")
OF_BFLOAT16 = 0.05  # share by which a loss, or the norm of its gradient, may differ


class Flag(NamedTuple):
    """What a run is told; by what share losses may differ, None where they may by rounding alone."""

    mixed: bool = False
    compiled: bool = False
    deterministic: bool = False
    share: float | None = None


FLAGS = {
    PLAIN: Flag(),
    "bf16-mixed": Flag(mixed=True, share=OF_BFLOAT16),
    "compile_losses": Flag(compiled=True),
    "both": Flag(mixed=True, compiled=True, share=OF_BFLOAT16),
    "deterministic": Flag(deterministic=True),
}


@contextmanager
def determinism(asked: bool) -> Iterator[None]:
    """As `trainer.deterministic`."""
    torch.use_deterministic_algorithms(asked)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def difference(plain: list[float], other: list[float], share: float | None) -> str:
    """What tells losses and norms of gradients apart, in words; "" where nothing does."""
    if share is None:
        return updates.difference(plain, other)
    far = [
        f"{one:.6g} and {two:.6g}" for one, two in zip(plain, other, strict=True) if abs(one - two) > share * abs(one)
    ]
    return ", ".join(far)


def rows_of(name: str, size: int, device: torch.device, parity: list[dict[str, str]]) -> Iterator[TimedRow]:
    """An agent's update under each flag; `parity` is told what loses otherwise."""
    batch, plain = updates.batch_for(name, size, device), list[float]()
    threads = str(torch.get_num_threads()) if device.type == "cpu" else str(device)
    for name_of_flag, flag in FLAGS.items():
        update = updates.ours(name, batch.clone(), flag.compiled)

        def loss(rows: TensorDictBase, of: updates.Loss = update.loss, mixed: bool = flag.mixed) -> Tensor:
            with torch.autocast(device.type, torch.bfloat16, enabled=mixed):
                return of(rows).float()

        def play(calls: int, update: updates.Update = update, asked: bool = flag.deterministic) -> None:
            with determinism(asked):
                update.play(calls)

        update.loss = loss
        with determinism(flag.deterministic):
            found = update.measures()
        plain = plain or found
        parity.append({"setting": f"{name}, {name_of_flag}", "difference": difference(plain, found, flag.share)})
        extra: dict[str, object] = {"agent": name, "flag": name_of_flag}
        yield TimedRow(f"{name}, {name_of_flag}", play, 1, threads, name, extra=extra)


def operations(name: str, size: int, device: torch.device) -> int:
    """Floating point operations of the matrix products of an update."""
    update = updates.ours(name, updates.batch_for(name, size, device))
    with profile(with_flops=True) as seen:
        update.once()
    return sum(each.flops for each in seen.key_averages() if each.key in PRODUCTS)


def table(rows: list[dict[str, Any]], least_us: dict[str, float], size: int) -> dict[str, Any]:
    """µs of an update, and how many times the plain update each flag is."""
    lines = []
    for name in dict.fromkeys(row["agent"] for row in rows):
        us = {row["flag"]: 1e6 / row["rate"] for row in rows if row["agent"] == name}
        line: dict[str, Any] = {"agent": name, PLAIN: round(us[PLAIN])}
        line |= {flag: us[PLAIN] / us[flag] for flag in us if flag != PLAIN}
        lines.append(line | {"products": round(least_us[name]), "share": least_us[name] / us[PLAIN]})
    others = [flag for flag in dict.fromkeys(row["flag"] for row in rows) if flag != PLAIN]
    columns = {"agent": "agent", PLAIN: f"{PLAIN}, µs"} | {flag: f"× by {flag}" for flag in others}
    columns |= {"products": "products alone, µs", "share": "share of that"}
    return {"title": f"µs per update of {size} rows, by flag", "columns": columns, "rows": lines}


def main() -> int:
    """Prints the table and writes the JSON; 1 where parity fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", nargs="+", choices=AGENTS, default=list(AGENTS), help="which")
    parser.add_argument("--rows", type=int, default=256, help="transitions of an update")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--minutes", type=float, default=4.0, help="of timing; warm-ups and compiling come on top")
    parser.add_argument("--repetitions", type=int, default=5, help="turns; medians are shown")
    parser.add_argument("--output", type=Path, help="JSON with every raw timing")
    args = parser.parse_args()
    started, device = time.perf_counter(), get_device(args.device)
    described = machine.describe(device)
    parity: list[dict[str, str]] = []
    measured: list[dict[str, Any]] = []
    least_us: dict[str, float] = {}
    with torch._inductor.config.patch(fallback_random=True), warnings.catch_warnings():  # the same numbers drawn
        warnings.simplefilter("ignore")
        for name in args.agents:
            torch._dynamo.reset()
            with progress(f"{name} learning") as say:
                rows = [*rows_of(name, args.rows, device, parity), matrix_products(device)]
                failed = [check for check in parity if check["difference"]]
                if failed:
                    report.refuse(failed, "a ratio between two different results means nothing")
                    return 1
                measure(rows, 60 * args.minutes / len(args.agents) / len(rows), args.repetitions, on_row=say)
            rate = next(row.rate for row in rows if row.name == CEILING)
            least_us[name] = 1e6 * operations(name, args.rows, device) / rate
            measured += report.section(name, "updates/s", [row for row in rows if row.name != CEILING], {})["rows"]
    shown = table(measured, least_us, args.rows)
    result = {
        "benchmark": "flags",
        "machine": described,
        "arguments": {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()},
        "sections": [{"title": "updates", "unit": "updates/s", "rows": measured}, shown],
        "parity": parity,
        "elapsed_s": time.perf_counter() - started,
    } | machine.gpu_use(device)
    print("\n".join([shown["title"], "", listed(shown), report.machine_line(result)]))
    if args.output:
        write_json(args.output, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
