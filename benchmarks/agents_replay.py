"""Prioritised replay on the device against TorchRL's; rows of `agents.py`."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer, TensorDictReplayBuffer

from tests.policies.navigation_spaces import transitions
from torchrl_gpu.bench.timing import TimedRow
from torchrl_gpu.training.replay.buffer import replay_buffer

ALPHA, BETA, EPS = 0.6, 0.4, 1e-3
EXTENDED = 64  # transitions that come before each draw
_CHUNK = 10_000
_CHECKED, _DRAWS, _ROWS = 8, 400, 512
_MOST_APART = 0.01  # of shares of 204,800 draws: nine standard errors


def ours(capacity: int, batch_size: int, device: torch.device) -> TensorDictReplayBuffer:
    """Ours, empty."""
    return replay_buffer(capacity, batch_size, device, prioritized=True, alpha=ALPHA, beta=BETA)


def theirs(capacity: int, batch_size: int, device: torch.device) -> TensorDictReplayBuffer:
    """TorchRL's, empty; its trees are on the host."""
    storage = LazyTensorStorage(capacity, device=device)
    return TensorDictPrioritizedReplayBuffer(
        alpha=ALPHA, beta=BETA, eps=EPS, storage=storage, batch_size=batch_size, sampler_device="cpu"
    )


SIDES = {"ours": ours, "TorchRL": theirs}


class Cycle:
    """Takes in transitions, draws a batch, gives it new errors; from a full ring on."""

    def __init__(self, replay: TensorDictReplayBuffer, capacity: int, batch_size: int, device: torch.device) -> None:
        self.replay, self.fresh = replay, transitions("DDPG", EXTENDED).to(device)
        self.errors = torch.rand(batch_size, 1, device=device, generator=_generator(device)) * 3
        chunk = transitions("DDPG", min(_CHUNK, capacity)).to(device)
        for _ in range(-(-capacity // len(chunk))):
            index = replay.extend(chunk)
            replay.update_priority(index, torch.rand(len(chunk), device=device, generator=_generator(device)) * 3)

    def play(self, calls: int) -> None:
        """Goes on where it stopped."""
        for _ in range(calls):
            self.replay.extend(self.fresh)
            batch = self.replay.sample()
            self.replay.update_priority(batch["index"], self.errors)


def _generator(device: torch.device) -> torch.Generator:
    return torch.Generator(device).manual_seed(0)


def difference(side: str, device: torch.device) -> str:
    """What tells the shares of rows drawn from those of the priorities, in words; "" where nothing does."""
    errors = torch.tensor([0.0, 0.1, 0.5, 1.0, 2.0, 4.0], device=device)
    replay = SIDES[side](_CHECKED, _ROWS, device)
    replay.extend(transitions("DDPG", len(errors)).to(device))
    replay.update_priority(torch.arange(len(errors), device=device), errors)
    drawn = torch.cat([replay.sample()["index"].flatten() for _ in range(_DRAWS)]).cpu()
    shares = torch.bincount(drawn, minlength=_CHECKED).double() / len(drawn)
    wanted = torch.zeros(_CHECKED, dtype=torch.double)
    wanted[: len(errors)] = _powers(errors)
    apart = (shares - wanted / wanted.sum()).abs().max().item()
    return "" if apart < _MOST_APART else f"shares of rows differ from those of their priorities by {apart:.2g}"


def _powers(errors: Tensor) -> Tensor:
    return (errors.double().cpu() + EPS) ** ALPHA


def timed_rows(capacity: int, sizes: list[int], device: torch.device) -> Iterator[TimedRow]:
    """Rows of one capacity."""
    threads = str(torch.get_num_threads()) if device.type == "cpu" else str(device)
    for size in sizes:
        for side, make in SIDES.items():
            cycle = Cycle(make(capacity, size, device), capacity, size, device)
            extra: dict[str, object] = {"capacity": capacity, "batch": size, "side": side}
            yield TimedRow(f"{side}, {capacity:,}, {size}", cycle.play, 1, threads, str(capacity), extra=extra)
