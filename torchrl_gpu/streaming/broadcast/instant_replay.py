"""Instant replay: the last seconds before an episode ended."""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Mapping

from torchrl_gpu.streaming.broadcast.frames import EncodedPicture, Scalar


class InstantReplay:
    """The newest JPEGs of a stream, and those that came before the last mark.

    Args:
        seconds: How far back it reaches.
        max_bytes: How much the running part holds; the part before the mark shares its pictures, or is no larger.
    """

    def __init__(self, seconds: float = 10.0, max_bytes: int = 15_000_000) -> None:
        self._seconds = seconds
        self._max_bytes = max_bytes
        self._bytes = 0
        self._ring: deque[EncodedPicture] = deque()
        self._clip: list[EncodedPicture] = []
        self._mark = -math.inf
        self._meta: Mapping[str, Scalar] = {}

    @property
    def is_on(self) -> bool:
        return self._seconds > 0

    @property
    def newest(self) -> float:
        """Time of capture of the newest picture, seconds by `clock.stream_time`; −inf where there is none."""
        return self._ring[-1].captured if self._ring else -math.inf

    def add(self, encoded: EncodedPicture) -> None:
        """Takes the newest picture in, and drops those that have become too old or too many."""
        if not self.is_on or encoded.captured <= self.newest:  # the latter is the last frame, encoded for a newcomer
            return
        self._ring.append(encoded)
        self._bytes += len(encoded.data)
        if encoded.captured <= self._mark:  # it was still being encoded when the episode ended
            self._clip.append(encoded)
        while self._ring and (self._bytes > self._max_bytes or self._ring[0].captured < self.newest - self._seconds):
            self._bytes -= len(self._ring.popleft().data)

    def mark(self, captured: float, meta: Mapping[str, Scalar]) -> None:
        """Marks the end of an episode, whose last pictures `clip` gives until the next mark.

        Args:
            captured: Seconds by `clock.stream_time`.
            meta: Joins the metadata of the last picture.
        """
        self._mark, self._meta = captured, meta
        self._clip = [encoded for encoded in self._ring if encoded.captured <= captured]

    def clip(self) -> list[EncodedPicture]:
        """Pictures before the last mark, or else the newest ones, oldest first, marked as replay."""
        pictures = [dataclasses.replace(encoded, replay=True) for encoded in self._clip or self._ring]
        if self._clip and self._meta:
            pictures[-1] = dataclasses.replace(pictures[-1], meta={**pictures[-1].meta, **self._meta})
        return pictures
