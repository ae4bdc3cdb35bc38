"""`Policy`, the callable type of every policy, and `Entry`, a network as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import nn

from torchrl_gpu.policies.spaces import in_keys

Policy = Callable[[TensorDictBase], TensorDictBase]
"""Writes the action of every row of a tensordict."""


def known(policy: Policy, visible_items: int = 1) -> str:
    """Knowledge that a policy has of the items to come, for tables: figures compare only where this is the same.

    A policy has it in the attribute `knows`: "the distribution", "the boxes but not their order", "the true stream";
    "nothing" without. Of several visible items "K visible" is known besides.
    """
    knows = getattr(policy, "knows", "nothing")
    if visible_items == 1:
        return knows
    return f"{visible_items} visible" if knows == "nothing" else f"{visible_items} visible, {knows}"


@final
class Entry(TensorDictModuleBase):
    """Module over TensorDicts that writes a network's output under one key.

    tensordict's `TensorDictModule` does the same; in 0.14 it looks for pandas on the disk at every call, which takes as
    long as a small network. `more` are keys of further inputs behind the network's `in_keys`.
    """

    def __init__(self, name: str, module: nn.Module, more: Sequence[str] = ()) -> None:
        super().__init__()
        self.module = module
        self.in_keys, self.out_keys = [*in_keys(module), *more], [name]

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict.set(self.out_keys[0], self.module(*(tensordict.get(key) for key in self.in_keys)))
