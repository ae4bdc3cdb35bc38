"""Means and shares with their standard errors, and the text of both."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_ROUNDING = 1e-6
_TWO_DIGITS = 3.55  # times the last digit's value: errors from there on have one digit


@dataclass(frozen=True)
class Estimate:
    """A mean over cases and its standard error, which one case alone does not have."""

    mean: float
    error: float | None

    @property
    def is_significant(self) -> bool:
        """True if the mean is more than two standard errors from 0, and more than rounding."""
        return self.error is not None and abs(self.mean) > max(2 * self.error, _ROUNDING)


def estimate(values: Tensor) -> Estimate:
    """Mean and standard error of values (E,), E ≥ 1; of flags that of a share, see `share_error`."""
    if values.dtype is torch.bool and len(values) > 1:
        share = values.double().mean().item()
        return Estimate(share, share_error(share, len(values)))
    values = values.double()
    return Estimate(values.mean().item(), standard_error(values))


def standard_error(values: Tensor) -> float | None:
    """Standard error of the mean of values (E,), in their own dtype; None of one value."""
    return (values.std() / len(values) ** 0.5).item() if len(values) > 1 else None


def paired(values: Tensor, reference: Tensor) -> Estimate:
    """By how much a method differs from another on the same cases, both (E,)."""
    return estimate(values.double() - reference.double())


def share_error(share: float, count: int) -> float:
    """Standard error of a share of `count` independent episodes, binomial.

    That of none or of all would be 0 however few there were: for these it is the error that the share would have with
    one episode of each kind more.
    """
    if not 0 <= share <= 1 or count < 1:
        raise ValueError(f"share_error: want a share between 0 and 1 of at least one episode; got {share} of {count}")
    if share in (0, 1):
        share, count = (share * count + 1) / (count + 2), count + 2
    return math.sqrt(share * (1 - share) / count)


def percent(share: float, error: float) -> str:
    """A share, or a difference of two, ± its standard error, to whole per cent or finer.

    The error keeps two digits where they are 10 to 35, otherwise one, and the share as many decimals: the rounding rule
    of the Particle Data Group (Review of Particle Physics, introduction).
    """
    digits = max(0, math.ceil(-math.log10(100 * error / _TWO_DIGITS)))
    return f"{share:.{digits}%} ± {error:.{digits}%}"


def plus_minus(error: float | None, form: str) -> str:
    """A standard error as it stands behind its mean; nothing where there is none."""
    return "" if error is None else f" ± {error:{form}}"
