"""`Policy`, the callable type of every policy, and `Entry`, a network as a policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import nn

from torchrl_gpu.policies.spaces import in_keys

Policy = Callable[[TensorDictBase], TensorDictBase]
"""Write the action of every row of a tensordict."""


def known(policy: Policy, visible_items: int = 1) -> str:
    """Describe what a policy knows of the items to come, for tables.

    Figures compare only between policies that know the same. A policy says it in its attribute `knows`: "the
    distribution", "the boxes but not their order", "the true stream"; without it, "nothing". With K > 1 visible items,
    "K visible" comes first.
    """
    knows: str = getattr(policy, "knows", "nothing")
    if visible_items == 1:
        return knows
    if knows == "nothing":
        return f"{visible_items} visible"
    return f"{visible_items} visible, {knows}"


@final
class Entry(TensorDictModuleBase):
    """Module that writes a network's output under one key of a TensorDict.

    tensordict's `TensorDictModule` does the same, but in 0.14 it looks for pandas on the disk at every call, which
    takes as long as a small network. `more` are keys of further inputs behind the network's `in_keys`.
    """

    def __init__(self, name: str, module: nn.Module, more: Sequence[str] = ()) -> None:
        super().__init__()
        self.module = module
        # tensordict reads both lists when modules are put behind one another.
        self.in_keys = [*in_keys(module), *more]
        self.out_keys = [name]

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        inputs = [tensordict.get(key) for key in self.in_keys]
        return tensordict.set(self.out_keys[0], self.module(*inputs))
