"""Nodes of graphs that Triton's kernels replace, counted on the pretended device.

It has no Triton: what a kernel does on a GPU is a function of torch's operators there. Within a call of such a
function, the operators that a graph records are counted, and the launches of Triton that come in their place.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from benchmarks.gpu import training_launches
from tests.pretend.harness import graphs
from torchrl_gpu.envs import BatchedEnv, counter_rng
from torchrl_gpu.envs.packing.kernels import eager

# Jobs of the packing kernels that are one launch each, of boxes in small bins.
_JOBS = ("drop_map", "place", "pile_growth", "advance", "restart")


class Replaced:
    """Nodes that Triton makes needless, by graph."""

    def __init__(self) -> None:
        self.fewer: Counter[int] = Counter()
        self._is_within = False

    def by(self, launches: int, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, whose operators Triton replaces by so many launches.

        A call within another one is part of that.
        """

        @wraps(function)
        def call(*arguments: object, **options: object) -> Any:
            graph = graphs.recording
            if graph is None or self._is_within:
                return function(*arguments, **options)
            before = graph.nodes
            self._is_within = True
            try:
                return function(*arguments, **options)
            finally:
                self._is_within = False
                self.fewer[id(graph)] += graph.nodes - before - launches

        return call


class Draws:
    """Stands in for `triton_draws`: torch draws, in place of one launch."""

    def __init__(self, replaced: Replaced) -> None:
        self.draw = replaced.by(1, self._in_torch)

    def _in_torch(self, kind: str, key: Tensor, counter: Tensor, **numbers: int) -> Tensor:
        with mock.patch.object(counter_rng, "_kernels", return_value=None):
            if kind == "uniform":
                return counter_rng.draw_uniform(key, counter)
            if kind == "episode":
                return counter_rng.episode_key(numbers["seed"], key, counter)
            if kind == "bits":
                return counter_rng.draw_bits(key, counter)
            end = numbers["end"] if kind == "until" else None
            return counter_rng.draw_integers(key, counter, numbers["high"], end)


def count_here(name: str, nodes_of_step: int, output: Path, options: list[str]) -> None:
    """Train a config a few steps in this process, which has a pretended device.

    Writes what the last training step launched, as `training_launches.count_here`, with its nodes those of Triton.

    Args:
        name: A shipped config.
        nodes_of_step: Nodes of a step of its environment with Triton's kernels.
        output: JSON.
        options: Further ones of the command line.
    """
    replaced = Replaced()
    draws = Draws(replaced)
    replayed: list[int] = []
    replay = torch.cuda.CUDAGraph.replay
    changes: list[tuple[Any, str, Any]] = [(eager, job, replaced.by(1, getattr(eager, job))) for job in _JOBS]
    changes.append((counter_rng, "_kernels", lambda key, counter: draws if key.is_cuda else None))
    step = replaced.by(nodes_of_step, BatchedEnv.step_and_maybe_reset)
    changes.append((BatchedEnv, "step_and_maybe_reset", step))

    def counted(graph: Any) -> None:
        replayed.append(id(graph))
        replay(graph)

    changes.append((torch.cuda.CUDAGraph, "replay", counted))
    for owner, attribute, value in changes:
        setattr(owner, attribute, value)
    training_launches.count_here(name, output, options)
    told = json.loads(output.read_text(encoding="utf-8"))
    # The last step's replays are the last ones of the run.
    fewer = sum(replaced.fewer[graph] for graph in replayed[-told["replays"] :])
    told |= {"without_triton": told["nodes"], "nodes": told["nodes"] - fewer}
    output.write_text(json.dumps(told), encoding="utf-8")
