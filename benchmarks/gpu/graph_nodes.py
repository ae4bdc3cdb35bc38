"""Nodes of graphs with Triton's kernels, counted without a GPU.

`python -m benchmarks.gpu.graph_nodes` takes some minutes. A step of an environment is made on a CPU: its kernels are
recorded and not run, and the operators beside them are counted. A training step is made on the pretended device, see
`replaced_nodes`. An operator of torch counts as one node; `torch.compile`, which makes one of several, is left out.
`benchmarks.gpu.predictions` reads the results, `results/graph_nodes.json`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from benchmarks.gpu import shipped, steps
from benchmarks.gpu.launches import recorded
from benchmarks.gpu.marine_steps import Operators
from benchmarks.result_types import JsonObject
from torchrl_gpu import native
from torchrl_gpu.envs import BatchedEnv, PackingEnv, counter_rng, triton_draws
from torchrl_gpu.envs.packing import kernels
from torchrl_gpu.envs.packing.items import cutting, triton_cuts
from torchrl_gpu.evaluation.reports import write_json
from torchrl_gpu.policies.packing.ntuple import greedy_rollouts, triton_rollouts
from torchrl_gpu.policies.packing.ntuple.greedy_rollouts import GREEDY_ROLLOUTS
from torchrl_gpu.policies.packing.pretrained import PackingPolicy
from torchrl_gpu.policies.spaces import AgentSpace

ROOT = Path(__file__).parents[2]
RESULT = ROOT / "benchmarks" / "results" / "graph_nodes.json"
STEP_CONFIGS = ("packing", "packing_dqn", "packing_irregular", "navigation_iqn", "navigation_ac_iqn", "ppo_marine")
# Configs whose environment steps one by one in training, with options in place of those of `training_launches`.
TRAINING_CONFIGS: dict[str, tuple[str, ...]] = {
    "packing_dqn": (),
    "navigation_iqn": (),
    "navigation_ac_iqn": (),
    "navigation_dqn": (),
    "navigation_rainbow": (),
    "navigation_sac": (),
    "navigation_ddpg": (),
    "ppo_marine": ("--model.rollout_steps=64",),
    "ppo_packing": ("--model.rollout_steps=16",),
}
# The device must be there before anything imports torch.
_COUNT_HERE = """
import sys
from pathlib import Path

from tests import pretend_cuda

pretend_cuda.activate()
from benchmarks.gpu.replaced_nodes import count_here

