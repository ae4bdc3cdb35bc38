"""`torchrl-gpu cost --config NAME --price 0.44`: hours and money of a run.

The rate, updates a second, is measured in a short trial of the config on this machine, or given by --throughput, or
read from the TensorBoard logs of a finished run by --run. Options that are not listed go to the config, as in
`lightning fit`.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from torchrl_gpu.cli.parser import OneLineParser, positive
from torchrl_gpu.system import arguments

if TYPE_CHECKING:
    from torchrl_gpu.cli.lightning_cli import PackageCLI

WHERE = "torchrl-gpu cost"


class Rate(NamedTuple):
    """Updates a second, and its source in words."""

    updates_per_s: float
    source: str


def main(argv: list[str]) -> None:
    args, words = make_parser().parse_run(argv)
    _check(args)
    from torchrl_gpu.cli.lightning_cli import build

    with tempfile.TemporaryDirectory(prefix="torchrl_gpu-cost-") as folder:
        # Nothing is written that outlasts the trial, and no callback takes part in its time.
        trial = [f"--trainer.default_root_dir={folder}", "--trainer.logger=false", "--trainer.callbacks=[]"]
        trial += ["--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false"]
        trial += ["--trainer.limit_val_batches=0", "--trainer.enable_checkpointing=false"]
        cli = build("fit", [*words, *trial])
        updates = cli.trainer.max_steps if args.updates is None else args.updates
        if updates < 1:
            raise ValueError(f"{WHERE}: trainer.max_steps of the config is {updates}: give --updates, at least 1")
        if args.throughput is not None:
            rate = Rate(args.throughput, "given by --throughput")
        elif args.run is not None:
            rate = recorded(args.run)
        else:
            rate = measured(cli, args.seconds)
    result = estimate(updates, rate, args.price)
    if args.json:
        print(json.dumps(result, indent=2))
    else:
        print(_in_words(args.config, result))


class Estimate(TypedDict):
    """Hours of a run, and their cost.

    Attributes:
        updates: Of the run.
        updates_per_s: Its rate.
        source: Where the rate is from.
        hours: Of training.
        price_per_hour: Of the machine, USD; None where none was given.
        cost: USD; None without a price.
    """

    updates: int
    updates_per_s: float
    source: str
    hours: float
    price_per_hour: float | None
    cost: float | None


def estimate(updates: int, rate: Rate, price: float | None) -> Estimate:
    """Hours of a run, and their cost where there is a price."""
    hours = updates / rate.updates_per_s / 3600
    return {
        "updates": updates,
        "updates_per_s": rate.updates_per_s,
        "source": rate.source,
        "hours": hours,
        "price_per_hour": price,
        "cost": None if price is None else price * hours,
    }


def measured(cli: PackageCLI, seconds: float) -> Rate:
    """Measure the rate of a run that is stopped after `seconds`.

    Its warm-up and its first training step do not count.
    """
    from lightning.pytorch import Callback, LightningModule, Trainer

    from torchrl_gpu.device import now
    from torchrl_gpu.system import machine
    from torchrl_gpu.training.trainer_fields import callbacks_of

    class Clock(Callback):
        begun: tuple[float, int] | None = None
        ended: tuple[float, int] | None = None

        def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: object) -> None:
            at = now(pl_module.device), trainer.global_step
            # The clock starts behind the first step, which compiles and fills caches.
            if self.begun is None:
                self.begun = at
            else:
                self.ended = at
                trainer.should_stop |= at[0] - self.begun[0] >= seconds

    clock = Clock()
    callbacks_of(cli.trainer).append(clock)
    cli.trainer.fit(cli.model, datamodule=cli.datamodule)
    if clock.begun is None or clock.ended is None:
        raise ValueError(f"{WHERE}: the run ended before its second training step, so that nothing could be measured")
    took = clock.ended[0] - clock.begun[0]
    updates = clock.ended[1] - clock.begun[1]
    device_name = machine.describe(cli.trainer.strategy.root_device)["device_name"]
    source = f"measured just now, {updates:,} updates in {took:.1f} s on {device_name}"
    return Rate(updates / took, f"{source}; validation, saving and pictures come on top")


def recorded(run: Path) -> Rate:
    """Return the median of the rates that `Throughput` logged for TensorBoard."""
    from statistics import median

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tag, rates = "throughput/updates_per_s", []
    folders = {path.parent for path in run.rglob("events.out.tfevents.*")}
    for folder in sorted(folders):
        logs = EventAccumulator(str(folder)).Reload()
        if tag in logs.Tags()["scalars"]:
            rates += [event.value for event in logs.Scalars(tag) if math.isfinite(event.value) and event.value > 0]
    if not rates:
        raise ValueError(f"{WHERE}: --run must be a folder with TensorBoard logs of {tag}; got none in {run}")
    # A mean would count the pauses for validation and saving.
    return Rate(median(rates), f"the median of {len(rates)} readings in {run}")


def _in_words(config: str, result: Estimate) -> str:
    rate, hours = result["updates_per_s"], result["hours"]
    duration = f"{hours:.1f} hours" if hours >= 1 else f"{60 * hours:.1f} minutes"
    updates = f"{result['updates']:,} updates"
    lines = [f"{config}: {updates} at {rate:.3g} updates/s: {duration}"]
    if result["cost"] is not None:
        price = f"{result['price_per_hour']:g} USD an hour"
        lines.append(f"at {price}: {result['cost']:.2f} USD")
    return "\n".join([*lines, f"rate: {result['source']}"])


def _check(args: argparse.Namespace) -> None:
    if args.throughput is not None and args.run is not None:
        raise ValueError(f"{WHERE}: --throughput and --run exclude each other: give one of them")
    if args.throughput is not None or args.run is not None:
        wanted = "a rate that is measured, so neither --throughput nor --run"
        arguments.check_effect(WHERE, wanted, **{"--seconds": (args.seconds, 20.0)})
    if args.run is not None and not args.run.is_dir():
        raise FileNotFoundError(f"{WHERE}: --run must be the folder of a run; got {args.run}")


def make_parser() -> OneLineParser:
    parser = OneLineParser(prog=WHERE, description=__doc__)
    add = parser.add_argument
    parser.add_config()
    add("--price", type=positive, help="of the machine, USD per hour; without it only hours are printed")
    add("--throughput", type=positive, metavar="UPDATES_PER_S", help="updates a second, so that nothing is measured")
    add("--run", type=Path, help="folder of a run with TensorBoard logs, whose rate is taken")
    add("--updates", type=int, help="of the run; the config's trainer.max_steps by default")
    add("--seconds", type=positive, default=20.0, help="that are measured, after the warm-up")
    add("--json", action="store_true", help="print JSON")
    return parser
