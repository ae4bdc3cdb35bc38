"""`python -m benchmarks.gpu.marine_steps`: launches of a step at sea.

It counts operators and kernels.

Each shipped config makes one step and one restart by torch's operators and one by Triton's kernels. Operators are
counted as they are dispatched, views and memory that is only taken left out, on tensors of a CPU; the kernels are
recorded and not run. `benchmarks/results/marine_launches.json` has the table; nothing in it is a time.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.gpu.launches import recorded
from benchmarks.gpu.steps import MARINE_CONFIGS, marine_environment
from benchmarks.result_types import JsonObject
from torchrl_gpu import native
from torchrl_gpu.envs import MarineNavEnv
from torchrl_gpu.evaluation.reports import write_json

RESULT = Path(__file__).parents[1] / "results" / "marine_launches.json"
# These launch nothing.
_TAKES_MEMORY = {"empty", "empty_like", "empty_strided", "new_empty"}


class Operators(TorchDispatchMode):
    """Counts the operators that launch something on a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
    ) -> Any:
        name = func._schema.name.removeprefix("aten::")
        is_view = any(each.alias_info is not None and not each.alias_info.is_write for each in func._schema.returns)
        if not is_view and name not in _TAKES_MEMORY:
            self.count += 1
        return func(*args, **(kwargs or {}))


def counted(env: MarineNavEnv, fused: bool) -> tuple[int, int]:
    """Count operators and Triton's launches of `step_and_maybe_reset`.

    The state stays unchanged.

    The second of two equal steps is counted: the first makes tables that stay.
    """
    before = env._state
    seen = env.rand_action(env.observation(0).expand(env.num_envs).clone())
    found = 0, 0
    for _ in range(2):
        env.is_fused = fused
        try:
            with mock.patch.object(native, "runs_on", return_value=False), recorded() as launches, Operators() as mode:
                env.step_and_maybe_reset(seen.copy())
        finally:
            env.is_fused = False
            env._state = before
        found = mode.count, len(launches)
    return found


def section() -> JsonObject:
    """A row for each shipped config."""
    columns = {"config": "config", "envs": "environments", "plain": "operators of torch alone"}
    columns |= {"operators": "operators beside the kernels", "kernels": "kernels"}
    rows = []
    for config in MARINE_CONFIGS:
        env = marine_environment(config)
        plain, _ = counted(env, fused=False)
        operators, kernels = counted(env, fused=True)
        row = {"config": f"`{config}`", "envs": env.num_envs, "plain": plain}
        rows.append(row | {"operators": operators, "kernels": kernels})
    return {"title": "launches of a step", "columns": columns, "rows": rows}


def main() -> int:
    """Write the JSON of the table in the documentation."""
    torch.manual_seed(0)
    write_json(RESULT, {"benchmark": "gpu.marine_steps", "sections": [section()]})
    return 0


if __name__ == "__main__":
    sys.exit(main())
