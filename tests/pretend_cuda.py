"""A CUDA device that is not there.

Its tensors say `cuda:0`, hold real values, and tell when the host waits.

What it is for: to run the code that a GPU would run, on a machine without one. Values are real, an operator that mixes
devices raises as it does on CUDA, and whatever would make the host wait for the device is counted by the line that
asked. Streams and races, speed, memory, the numerics of cuDNN and TF32 and the driver it cannot show.

How to use it:

- As a pytest plugin, in a process of its own: `python -m pytest -p tests.pretend_cuda tests/pretend -n 2`, which is
  `make pretend`. Without the plugin nothing under `tests/pretend` is collected.
- In a script: `from tests import pretend_cuda; pretend_cuda.activate()`, before anything imports torch. From then on
  `torch.cuda.is_available()` is true, `device="cuda"` works everywhere, Lightning's `accelerator="gpu"` too. There is
  no way back: the rest of the process has a device.
- Waits are counted by name and place; one that a test allows is named:

      with pretend_cuda.waits() as counted:
          step, current = env.step_and_maybe_reset(current)
      assert counted.total == 0, counted.report()
      counted.by_place()   # {"torchrl_gpu/envs/base.py:42 _step: _local_scalar_dense": 3, …}
      counted.by_kind()    # {"_local_scalar_dense": 3, …}

  Waits are: values read (`item`, `bool`, `if`), outputs whose size depends on values (`nonzero`, masks as indices,
  `masked_select`, `unique`), copies to the host, copies from pageable host memory (`torch.tensor(…, device="cuda")`, a
  float given to `log`), `synchronize` of device, stream or event. Pinned memory with `non_blocking=True` does not wait.
- Launches are counted by `with pretend_cuda.launches() as counted:`, operators outside of graphs by name, replays, and
  the operators of the graphs that were replayed; views launch nothing.
- Graphs: `torch.cuda.CUDAGraph` records operators and their addresses. A wait during the capture raises; a replay does
  the same operators on the same memory again, with the numbers of the host that they had, and raises where memory that
  the graph reads has been freed since. `graph.operators` names them.

How it works: `harness.tensors` has the subclass of Tensor that wraps a CPU tensor, and says what waits and what may be
mixed; factories are overridden under the dispatcher's CUDA key; `harness.device` stands in for `torch.cuda`;
`harness.graphs` for graphs; `harness.files` for `torch.save` and `torch.load`, whose files are those of CUDA tensors.
`torch.inference_mode` is `torch.no_grad`, cuDNN is off, Triton cannot be imported.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.pretend.harness.launches import Launches
    from tests.pretend.harness.waits import Waits

# Autograd's engine asks how many devices there are, and whether the driver has a context on them; only where there are
# none does torch make its device guards do nothing.
_DRIVER = """
int devices = 0;
signed char _ZN3c104cuda12device_countEv(void) { return devices; }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { *flags = 0; *active = 0; return 0; }
"""
_active = False


def active() -> bool:
    """True in the process that has the device."""
    return _active


def activate() -> None:
    """Give this process the device.

    It raises where torch was imported before.
    """
    global _active
    if _active:
        return
    if "torch" in sys.modules:
        raise RuntimeError("pretend_cuda.activate: torch is imported already; activate the device first")
    driver = _load_driver()
    sys.modules["triton"] = None  # type: ignore[assignment]  # its kernels want a driver
    import torch

    # It needs torch's functions before they are replaced.
    import torch._dynamo

    from tests.pretend.harness import device, factories, files, tensors

    torch._C._ensureCUDADeviceGuardSet()
    # At least as many as its guards say they have.
    ctypes.c_int.in_dll(driver, "devices").value = 16
    tensors.install()
    factories.install()
    device.install()
    files.install()
    _active = True


def waits() -> AbstractContextManager[Waits]:
    """Counts what makes the host wait, by place, while it is open."""
    from tests.pretend.harness.waits import waits

    return waits()


def launches() -> AbstractContextManager[Launches]:
    """Count what the host launches while it is open.

    Operators and replays of graphs.
    """
    from tests.pretend.harness.launches import launches

    return launches()


def _compiler() -> list[str]:
    """The C compiler of this machine, or that of the package `ziglang`."""
    return ["cc"] if shutil.which("cc") else [sys.executable, "-m", "ziglang", "cc"]


def _load_driver() -> ctypes.CDLL:
    """Load symbols that torch finds before those of CUDA.

    They are global, so its own libraries find them first.
    """
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "driver.c"), Path(folder, "libcuda.so.1")
        source.write_text(_DRIVER, encoding="ascii")
        subprocess.run(
            [*_compiler(), "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", library, source], check=True
        )
        return ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


def pytest_load_initial_conftests() -> None:
    """Activate the device before a `conftest.py` imports torch.

    As a plugin it is active for the whole process.
    """
    activate()


def pytest_configure() -> None:
    """A worker of pytest-xdist loads plugins later."""
    activate()
