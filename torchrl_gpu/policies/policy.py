"""What every policy is to those that play with it."""

from __future__ import annotations

from collections.abc import Callable

from tensordict import TensorDictBase

Policy = Callable[[TensorDictBase], TensorDictBase]
"""Writes the action of every row of a tensordict."""
