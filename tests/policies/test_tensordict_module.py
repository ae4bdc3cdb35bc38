"""A network as a module over TensorDicts: the same as tensordict's."""

from __future__ import annotations

from typing import ClassVar

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import Tensor, nn

from torchrl_gpu.policies.tensordict_module import Entry


class Difference(nn.Module):
    in_keys: ClassVar = ["one", "two"]

    def forward(self, one: Tensor, two: Tensor, *more: Tensor) -> Tensor:
        return one - sum(more, two)


def test_it_writes_as_tensordicts_does() -> None:
    seen = TensorDict({"one": torch.rand(3, 2), "two": torch.rand(3, 2), "action": torch.rand(3, 2)}, [3])
    for more in ([], ["action"]):
        theirs = TensorDictModule(Difference(), in_keys=["one", "two", *more], out_keys=["value"])
        ours = Entry("value", Difference(), more)
        assert (ours.in_keys, ours.out_keys) == (theirs.in_keys, theirs.out_keys)
        assert torch.equal(ours(seen.clone())["value"], theirs(seen.clone())["value"])


def test_its_weights_have_the_same_names() -> None:
    layer = nn.Linear(2, 1)
    layer.in_keys = ["one"]  # type: ignore[assignment]
    theirs = TensorDictModule(layer, in_keys=["one"], out_keys=["value"])
    assert set(Entry("value", layer).state_dict()) == set(theirs.state_dict())
