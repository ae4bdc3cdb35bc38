"""Losses of an agent through torch.compile, where a self-test finds them equal to eager ones."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from tensordict import TensorDictBase
from torch import Tensor

from torchrl_gpu.policies.agents.base import Agent
from torchrl_gpu.training.collect.graphed import same_random_numbers, say_plain
from torchrl_gpu.training.updates.graphed import Losses

_CLOSE = 1e-2  # of losses and errors, relatively: fused operators round less often, in half precision much less
_FAR = 0.1  # of the length of the gradient: how far apart two may be


class CompiledLosses:
    """`Agent.losses` as one compiled function, with the same random numbers as operators one by one.

    The first batch is computed both ways. Where losses, errors or gradients differ by more than rounding, or where the
    machine cannot compile, a warning says so and the operators run one by one from then on. The self-test leaves
    generators and buffers of the agent as they were.
    """

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self._losses: Losses | None = None

    @property
    def compiled(self) -> bool:
        """True once the self-test has found that the compiled function gives the same."""
        return self._losses not in (None, self.agent.losses)

    def __call__(self, batch: TensorDictBase) -> dict[str, Tensor]:
        if self._losses is None:
            self._losses = self._proven(batch)
        try:
            return self._losses(batch)
        except Exception as error:  # of a compiler, for a batch of another shape; else the operators raise it again
            if not self.compiled:
                raise
            self._losses = self._give_up(error)
            return self._losses(batch)

    def _proven(self, batch: TensorDictBase) -> Losses:
        before = [value.clone() for value in self.agent.buffers()]
        try:
            options: dict[str, str | int | bool | Callable] = {"fallback_random": True}
            compiled = torch.compile(self.agent.losses, fullgraph=True, dynamic=False, options=options)
            found = []
            with warnings.catch_warnings():  # of tensordict about a setting of torch that it looks at
                warnings.filterwarnings("ignore", r"torch\._dynamo\.config\.inline_inbuilt_nn", FutureWarning)
                for losses in (self.agent.losses, compiled):
                    with same_random_numbers(self.agent.parameters_to_train[0].device):
                        found.append(self._computed(losses, batch.clone()))
                    self._restore(before)
            _check(*found)
            return compiled
        except Exception as error:  # whatever a compiler raises
            return self._give_up(error)
        finally:
            self._restore(before)

    def _computed(self, losses: Losses, batch: TensorDictBase) -> dict[str, Tensor]:
        given = losses(batch)
        weights = self.agent.parameters_to_train
        gradients = torch.autograd.grad(torch.stack(list(given.values())).sum(), weights, allow_unused=True)
        flat = [
            (torch.zeros_like(weight) if gradient is None else gradient).double().flatten()
            for weight, gradient in zip(weights, gradients, strict=True)
        ]
        found = {name: loss.detach() for name, loss in given.items()}
        return found | {"td_error": batch["td_error"], "gradient": torch.cat(flat)}

    def _restore(self, before: list[Tensor]) -> None:
        for value, buffer in zip(before, self.agent.buffers(), strict=True):
            buffer.copy_(value)

    def _give_up(self, error: Exception) -> Losses:
        say_plain(type(self).__name__, error)
        return self.agent.losses


def _check(plain: dict[str, Tensor], compiled: dict[str, Tensor]) -> None:
    wanted = "CompiledLosses: want what the operators give one by one; got"
    gradients = plain.pop("gradient"), compiled.pop("gradient")
    for name, value in plain.items():
        if not bool(torch.isclose(compiled[name], value, rtol=_CLOSE, atol=1e-3, equal_nan=True).all()):
            raise RuntimeError(f"{wanted} another {name}")
    if not bool((gradients[0] - gradients[1]).norm() <= _FAR * gradients[0].norm() + 1e-6):
        raise RuntimeError(f"{wanted} another gradient")
