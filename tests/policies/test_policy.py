"""A network as a module over TensorDicts: the same as tensordict's."""

from __future__ import annotations

from typing import ClassVar

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import Tensor, nn

from torchrl_gpu.policies.policy import Entry


class Difference(nn.Module):
    in_keys: ClassVar = ["one", "two"]

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, one: Tensor, two: Tensor, *more: Tensor) -> Tensor:
        return self.weight * one - sum(more, two)


def test_it_writes_as_tensordicts_does() -> None:
    seen = TensorDict({"one": torch.rand(3, 2), "two": torch.rand(3, 2), "action": torch.rand(3, 2)}, [3])
    for more in ([], ["action"]):
        theirs = TensorDictModule(Difference(), in_keys=["one", "two", *more], out_keys=["value"])
        ours = Entry("value", Difference(), more)
        assert (ours.in_keys, ours.out_keys) == (theirs.in_keys, theirs.out_keys)
        assert ours.state_dict().keys() == theirs.state_dict().keys()
        assert torch.equal(ours(seen.clone())["value"], theirs(seen.clone())["value"])
