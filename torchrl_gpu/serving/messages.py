"""Observations and actions as bytes: JSON or safetensors, which hold numbers and nothing else."""

from __future__ import annotations

import json
import math
import reprlib
from typing import Any, NoReturn

import numpy as np
from safetensors.numpy import load, save

from torchrl_gpu.policies.inference import InferencePolicy
from torchrl_gpu.system.arguments import shown
from torchrl_gpu.system.policy_messages import ACTIVE, BadMessage, check_finite

Observations = dict[str, np.ndarray]
"""Entries by name, (B, …) each."""

_HEADER_BYTES, _ENTRY_BYTES = 4096, 512  # of safetensors, and what an entry may add to it
_MORE_QUOTES = 16  # pairs, for entries that are none


class Messages:
    """Observations and actions of a policy, in bytes; at most `max_rows` observations in a message.

    A message takes no longer to read than the largest that the policy has a use for: brackets, commas and quotes are
    counted before anything is parsed.
    """

    def __init__(self, policy: InferencePolicy, max_rows: int) -> None:
        found = {name: policy.space.observations[name] for name in policy.in_keys}
        self._forms = {name: (tuple(shape), np.dtype(dtype)) for name, (shape, dtype) in found.items()}
        self._max_rows = max_rows
        shapes = [shape for shape, _ in self._forms.values()]
        lists = sum(1 + max_rows * sum(math.prod(shape[:axis]) for axis in range(len(shape))) for shape in shapes)
        numbers = max_rows * sum(max(1, math.prod(shape)) for shape in shapes)
        counts = {b"{": 1, b"[": lists, b",": numbers + lists, b'"': len(shapes) + _MORE_QUOTES}
        self._most = {
            sign: 2 * count for sign, count in counts.items()
        }  # so that a few rows too many get their own message

    def parse(self, body: bytes | str, is_json: bool) -> Observations:
        """Observations of a message, or BadMessage where a key, type, shape, number of rows or value is another.

        No call holds the interpreter for long, so that a thread may read large ones.
        """
        raw = body.encode("utf-8", "replace") if isinstance(body, str) else body
        try:
            given: Any = self._json(raw) if is_json else self._tensors(raw)
        except Exception as error:  # of bytes that somebody made up: of many kinds
            wanted = "JSON" if is_json else "safetensors"
            raise BadMessage(f"want {wanted}; got what fails with {' '.join(str(error).split())[:160]}") from None
        if not isinstance(given, dict) or not set(self._forms) - {ACTIVE} <= set(given) <= set(self._forms):
            came = list(given) if isinstance(given, dict) else type(given).__name__
            self._refuse(f"the entries {', '.join(self._forms)}", shown(came))
        found = {name: self._entry(name, given[name], is_json) for name in self._forms if name in given}
        rows = {len(value) for value in found.values()}
        if len(rows) != 1 or not 1 <= min(rows) <= self._max_rows:
            self._refuse(f"from 1 to {self._max_rows} rows, as many of each entry", str(sorted(rows)))
        if ACTIVE in self._forms and ACTIVE not in found:
            found[ACTIVE] = np.ones((min(rows), *self._forms[ACTIVE][0]), np.bool_)
        return found

    def pack(self, action: np.ndarray, is_json: bool) -> bytes:
        if not is_json:
            return save({"action": action})
        return json.dumps({"action": action.tolist()}, allow_nan=False).encode()

    def _json(self, body: bytes) -> Any:
        for sign, most in self._most.items():
            if body.count(sign) > most:
                raise ValueError(f"more than {most} times {sign.decode()}, which {self._max_rows} rows do not need")
        # Numbers are made by functions of Python: between them another thread has its turn.
        return json.loads(body, parse_int=lambda text: int(text), parse_float=lambda text: float(text))

    def _tensors(self, body: bytes) -> Any:
        most = _HEADER_BYTES + _ENTRY_BYTES * len(self._forms)
        if (size := int.from_bytes(body[:8], "little")) > most:
            raise ValueError(f"a header of {size} bytes, of which there may be {most}")
        return load(body)

    def _entry(self, name: str, value: Any, is_json: bool) -> np.ndarray:
        shape, dtype = self._forms[name]
        wanted = f"{name} as {dtype} of shape (rows, {', '.join(map(str, shape))})"
        try:
            found = np.stack([np.asarray(row) for row in value]) if isinstance(value, list) else np.asarray(value)
            if is_json and found.dtype.kind in "biuf" and (found.dtype.kind == "b") == (dtype.kind == "b"):
                plain = found
                with np.errstate(over="raise", invalid="raise"):
                    found = plain.astype(dtype, casting="same_kind" if dtype.kind == "f" else "unsafe")
                if dtype.kind in "iu" and not np.array_equal(found, plain):
                    self._refuse(wanted, "numbers that do not fit")
        except (ValueError, TypeError, OverflowError, FloatingPointError):
            self._refuse(wanted, reprlib.repr(value))
        if found.dtype != dtype or found.shape[1:] != shape or found.ndim == 0:
            self._refuse(wanted, f"{found.dtype} {found.shape}")
        check_finite(f"want {name} without NaN or infinity", found)
        return found

    @staticmethod
    def _refuse(wanted: str, came: str) -> NoReturn:
        raise BadMessage(f"want {wanted}; got {came}")
