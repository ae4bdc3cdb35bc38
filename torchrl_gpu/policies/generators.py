"""State of torch's random generators: save, restore, seed for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor

from torchrl_gpu.envs.state_validation import Entry


def random_state(device: torch.device) -> dict[str, Tensor]:
    """State of torch's global generators."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: dict[str, Tensor], device: torch.device) -> None:
    # Only generators of this machine are set: a checkpoint of a GPU can go on without one.
    present = random_state(device)
    for name in {"cpu"} | (set(state) & set(present)):
        form = Entry(torch.uint8, tuple(present[name].shape))
        form.check("checkpoint", f"random/{name}", state.get(name))
    try:
        torch.set_rng_state(state["cpu"].cpu())
        if "cuda" in state and device.type == "cuda":
            torch.cuda.set_rng_state(state["cuda"].cpu(), device)
    except RuntimeError as error:
        raise ValueError(f"checkpoint: random must be states of torch's generators: {error}") from error


def generators_kept(device: torch.device) -> AbstractContextManager[None]:
    """Return a context manager that restores torch's generators on exit."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [])


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's generators for a while, and restore them on exit."""
    with generators_kept(device):
        torch.manual_seed(seed)
        yield
