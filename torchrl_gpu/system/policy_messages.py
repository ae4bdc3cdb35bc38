"""Checks of the observations and actions of a policy served over HTTP or ROS."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from torchrl_gpu.system import arguments

ACTIVE = "active"
"""The observation that says which robots take part. Who sends none takes part."""

# By how much a confidence may lie beyond 0 and 1.
_SLACK = 1e-4


class Space(Protocol):
    """Observation and action space of a policy, as `AgentSpace` is."""

    @property
    def observations(self) -> Mapping[str, tuple[tuple[int, ...], str]]: ...

    @property
    def num_actions(self) -> int | None: ...

    @property
    def low(self) -> tuple[float, ...] | None: ...

    @property
    def high(self) -> tuple[float, ...] | None: ...


class Policy(Protocol):
    """Served policy, as `InferencePolicy` is."""

    in_keys: list[str]

    @property
    def space(self) -> Space: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def policy(self) -> Callable[[TensorDictBase], TensorDictBase]:
        """Module that writes `action` for rows.

        It writes `confidence`, `action_value` and `action_log_prob` where it has them.
        """


class BadMessage(ValueError):
    """Invalid message, described for its sender."""


class BadAction(ValueError):
    """Invalid action of a policy."""


class Answers(NamedTuple):
    """Checked actions of a batch.

    Attributes:
        actions: (B, D) float64 within bounds; of a discrete policy (B,) int64.
        confidence: (B,) float64 from 0 to 1; NaN where the policy gives none.
        faults: Description of each invalid action, by its row. Only the other rows may be used.
    """

    actions: np.ndarray
    confidence: np.ndarray
    faults: dict[int, str]

    def check(self, start: int = 0, stop: int | None = None) -> None:
        """Raise `BadAction` where a row of a request has no usable action.

        The request's rows are those from `start` to `stop`; the message counts from 0.
        """
        for row in range(start, len(self.actions) if stop is None else stop):
            if row in self.faults:
                raise BadAction(f"policy: row {row - start}: {self.faults[row]}")


def check_finite(wanted: str, values: np.ndarray) -> None:
    """Raise `BadMessage` where numbers of an observation are NaN or infinite."""
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        first = values[~np.isfinite(values)][0]
        raise BadMessage(f"{wanted}; got {first}")


def answers(policy: Policy, observations: Mapping[str, Tensor]) -> Answers:
    """Checked actions of a policy.

    Numbers that overflow in a network give no action.

    A continuous action is finite, and clipped to the bounds. A discrete one is an index, legal where any is, whose
    value or probability, where the policy writes that, is a finite number. `BadAction` where the policy wrote another
    shape.
    """
    rows = len(next(iter(observations.values())))
    written = policy.policy(TensorDict(dict(observations), [rows]))
    space = policy.space
    action = written.get("action")
    width = 1 if space.num_actions is not None else len(space.low or ())
    if action.numel() != rows * width or (rows > 1 and len(action) != rows):
        raise BadAction(
            f"policy: {width} finite numbers for each of {rows} rows must come, not shape {tuple(action.shape)}"
        )
    found = action.reshape(rows, width).double().cpu().numpy()
    good = np.isfinite(found).all(1)
    faults = {row: f"action must be finite, not {arguments.shown(found[row].tolist())}" for row in _rows(~good)}
    if space.num_actions is None:
        return Answers(np.clip(found, space.low, space.high), _confidence(rows, written, None, faults), faults)
    found = np.where(good[:, None], found, 0)[:, 0]
    for row in _rows((found < 0) | (found >= space.num_actions) | (found != np.rint(found))):
        faults.setdefault(row, f"action must be a whole number from 0 to {space.num_actions - 1}, not {found[row]:g}")
    found = found.clip(0, space.num_actions - 1).astype(np.int64)
    _check_choices(torch.from_numpy(found).to(action.device)[:, None], observations, written, faults)
    return Answers(found, _confidence(rows, written, written.get("action_log_prob", None), faults), faults)


def _check_choices(
    chosen: Tensor, observations: Mapping[str, Tensor], written: TensorDictBase, faults: dict[int, str]
) -> None:
    """Add rows to `faults` whose choice (B, 1) has no finite value or is illegal.

    A choice is illegal only where another one is legal.
    """
    values = written.get("action_value", None)
    mask = observations.get("action_mask")
    value = written.get("action_log_prob", None) if values is None else values.gather(-1, chosen)
    if value is not None:
        numbers = value.reshape(-1).double().cpu().numpy()
        for row in _rows(~np.isfinite(numbers)):
            faults.setdefault(row, f"the action's value must be finite, not {numbers[row]}")
    if mask is not None:
        illegal = (~mask.gather(-1, chosen)[:, 0] & mask.any(-1)).cpu().numpy()
        for row in _rows(illegal):
            faults.setdefault(row, f"action {chosen[row].item()} is illegal although another is legal")


def _confidence(rows: int, written: TensorDictBase, log_prob: Tensor | None, faults: dict[int, str]) -> np.ndarray:
    value = written.get("confidence", None)
    if value is None:
        value = None if log_prob is None else log_prob.exp()
    if value is None:
        return np.full(rows, math.nan)
    found: np.ndarray = value.reshape(-1).double().cpu().numpy()
    # NaN is outside of every range.
    is_possible = (found >= -_SLACK) & (found <= 1 + _SLACK)
    for row in _rows(~is_possible):
        faults.setdefault(row, f"confidence must be from 0 to 1, not {found[row]:g}")
    return found.clip(0, 1)


def _rows(flags: np.ndarray) -> list[int]:
    found: list[int] = flags.nonzero()[0].tolist()
    return found
