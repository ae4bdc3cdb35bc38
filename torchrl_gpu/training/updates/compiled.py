"""Losses of an agent and their gradients as one compiled function."""

from __future__ import annotations

from typing import Protocol, final

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from torch import Tensor
from torch.autograd.function import once_differentiable
from torchrl.envs.utils import exploration_type

from torchrl_gpu.policies.agents.base import Agent
from torchrl_gpu.policies.generators import generators_kept
from torchrl_gpu.system.tracing import CompiledFunction
from torchrl_gpu.training.accelerated.machine import Accelerator, are_close, casts, uncached_casts

# How far apart two gradients may be, of the length of one.
_FAR = 0.1


@final
class CompiledLosses(Accelerator["_Function", TensorDictBase, list[Tensor], dict[str, Tensor]]):
    """`Agent.losses` as one compiled function.

    It draws the same random numbers as operators one by one. The function gives the gradient of the sum of the losses,
    too, so that the backward pass of a sum of them, whatever its factor, hands out what is there; that of one loss
    alone is not to be had. It is compiled for the first batch, which is computed both ways, and again for batches of
    another shape. Where losses, errors or gradients differ by more than rounding, or where the machine cannot compile,
    a warning says so and the operators run one by one from then on. The self-test leaves generators and buffers of the
    agent as they were.
    """

    keeps_all = True

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent.parameters_to_train[0].device)
        self.agent = agent

    def __call__(self, batch: TensorDictBase) -> dict[str, Tensor]:
        if not self.is_open:
            return self.agent.losses(batch)
        read = batch.select(*self.agent.batch_keys, strict=False)
        settings = _shapes(read), self.agent.training, exploration_type(), casts(self.device)
        function = self.form_for(settings, read)
        if function is None:
            return self.agent.losses(batch)
        # A compiler may fail. What is wrong otherwise the operators raise again.
        try:
            return function(batch)
        except Exception as error:
            self.give_up(error)
            return self.agent.losses(batch)

    # -- the machine's methods --

    def _saved(self) -> list[Tensor]:
        return [value.clone() for value in self.agent.buffers()]

    def _restore(self, saved: list[Tensor]) -> None:
        for buffer, before in zip(self.agent.buffers(), saved, strict=True):
            buffer.copy_(before)

    def _made(self, data: TensorDictBase) -> _Function:
        # In another order, so that what is not read from a batch shows.
        turned = torch.cat([data[-1:], data[:-1]])
        with generators_kept(self.device), uncached_casts(self.device):
            return _Function(self.agent, turned)

    def _tried(self, form: _Function | None, data: TensorDictBase) -> dict[str, Tensor]:
        """Losses, errors and the gradient of the losses' sum."""
        batch = data.clone()
        losses = self.agent.losses(batch) if form is None else form(batch)
        weights = self.agent.parameters_to_train
        total = torch.stack(list(losses.values())).sum()
        gradients = torch.autograd.grad(total, weights, allow_unused=True)
        flat = []
        for weight, gradient in zip(weights, gradients, strict=True):
            known = torch.zeros_like(weight) if gradient is None else gradient
            flat.append(known.double().flatten())
        found = {name: loss.detach() for name, loss in losses.items()}
        return found | {"td_error": batch["td_error"], "gradient": torch.cat(flat)}

    def _compare(self, plain: dict[str, Tensor], found: dict[str, Tensor]) -> None:
        differs = "CompiledLosses: the compiled function differs from its operators one by one in"
        gradient = plain.pop("gradient")
        other = found.pop("gradient")
        for name, value in plain.items():
            if not are_close(found[name], value):
                raise RuntimeError(f"{differs} {name}")
        if not float((gradient - other).norm()) <= _FAR * float(gradient.norm()) + 1e-6:
            raise RuntimeError(f"{differs} the gradient")


class _Function:
    """The compiled function for batches of one shape."""

    def __init__(self, agent: Agent, batch: TensorDictBase) -> None:
        self.weights = agent.parameters_to_train
        # By identity: a tensor that is registered under two names is one input.
        own: dict[int, Tensor] = {id(value): value for value in (*agent.parameters(), *agent.buffers())}
        self._own = list(own.values())
        self._keys: list[NestedKey] = list(batch.keys(True, True))
        self._names: list[str] = []
        # Numbers of the weights that have a gradient.
        self._taught: list[int] = []
        size = batch.batch_size

        def losses(inputs: list[Tensor]) -> list[Tensor]:
            rows = TensorDict(batch_size=size)
            values = inputs[len(self._own) :]
            for key, value in zip(self._keys, values, strict=True):
                rows.set(key, value)
            with torch.enable_grad():
                found = agent.losses(rows)
                total = torch.stack(list(found.values())).sum()
                gradients = torch.autograd.grad(total, self.weights, allow_unused=True)
            self._names = list(found)
            self._taught = [number for number, each in enumerate(gradients) if each is not None]
            stacked = torch.stack([loss.detach() for loss in found.values()])
            known = [each for each in gradients if each is not None]
            return [stacked, rows["td_error"], *known]

        self._run = CompiledFunction("losses", losses, self._inputs(batch))

    def _inputs(self, batch: TensorDictBase) -> list[Tensor]:
        """The agent's own tensors and those of a batch, in the order of the function."""
        return [*self._own, *(batch.get(key) for key in self._keys)]

    def __call__(self, batch: TensorDictBase) -> dict[str, Tensor]:
        losses, error, *gradients = self._run(self._inputs(batch))
        batch.set("td_error", error)
        taught = [self.weights[number] for number in self._taught]
        given: Tensor = _WithGradients.apply(losses, gradients, *taught)
        return dict(zip(self._names, given.unbind(), strict=True))


class _Context(Protocol):
    """What the forward pass leaves for the backward pass."""

    gradients: list[Tensor]


class _WithGradients(torch.autograd.Function):
    """Losses (K,) whose sum has gradients that are known."""

    @staticmethod
    def forward(ctx: _Context, losses: Tensor, gradients: list[Tensor], *weights: Tensor) -> Tensor:
        ctx.gradients = gradients
        return losses.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, factors: Tensor) -> tuple[Tensor | None, ...]:
        return (None, None, *torch._foreach_mul(ctx.gradients, factors[0]))


def _shapes(batch: TensorDictBase) -> list[tuple[NestedKey, torch.Size, torch.dtype]]:
    return [(key, value.shape, value.dtype) for key, value in batch.items(True, True)]
