"""`Policy`: the callable type of every policy."""

from __future__ import annotations

from collections.abc import Callable

from tensordict import TensorDictBase

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
