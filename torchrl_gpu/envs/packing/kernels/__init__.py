"""The kernels of packing: one function per job, one file per backend.

- `drop_map`: rest height and legality of every item on every placement.
- `place`: the heightmap after a placement.
- `pile_growth`: rise of the heightmap, summed over its cells, under each placement.
- `advance`: the state after an action, except the z-map and the legal mask.
- `restart`: the state with some environments reset.
- `upheld` and `bear`, for stability rules that track which cells bear load: the legal mask of `drop_map` without what
  the rule refuses, and the mask of cells that bear load after a placement.
- `any_legal`: which environments have a legal placement left.

Here: the table of backends, and which of them "auto" takes. Not here: the stability rules (`packing.stability`). Read
`reference.py` first: NumPy, the definition that all others must agree with. All backends are called through
`validation`, which rejects what they cannot read. "auto" takes a backend only once it has passed its self-test.

The same torch code for every backend: `judge_placements`, the stability of given placements by the rule `com`;
`balanced`, a catalogue with the centres of mass and the floor stability that this rule reads.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from torchrl_gpu.envs.packing.kernels import self_tests
from torchrl_gpu.envs.packing.kernels.self_tests import Setting
from torchrl_gpu.envs.packing.kernels.validation import checked
from torchrl_gpu.envs.packing.stability import com
from torchrl_gpu.envs.packing.stability.com import balanced
from torchrl_gpu.envs.packing.stability.rule import Pile
from torchrl_gpu.envs.packing.types import Bin, Catalogue, Moved, PackingState, Placement, StoredMaps
from torchrl_gpu.system import arguments

__all__ = [
    "BACKENDS",
    "Kernels",
    "Setting",
    "available_backends",
    "balanced",
    "get_kernels",
    "judge_placements",
    "tested_backends",
    "tested_in",
]

_LOG = logging.getLogger(__name__)
_CPU = torch.device("cpu")

judge_placements = checked("judge_placements", com.judge_placements, None)

# Module with the kernels of each backend. One that does not run everywhere has `DEVICES`, the device types that it
# reads, and `problem(device)`, the reason why it cannot run on a device, "" where it can.
BACKENDS = {
    "compiled": f"{__name__}.compiled",
    "triton": f"{__name__}.triton.kernels",
    "eager": f"{__name__}.eager",
    "reference": f"{__name__}.reference",
}
# Backends that "auto" tries on a type of device, in this order.
PREFERRED = {"cpu": ("compiled", "eager"), "cuda": ("triton", "eager")}


class Kernels(NamedTuple):
    """The kernels of one backend, each behind input validation.

    `drop_map(heightmap, item_id, catalogue, bin, stored=None)` returns the same with and without `stored`.
    """

    backend: str
    drop_map: Callable[..., tuple[Tensor, Tensor]]
    place: Callable[[Tensor, Placement, Catalogue, Bin], Tensor]
    pile_growth: Callable[[Tensor, Tensor, Tensor, Catalogue, Bin], Tensor]
    advance: Callable[[PackingState, Tensor, Tensor, Catalogue, Bin], Moved]
    restart: Callable[[PackingState, Tensor, Tensor, Tensor, Catalogue, Bin], PackingState]
    any_legal: Callable[[Tensor], Tensor]
    upheld: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Catalogue, Bin], Tensor]
    bear: Callable[[Tensor, Tensor, Placement, Catalogue, Bin], Tensor]

    def maps(
        self,
        pile: Pile,
        item_id: Tensor,
        catalogue: Catalogue,
        bin_: Bin,
        *,
        fallback: str | None = None,
        each_alone: bool = False,
        stored: StoredMaps | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return rest heights and legal placements of items on piles.

        Drop, uphold, fall back: this is all that a rule of any kind needs.

        Args:
            pile: Of each environment; what bears load is read by rules that track it.
            item_id: (N, K) int64.
            catalogue: The items.
            bin_: The bin, with its rule.
            fallback: Weaker rule, one of `height_rules`, for environments where no visible item has a stable placement.
            each_alone: Fall back for each item that has none, whatever the items next to it have.
            stored: Earlier maps, as in `drop_map`.

        Returns:
            Metres, (N, K, O, Gx, Gy) float32, and a mask, bool.
        """
        z_map, legal = self.drop_map(pile.heightmap, item_id, catalogue, bin_.dropped, stored)
        if bin_.rule.tracks_bearing:
            assert pile.bears is not None
            legal = self.upheld(pile.heightmap, pile.bears, z_map, legal, item_id, catalogue, bin_)
        if fallback is None:
            return z_map, legal
        weaker = replace(bin_, stability=fallback)
        _, others = self.drop_map(pile.heightmap, item_id, catalogue, weaker)
        if each_alone:
            stands = self.any_legal(legal.flatten(0, 1)).view_as(item_id)
        else:
            stands = self.any_legal(legal)[:, None]
        return z_map, torch.where(stands[..., None, None, None], legal, others)

    def bears_after(self, pile: Pile, placement: Placement, catalogue: Catalogue, bin_: Bin) -> Tensor:
        """Return which cells bear load after a placement in each environment, (N, X, Y)."""
        assert pile.bears is not None
        return self.bear(pile.heightmap, pile.bears, placement, catalogue, bin_)

    def __reduce__(self) -> tuple[Callable[[str], Kernels], tuple[str]]:
        # Pickle finds no validating wrapper by its name.
        return _jobs, (self.backend,)


