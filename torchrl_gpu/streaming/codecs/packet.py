"""`Packet`: one encoded frame."""

from __future__ import annotations

from typing import NamedTuple


class Packet(NamedTuple):
    """One frame, encoded."""

    data: bytes  # empty where the codec keeps the frame for later
    key: bool  # whether a decoder can start here
