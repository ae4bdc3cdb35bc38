"""Random actions, the baseline that every environment has."""

from __future__ import annotations

from typing import final

from tensordict import NestedKey, TensorDictBase, unravel_key
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.data import Bounded, Categorical
from torchrl.envs import EnvBase

from torchrl_gpu.policies.exploration import random_legal, uniform


@final
class RandomActions(TensorDictModuleBase):
    """Policy of uniform actions.

    They are drawn from the legal ones if there is an `action_mask` next to the action, otherwise from its spec.
    """

    def __init__(self, env: EnvBase) -> None:
        super().__init__()
        self.in_keys: list[NestedKey] = []
        self.out_keys = list(env.action_keys)
        self._specs = env.full_action_spec_unbatched

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        for key in self.out_keys:
            parent = () if isinstance(key, str) else key[:-1]
            mask = tensordict.get(unravel_key((*parent, "action_mask")), None)
            action = self._draw(self._specs[key], tensordict) if mask is None else random_legal(mask)
            tensordict.set(key, action)
        return tensordict

    def _draw(self, spec: Bounded | Categorical, tensordict: TensorDictBase) -> Tensor:
        # Not by `spec.rand`, as far as possible: `uniform` gives the same numbers in batches of any size.
        shape = (*tensordict.shape, *spec.shape)
        if type(spec) is Categorical:
            return (uniform(shape, spec.device) * spec.space.n).to(spec.dtype)
        if isinstance(spec, Bounded) and spec.dtype.is_floating_point:
            low = spec.space.low
            high = spec.space.high
            share = uniform(shape, spec.device).to(spec.dtype)
            # Rounding may lead beyond a bound.
            return (low + share * (high - low)).clamp(low, high)
        return spec.rand(tensordict.shape)
