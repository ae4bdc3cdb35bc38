"""A module of somebody's own that cannot be imported."""

from __future__ import annotations

nothing  # noqa: B018, F821