count_here(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
"""


class Nodes(NamedTuple):
    """What a graph of some steps holds: operators of torch, and launches of Triton."""

    operators: int
    kernels: int

    @property
    def total(self) -> int:
        """Nodes of the graph."""
        return self.operators + self.kernels


@contextmanager
def as_on_cuda(env: BatchedEnv) -> Iterator[None]:
    """Within this context an environment on a CPU launches what it would on a GPU."""

    def draws(key: Tensor, counter: Tensor) -> Any:
        return triton_draws if triton_draws.covers(key, counter) else None

    changes: list[tuple[object, str, object]] = [
        (native, "runs_on", lambda tensor: False),
        (counter_rng, "_kernels", draws),
    ]
    changes += [
        (cutting, "_kernels", lambda device: triton_cuts),
        (cutting.CutSequences, "_runs_in_triton", lambda cuts, key: True),
        (greedy_rollouts, "in_triton", lambda name, device: triton_rollouts),
    ]
    # Kernels that are not run write nothing: there must be what others can read, such as an item's number.
    changes += [(torch, "empty", _uncounted(torch.zeros)), (torch, "empty_like", _uncounted(torch.zeros_like))]
    if isinstance(env, PackingEnv):
        changes.append((env, "kernels", kernels._jobs("triton")))
    else:
        changes.append((env, "is_fused", True))
    with ExitStack() as patches:
        for owner, name, value in changes:
            patches.enter_context(mock.patch.object(owner, name, value))
        yield


def _uncounted(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function of torch that no dispatch mode sees."""

    def call(*arguments: object, **options: object) -> Tensor:
        with _disable_current_modes():
            return function(*arguments, **options)

    return call


def _environment(config: str) -> BatchedEnv:
    """The environment of a shipped config, on a CPU, after its first reset."""
    if config in steps.MARINE_CONFIGS:
        return steps.marine_environment(config)
    if config in steps.CONFIGS:
        return steps.environment(config)
    env = shipped.environment(config, device="cpu", seed=0)
    env.reset()
    return env


def nodes_of_step(config: str) -> Nodes:
    """Return the nodes of `step_and_maybe_reset` of a shipped config."""
    env = _environment(config)
    seen = env.rand_action(env.observation(0).expand(env.num_envs).clone())
    return _counted(env, lambda: env.step_and_maybe_reset(seen.copy()))


def launches_of_rollout() -> Nodes:
    """What the host launches for a whole rollout of `packing.yaml`, which is no graph."""
    env = steps.environment("packing")
    space = AgentSpace.of(env)
    policy = PackingPolicy(space, shipped.tables("packing", space))
    seen: TensorDictBase = env.observation(0).expand(env.num_envs).clone()
    return _counted(env, lambda: GREEDY_ROLLOUTS.play(env, policy, seen, 32))


def _counted(env: BatchedEnv, act: Callable[[], object]) -> Nodes:
    """Count operators and kernels of an act, the second of two.

    The first makes tables that stay.

    The state of the environment stays what it was.
    """
    before: Any = env._state
    found = Nodes(0, 0)
    for _ in range(2):
        with as_on_cuda(env), recorded() as launched, Operators() as operators:
            act()
        env._state = before
        found = Nodes(operators.count, len(launched))
    return found


def counted_training(config: str, *options: str) -> JsonObject:
    """Launches and nodes of a training step of a shipped config.

    They come from a process with a pretended device.
    """
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "counted.json"
        command = [sys.executable, "-c", _COUNT_HERE, f"{config}.yaml", str(nodes_of_step(config).total), str(output)]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [*command, *options], cwd=folder, env=environment, capture_output=True, encoding="utf-8", check=False
        )
        if done.returncode:
            raise RuntimeError(f"{config}: no training step on a pretended device:\n{done.stderr[-3000:]}")
        found: JsonObject = json.loads(output.read_text(encoding="utf-8"))
        return found


def step_section() -> JsonObject:
    """A row for each environment, and one for a whole rollout of `packing.yaml`."""
    rows = [{"what": config} | nodes_of_step(config)._asdict() for config in STEP_CONFIGS]
    rows.append({"what": "packing, 32 steps in one kernel"} | launches_of_rollout()._asdict())
    columns = {"what": "step of", "operators": "operators of torch", "kernels": "launches of Triton"}
    return {"title": "environment steps", "columns": columns, "rows": rows}


def training_section() -> JsonObject:
    """A row for each config that trains on single steps."""
    rows = []
    for config, options in TRAINING_CONFIGS.items():
        found = counted_training(config, *options)
        names = ("rollout_steps", "launches", "without_triton", "nodes")
        rows.append({"config": f"{config}.yaml"} | {name: found[name] for name in names})
        print(f"{config}: {found['nodes']:,} nodes with Triton, {found['without_triton']:,} without", flush=True)
    columns = {"config": "config", "rollout_steps": "steps of a rollout", "launches": "launches of the host"}
    columns |= {"without_triton": "nodes without Triton", "nodes": "nodes"}
    return {"title": "training steps", "columns": columns, "rows": rows}


def main() -> int:
    """Count all, in some minutes, and write the JSON."""
    torch.manual_seed(0)
    write_json(RESULT, {"benchmark": "gpu.graph_nodes", "sections": [step_section(), training_section()]})
    return 0


if __name__ == "__main__":
    sys.exit(main())
