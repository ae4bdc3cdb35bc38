"""What networks a run trains, and how large they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelSummary
from rich.table import Table
from torch import nn

from torchrl_gpu.evaluation.reports import print_whole

_MOST_PARTS = 6  # of a network; one of more parts stands as a whole


@dataclass(frozen=True)
class NetworkRow:
    """A network, or a part of one.

    Attributes:
        name: As the agent calls it.
        kind: Its class.
        size: Parameters, without those of rows above it that it shares.
        trained: Whether the optimizer changes them; the networks of targets follow others instead.
        depth: 0 for a network, 1 for a part.
    """

    name: str
    kind: str
    size: int
    trained: bool
    depth: int = 0


class NetworkSummary(ModelSummary):
    """Prints the networks of the module with their numbers of parameters when `fit` starts; nothing if there are none.

    The default of the programs `lightning` and `torchrl-gpu`, in place of Lightning's, which shows an agent as one row.
    """

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Prints, on the first process."""
        rows = network_rows(pl_module)
        if rows and trainer.is_global_zero:
            print_whole(summary_table(rows))


def network_rows(module: nn.Module) -> list[NetworkRow]:
    """The networks of a module, each followed by its parts."""
    seen: set[int] = set()
    rows: list[NetworkRow] = []
    for name, network in _networks(module):
        fresh = [p for p in network.parameters() if id(p) not in seen]
        if not fresh:
            continue  # another name for networks that are in the table
        seen |= {id(p) for p in fresh}
        inner = _unwrapped(network)
        trained = any(p.requires_grad for p in fresh)
        rows.append(NetworkRow(name, _kind(inner), sum(p.numel() for p in fresh), trained))
        if trained:
            rows += _parts(inner)
    rest = sum(p.numel() for p in module.parameters() if id(p) not in seen)
    if rows and rest:
        rows.append(NetworkRow("other weights", "", rest, True))
    return rows


def summary_table(rows: list[NetworkRow]) -> Table:
    """For the terminal."""
    shown = Table(box=None, pad_edge=False)
    for column in ("network", "class", "parameters", ""):
        shown.add_column(column, justify="right" if column == "parameters" else "left", no_wrap=True)
    for row in rows:
        remark = "" if row.trained else "follows, is not trained"
        style = "dim" if row.depth else None
        shown.add_row("  " * row.depth + row.name, row.kind, f"{row.size:,}", remark, style=style)
    networks = [row for row in rows if not row.depth]
    if len(networks) > 1:
        shown.add_row("total", "", f"{sum(row.size for row in networks):,}", "", style="bold")
    return shown


def _networks(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Children with parameters; those of an only child in its place."""
    children = _children(module)
    while len(children) == 1 and len(_children(children[0][1])) > 1:
        children = _children(children[0][1])
    return children


def _parts(network: nn.Module) -> Iterator[NetworkRow]:
    children = _children(network)
    if not 1 < len(children) <= _MOST_PARTS or isinstance(network, nn.Sequential):
        return
    for name, part in children:
        yield NetworkRow(name, _kind(_unwrapped(part)), _size(part), True, 1)


def _unwrapped(network: nn.Module) -> nn.Module:
    """The module inside modules that hold it and nothing else."""
    while len(inside := _children(network)) == 1 and _size(inside[0][1]) == _size(network):
        network = inside[0][1]
    return network


def _children(module: nn.Module) -> list[tuple[str, nn.Module]]:
    return [(name, child) for name, child in module.named_children() if _size(child)]


def _size(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def _kind(module: nn.Module) -> str:
    return type(module).__name__.lstrip("_")
