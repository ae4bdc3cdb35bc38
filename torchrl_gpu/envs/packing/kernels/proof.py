"""Which backends may be taken by "auto": those that have been seen to compile, launch and agree with `eager` here.

Two trials, each once per machine and versions, in a process of its own (`torchrl_gpu.proofs`): of all jobs on small
packings of every kind before a backend is taken on a device, and, of one that compiles kernels for the constants of a
bin, of all jobs in that bin when an environment is made. Then the jobs run once as the environment will call them, in
its own process, so that nothing is compiled for the first time inside a step.
"""

from __future__ import annotations

import importlib
import os
import platform
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch

from torchrl_gpu import machine, native, proofs
from torchrl_gpu.envs.packing.kernels import check
from torchrl_gpu.envs.packing.kernels.check import Setting

_HERE = Path(__file__).parent
_NEEDS_NO_PROOF = ("eager", "reference")  # the first is what others are compared with
_COMPILED_FOR_SETTINGS = ("triton",)
_ENVS = 3  # of the trial in a user's own bin


def device_problem(backend: str, module: str, device: torch.device) -> str:
    """Why a backend may not be taken on a device, in one line; "" where it may.

    Args:
        backend: Its name.
        module: Where its jobs are.
        device: Where they are to run.
    """
    if backend in _NEEDS_NO_PROOF:
        return ""
    return proofs.problem(device_trial(backend, module, device))


def device_trial(backend: str, module: str, device: torch.device) -> proofs.Trial:
    """Of all jobs of a backend, on boxes and solids by every rule."""
    name = f"the packing kernels {backend!r} on {device}"
    return proofs.Trial(name, f"{check.__name__}:of_every_kind", (module, str(device)), _versions(module, device))


def values_problem(module: str, device: torch.device) -> str:
    """Why the values of afterstates may not be worked out by a module on a device, in one line; "" where they may."""
    trial = proofs.Trial(
        f"the values of afterstates on {device}", f"{module}:check", (str(device),), _versions(module, device)
    )
    return proofs.problem(trial)


def setting_problem(backend: str, module: str, setting: Setting) -> str:
    """Why a backend may not be taken in a bin, in one line; "" where it may."""
    if backend not in _COMPILED_FOR_SETTINGS:
        return ""
    device = setting.catalogue.extent.device
    small = setting._replace(num_envs=_ENVS)
    name = f"the packing kernels {backend!r} in {setting.name}"
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "setting.pt")
        depends_on = _versions(module, device) | {"setting": _constants(small)}
        trial = proofs.Trial(name, f"{check.__name__}:of_setting", (module, str(device), path), depends_on)
        if (known := proofs.known_problem(trial)) is not None:
            return known
        check.save(small, path)
        return proofs.problem(trial)


def launch_problem(backend: str, module: str, setting: Setting) -> str:
    """Why the jobs of a backend do not run in this process as an environment will call them; "" where they do.

    Raises:
        RuntimeError: They have left the device unusable for this process.
        torch.OutOfMemoryError: The environment does not fit on the device.
    """
    if backend not in _COMPILED_FOR_SETTINGS:
        return ""
    device = setting.catalogue.extent.device
    if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1":
        return ""  # nothing is compiled, and it would take seconds
    key = module, str(device), _constants(setting)
    if key not in _LAUNCHED:
        jobs = importlib.import_module(module)
        try:
            check.run_once({job: getattr(jobs, job) for job in check.JOBS}, setting)
            _LAUNCHED[key] = ""
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever a compiler, a driver or a kernel raises
            _LAUNCHED[key] = proofs.reason(error)
            _refuse_lost_device(backend, module, setting, _LAUNCHED[key])
    return _LAUNCHED[key]


_LAUNCHED: dict[tuple[str, str, str], str] = {}


def _refuse_lost_device(backend: str, module: str, setting: Setting, problem: str) -> None:
    device = setting.catalogue.extent.device
    try:
        lost = int(torch.ones(2, device=device, dtype=torch.float32).sum()) != 2
    except Exception:  # an illegal access leaves a process no way back to the device
        lost = True
    if not lost:
        return
    small = setting._replace(num_envs=_ENVS)
    depends_on = _versions(module, device) | {"setting": _constants(small)}
    proofs.record(proofs.Trial(backend, f"{check.__name__}:of_setting", (), depends_on), problem)
    raise RuntimeError(
        f"packing kernels: want a backend that leaves {device} usable; got {backend!r}: {problem}; the next run takes"
        " another one, or this one with backend='eager'"
    )


def _constants(setting: Setting) -> str:
    """All that kernels may be compiled for."""
    c = setting.catalogue
    maps = None if c.bottom is None else tuple(c.bottom.shape[-2:])
    told = setting.bin, c.bounds, c.least, c.unit, maps, c.plumb is None, setting.visible_items, setting.num_envs
    return repr((*told, c.num_items if c.num_items < 2 else c.num_items % 16 == 0))


def _versions(module: str, device: torch.device) -> dict[str, str]:
    return _versions_of(module, str(device), os.environ.get("CC"), os.environ.get("TRITON_INTERPRET"))


@cache
def _versions_of(module: str, device: str, compiler: str | None, interpreted: str | None) -> dict[str, str]:
    """What a verdict on a backend depends on."""
    there = importlib.import_module(module)
    sources = [*_HERE.glob("*.py"), _HERE.parent / "types.py", _HERE.parent / "geometry.py"]
    if there.__file__ is not None:
        sources.append(Path(there.__file__))
    told: dict[str, Any] = {
        "backend": module,
        "sources": proofs.digest_of(*dict.fromkeys(sources)),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": machine.version("triton"),
        "interpreted": interpreted,
        "device": device,
    }
    if device == "cpu":
        # its name says which sources, compiler and processor it was made from
        told["library"] = "" if native.problem() else Path(native.library()._name).name
    if device.startswith("cuda"):
        told |= machine.cuda_versions(torch.device(device))
        told["compiler"] = proofs.program(compiler, "gcc", "clang", "cc")  # makes Triton's launchers
    return {name: str(value) for name, value in told.items()}
