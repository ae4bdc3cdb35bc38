"""A faster `TensorDictModule` with one output key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import nn

from torchrl_gpu.policies.spaces import in_keys


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
