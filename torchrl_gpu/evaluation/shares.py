"""Shares of episodes as they are printed: with their standard error, and no more digits than that supports."""

from __future__ import annotations

import math

_TWO_DIGITS = 3.55  # times the last digit's worth: errors from there on have one digit


def share_error(share: float, count: int) -> float:
    """Standard error of a share of `count` independent episodes, binomial.

    That of none or of all would be 0 however few there were. For these it is the error that the share would have with
    one episode of each kind more.

    Raises:
        ValueError: `share` is not between 0 and 1, or there is no episode.
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