def available_backends(device: torch.device = _CPU) -> dict[str, str]:
    """Return every backend, with the reason why it cannot run on a device.

    The reason is "" where it can.
    """
    return {name: _problem(name, device) for name in BACKENDS}


def get_kernels(backend: str = "auto", device: torch.device = _CPU) -> Kernels:
    """Return the kernels of a backend.

    Args:
        backend: One of `BACKENDS`, or "auto" for the fastest that passes its self-test on the device.
        device: Where they shall run.

    Raises:
        ValueError: There is no such backend, or it cannot run there.
    """
    if backend == "auto":
        return _jobs(_fastest(PREFERRED.get(device.type, ()), device))
    arguments.choice("get_kernels", "backend", backend, ("auto", *BACKENDS))
    problem = _problem(backend, device)
    if problem:
        raise ValueError(f"get_kernels: backend {backend!r} cannot run on {device}: {problem}")
    return _jobs(backend)


def tested_in(kernels: Kernels, setting: Setting, *, fall_back: bool) -> Kernels:
    """Return kernels that pass their self-test in a setting.

    Args:
        kernels: Returned if they pass.
        setting: What they must do.
        fall_back: Whether those of another backend may take their place, for which there is one log line.

    Raises:
        ValueError: They do not run there, and none may take their place.
    """
    name = kernels.backend
    device = setting.catalogue.extent.device
    failure = self_tests.setting_failure(name, setting, BACKENDS[name]) if fall_back else ""
    if not failure:
        failure = self_tests.launch_failure(name, setting, BACKENDS[name])
    if not failure:
        return kernels
    if not fall_back:
        raise ValueError(f"get_kernels: backend {name!r} cannot run on {device}: {failure}")
    _log_slower(name, device, failure)
    order = PREFERRED.get(device.type, ())
    later = order[order.index(name) + 1 :] if name in order else ()
    return tested_in(_jobs(_fastest(later, device)), setting, fall_back=True)


def tested_backends(device: torch.device) -> dict[str, str]:
    """Return every backend, with the reason why it cannot run or fails its self-test.

    The reason is "" where it does neither.
    """
    tested = {}
    for name, problem in available_backends(device).items():
        tested[name] = problem or self_tests.device_failure(name, device, BACKENDS[name])
    return tested


def forget_choices() -> None:
    """Forget the fastest backend of each device, and what was logged of others."""
    _fastest.cache_clear()
    _log_slower.cache_clear()


@cache
def _fastest(names: tuple[str, ...], device: torch.device) -> str:
    for name in names:
        problem = _problem(name, device) or self_tests.device_failure(name, device, BACKENDS[name])
        if not problem:
            return name
        _log_slower(name, device, problem)
    return "eager"


@cache
def _log_slower(name: str, device: torch.device, problem: str) -> None:
    _LOG.warning("packing kernels: %s cannot run on %s, so a slower one will: %s", name, device, problem)


def _problem(name: str, device: torch.device) -> str:
    try:
        module = importlib.import_module(BACKENDS[name])
    except ImportError as error:
        # An optional package is missing.
        return str(error)
    return str(module.problem(device)) if hasattr(module, "problem") else ""


@cache
def _jobs(name: str) -> Kernels:
    module = importlib.import_module(BACKENDS[name])
    devices = getattr(module, "DEVICES", None)
    jobs = [checked(job, getattr(module, job), devices) for job in Kernels._fields[1:]]
    return Kernels(name, *jobs)
