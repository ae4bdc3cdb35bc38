"""A step and a restart of marine navigation as one launch each.

They are used on CUDA devices where Triton passes its self-test.
"""

from __future__ import annotations

import hashlib
import importlib
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from torchrl_gpu.envs.marine.generator import Pool
from torchrl_gpu.envs.marine.levels import Sizes
from torchrl_gpu.envs.marine.reward import Outcome
from torchrl_gpu.envs.marine.types import Craft, Derived, MarineState
from torchrl_gpu.system import machine, self_tests
from torchrl_gpu.system.self_tests import SelfTest

_LOG = logging.getLogger(__name__)
_FOLDER = f"{__package__}.triton"
_testing = False


class Rules(NamedTuple):
    """What an environment's steps depend on besides its state and the actions.

    Attributes:
        craft: Constants of the version.
        sizes: Robots, cores and obstacles to which worlds are padded.
        max_steps: Actions after which an episode is cut off.
        discrete: Whether actions are discrete.
        lagged: The quirk "lagged_velocity".
        late_limit: The quirk of that name.
        terminal_limit: The quirk of that name.
        end_on_collision: Whether the first collision ends the episode for all.
        radius_factors: Table of the errors of radii; None for sensors without errors.
    """

    craft: Craft
    sizes: Sizes
    max_steps: int
    discrete: bool
    lagged: bool
    late_limit: bool
    terminal_limit: bool
    end_on_collision: bool
    radius_factors: Tensor | None


class Draws(NamedTuple):
    """How episodes pick their worlds.

    Attributes:
        seed_bits: The seed, as `counter_rng.seed_bits` returns it.
        env_index: Numbers of the environments.
        in_order: Whether worlds are played in order instead of at random.
        worlds_per_level: Worlds of each level in the pool.
    """

    seed_bits: int
    env_index: Tensor  # (N,) int64
    in_order: bool
    worlds_per_level: int


class Kernels(NamedTuple):
    """The launches of `triton.step` and `triton.restart`."""

    step: Callable[[MarineState, Tensor, Rules], tuple[MarineState, Outcome, Derived]]
    restart: Callable[[MarineState, Tensor, Pool, Draws, Craft, Sizes, bool], tuple[MarineState, Derived]]


@cache
def kernels() -> Kernels:
    """Return both launches.

    Raises:
        ImportError: Triton is not installed.
    """
    step = importlib.import_module(f"{_FOLDER}.step")
    restart = importlib.import_module(f"{_FOLDER}.restart")
    return Kernels(step.step, restart.restart)


def problem(device: torch.device) -> str:
    """Return the reason not to use the kernels on a device, or ""."""
    if device.type != "cuda":
        return "no CUDA device"
    return "being tested" if _testing else device_problem(device)


@cache
def device_problem(device: torch.device) -> str:
    """Return the reason not to use the kernels on a CUDA device, or "".

    It is found once for a process.
    """
    try:
        kernels()
        name = f"the steps of MarineNavEnv on {device}"
        function = f"{_FOLDER}.self_test:run"
        test = SelfTest(name, function, (str(device),), _versions(device))
        found = test.failure()
    except ImportError as error:
        found = str(error)
    if found:
        _say_slower(device, found)
    return found


def works(device: torch.device, launch: Callable[[], object]) -> bool:
    """Return whether a launch in this process succeeds, and log a failure.

    Raises:
        RuntimeError: It has left the device unusable for this process.
        torch.OutOfMemoryError: The environment does not fit on the device.
    """
    try:
        launch()
        torch.cuda.synchronize(device)
    except torch.OutOfMemoryError:
        raise
    # A compiler, a driver or a kernel may raise anything.
    except Exception as error:
        found = self_tests.reason(error)
        try:
            self_tests.usable(str(device))
        # After an illegal access this process cannot use the device again.
        except self_tests.Unavailable:
            raise RuntimeError(
                f"MarineNavEnv: a step in Triton has left {device} unusable for this process: {found};"
                " run again with device='cpu', and report it"
            ) from error
        _say_slower(device, found)
        return False
    return True


@cache
def _say_slower(device: torch.device, found: str) -> None:
    _LOG.warning("MarineNavEnv: Triton cannot run on %s, so torch's operators will: %s", device, found)


@contextmanager
def left_out() -> Iterator[None]:
    """Make new environments step by torch's operators inside this context."""
    global _testing
    before = _testing
    _testing = True
    try:
        yield
    finally:
        _testing = before


def _versions(device: torch.device) -> dict[str, str]:
    """Return versions of everything that the result of the self-test depends on."""
    sources = sorted(Path(__file__).parent.rglob("*.py"))
    contents = b"".join(path.read_bytes() for path in sources)
    digest = hashlib.sha256(contents).hexdigest()
    found = {"sources": digest, "torch": torch.__version__, "triton": str(machine.version("triton"))}
    found |= {"device": str(device)} | machine.cuda_versions(device)
    return {name: str(value) for name, value in found.items()}
