"""The table of networks that a run prints before training."""

from __future__ import annotations

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelSummary
from rich.table import Table
from torch import nn

from torchrl_gpu.evaluation.reports import print_whole

_MOST_PARTS = 6  # of a network; one of more parts is shown as a whole


class NetworkSummary(ModelSummary):
    """Prints the networks of the module with their numbers of parameters when `fit` starts; nothing if there are none.

    The default of the programs `lightning` and `torchrl-gpu`, in place of Lightning's, which shows an agent as one row.
    """

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        table = network_table(pl_module)
        if table.rows and trainer.is_global_zero:
            print_whole(table)


def network_table(module: nn.Module) -> Table:
    """The networks of a module, each followed by its parts; a network with two names is listed once."""
    table = Table("network", "class", box=None, pad_edge=False)
    table.add_column("parameters", justify="right")
    table.add_column("")
    counted: set[nn.Parameter] = set()
    num_shown = 0
    networks = _children(module)
    while len(networks) == 1 and len(_children(networks[0][1])) > 1:  # an agent in the place of its only holder
        networks = _children(networks[0][1])
    for name, network in networks:
        own = set(network.parameters()) - counted
        counted |= own
        if own:
            num_shown += 1
            trained = any(p.requires_grad for p in own)
            inner = _unwrapped(network)
            _add_row(table, name, inner, sum(p.numel() for p in own), "" if trained else "follows, is not trained")
            parts = [] if isinstance(inner, nn.Sequential) or not trained else _children(inner)
            for part_name, part in parts if 1 < len(parts) <= _MOST_PARTS else []:
                _add_row(table, f"  {part_name}", _unwrapped(part), _size(part), style="dim")
    rest = sum(p.numel() for p in set(module.parameters()) - counted)
    if counted and rest:
        num_shown += 1
        table.add_row("other weights", "", f"{rest:,}", "")
    if num_shown > 1:
        table.add_row("total", "", f"{_size(module):,}", "", style="bold")
    return table


def _add_row(table: Table, name: str, module: nn.Module, size: int, remark: str = "", style: str = "") -> None:
    table.add_row(name, type(module).__name__.lstrip("_"), f"{size:,}", remark, style=style)


def _unwrapped(network: nn.Module) -> nn.Module:
    while len(inside := _children(network)) == 1 and _size(inside[0][1]) == _size(network):
        network = inside[0][1]
    return network


def _children(module: nn.Module) -> list[tuple[str, nn.Module]]:
    return [(name, child) for name, child in module.named_children() if _size(child)]


def _size(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())
