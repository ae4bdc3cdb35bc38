"""Observations and actions as bytes: JSON or safetensors, which hold numbers and nothing else."""

from __future__ import annotations

import json
from typing import Any, NoReturn

import numpy as np
from safetensors.numpy import load, save

from torchrl_gpu.arguments import shown
from torchrl_gpu.policies.inference import InferencePolicy

Observations = dict[str, np.ndarray]
"""Entries by name, (B, …) each."""


class BadMessage(ValueError):
    """What is wrong with a message, for whoever sent it."""


class Messages:
    """What a policy takes and gives, in bytes.

    Args:
        policy: Says names, shapes and types.
        max_rows: Observations of one message.
    """

    def __init__(self, policy: InferencePolicy, max_rows: int) -> None:
        found = {name: policy.space.observations[name] for name in policy.in_keys}
        self._forms = {name: (tuple(shape), np.dtype(dtype)) for name, (shape, dtype) in found.items()}
        self._max_rows = max_rows

    def parse(self, body: bytes | str, is_json: bool) -> Observations:
        """Observations of a message.

        Raises:
            BadMessage: It is no such message; every entry must be there with its type, shape and as many rows as the
                others, and none of them NaN.
        """
        try:
            given: Any = json.loads(body) if is_json else load(body)  # type: ignore[arg-type]
        except Exception as error:  # of bytes that somebody made up: of many kinds
            wanted = "JSON" if is_json else "safetensors"
            raise BadMessage(f"want {wanted}; got what fails with {' '.join(str(error).split())[:160]}") from None
        if not isinstance(given, dict) or set(given) != set(self._forms):
            came = list(given) if isinstance(given, dict) else type(given).__name__
            self._refuse(f"the entries {', '.join(self._forms)}", shown(came))
        found = {name: self._entry(name, given[name], is_json) for name in self._forms}
        rows = {len(value) for value in found.values()}
        if len(rows) != 1 or not 1 <= min(rows) <= self._max_rows:
            self._refuse(f"from 1 to {self._max_rows} rows, as many of each entry", str(sorted(rows)))
        return found

    def pack(self, action: np.ndarray, is_json: bool) -> bytes:
        """Actions (B, …) of a message."""
        return json.dumps({"action": action.tolist()}).encode() if is_json else save({"action": action})

    def _entry(self, name: str, value: Any, is_json: bool) -> np.ndarray:
        shape, dtype = self._forms[name]
        wanted = f"{name} as {dtype} of shape (rows, {', '.join(map(str, shape))})"
        try:
            found = np.asarray(value)
            if is_json and found.dtype.kind in "biuf" and (found.dtype.kind == "b") == (dtype.kind == "b"):
                with np.errstate(all="raise"):
                    found = found.astype(dtype, casting="same_kind" if dtype.kind == "f" else "unsafe")
                    if dtype.kind in "iu" and not np.array_equal(found, np.asarray(value)):
                        self._refuse(wanted, "numbers that do not fit")
        except (ValueError, TypeError, OverflowError, FloatingPointError):
            self._refuse(wanted, shown(value))
        if found.dtype != dtype or found.shape[1:] != shape or found.ndim == 0:
            self._refuse(wanted, f"{found.dtype} {found.shape}")
        if dtype.kind == "f" and np.isnan(found).any():
            self._refuse(f"{name} without NaN", "some")
        return found

    @staticmethod
    def _refuse(wanted: str, came: str) -> NoReturn:
        raise BadMessage(f"want {wanted}; got {came}")
