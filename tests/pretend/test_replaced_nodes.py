"""Nodes that Triton's kernels replace, counted while a graph is captured."""

from __future__ import annotations

import torch

from benchmarks.gpu.replaced_nodes import Replaced


def test_operators_of_outermost_calls_are_replaced_by_launches() -> None:
    replaced = Replaced()
    inner = replaced.by(1, lambda x: x.add(1).mul(2).view(-1))
    outer = replaced.by(2, lambda x: inner(x).sub(1).div(3))
    x = torch.zeros(4, device="cuda")
    outer(x)
    assert not replaced.fewer
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        inner(x).add(1)
        outer(x)
    # Two operators in place of one launch, and four in place of two; one operator stays.
    assert replaced.fewer == {id(graph): 1 + 2}
    assert graph.nodes == 7
