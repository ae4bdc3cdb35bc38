"""The pretended device starts, in a process of its own.

`make pretend` runs the tests on it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_SCRIPT = """
from tests import pretend_cuda
pretend_cuda.activate()
import torch
from torchrl_gpu.envs import PackingEnv
env = PackingEnv(2, device="cuda", seed=0)
current = env.reset()
with pretend_cuda.waits() as counted:
    current["action"] = current["action_mask"].int().argmax(-1)
    step, current = env.step_and_maybe_reset(current)
assert counted.total == 0, counted.report()
assert current["action_mask"].is_cuda
with pretend_cuda.waits() as counted:
    step["next", "reward"].sum().item()
(place,) = counted.by_place()
assert place.startswith(f"{__file__}:14 ") and place.endswith("sum().item()`: _local_scalar_dense"), place
try:
    current["item_mask"] & torch.ones(2, 1, dtype=torch.bool)
except RuntimeError as error:
    assert "same device" in str(error)
else:
    raise AssertionError("devices were mixed")
weight = torch.ones(3, device="cuda", requires_grad=True)
(weight * 2).sum().backward()
assert weight.grad.cpu().tolist() == [2, 2, 2]
"""


def test_a_process_has_the_device(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT, encoding="utf-8")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
