"""Self-tests of the doctor alone: CUDA graphs and torch.compile."""

from __future__ import annotations

import platform

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from torchrl_gpu.system import machine
from torchrl_gpu.system.self_tests import SelfTest, usable
from torchrl_gpu.training.collect.graphed import capture_cuda


def failure(what: str, device: torch.device) -> str:
    """Why the self-test `what`, a function of this module, fails on a device; "" where it passes."""
    depends_on = {"torch": torch.__version__, "triton": str(machine.version("triton")), "device": str(device)}
    depends_on |= machine.cuda_versions(device) if device.type == "cuda" else {"processor": platform.processor()}
    return SelfTest(f"{what} on {device}", f"{__name__}:{what}", (str(device),), depends_on).failure()


def cuda_graph(device: str) -> str:
    """Why a graph of a few operators and random numbers cannot be captured and replayed; "" where it can."""
    there = usable(device)
    x = torch.zeros(4, device=there, dtype=torch.float32)

    def body() -> TensorDictBase:
        return TensorDict({"sum": x.add_(1) + 2, "draw": torch.rand(4, device=there, dtype=torch.float32)})

    graph = capture_cuda(body, there)
    x.zero_()
    draws = []
    for number in range(1, 4):
        graph.replay()
        draws.append(graph.result["draw"].clone())
        if graph.result["sum"].tolist() != [number + 2.0] * 4:
            return "a replay gives wrong numbers"
    return "replays draw the same random numbers" if torch.equal(draws[0], draws[1]) else ""


def torch_compile(device: str) -> str:
    """Why torch.compile does not compile a few operators; "" where it does."""
    there = usable(device)

    def function(x: Tensor) -> Tensor:
        return torch.where(x > 0, x.sin(), x * 2).sum(1)

    x = torch.linspace(-1, 1, 4096, device=there, dtype=torch.float32).view(64, 64)
    came = torch.compile(function, fullgraph=True, dynamic=False)(x)
    return "" if torch.allclose(came, function(x), rtol=1e-4, atol=1e-4) else "it gives wrong numbers"
