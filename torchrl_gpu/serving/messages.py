"""Observations and actions as bytes.

They are JSON or safetensors, which hold numbers and nothing else.
"""

from __future__ import annotations

import json
import math
import reprlib
from typing import NamedTuple, NoReturn

import numpy as np
from safetensors.numpy import load, save

from torchrl_gpu.policies.inference import InferencePolicy
from torchrl_gpu.system.arguments import shown
from torchrl_gpu.system.policy_messages import ACTIVE, BadMessage, check_finite

Observations = dict[str, np.ndarray]
"""Entries by name, (B, …) each."""

# Bytes of a header of safetensors, and those that an entry may add to it.
_HEADER_BYTES = 4096
_ENTRY_BYTES = 512
# Pairs of quotes, for entries that the policy does not have.
_MORE_QUOTES = 16
# Signs of JSON beyond those that a message needs, so that one of a few rows too many is told about its rows.
_SLACK = 2
# Characters of an error that are quoted.
_MOST_QUOTED = 160


class _Form(NamedTuple):
    """What an entry of a message is.

    Attributes:
        shape: Of one row.
        dtype: Of its values.
    """

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def numbers(self) -> int:
        """Numbers of one row."""
        return max(1, math.prod(self.shape))

    @property
    def lists(self) -> int:
        """Lists of JSON that hold the numbers of one row."""
        return sum(math.prod(self.shape[:axis]) for axis in range(len(self.shape)))


class Messages:
    """Observations and actions of a policy, in bytes.

    At most `max_rows` observations in a message.

    A message takes no longer to read than the largest that the policy has a use for. Numbers of a stranger's JSON may
    be nested in any way, and a parser works through all of them before it can be asked about their number. So brackets,
    commas and quotes are counted before anything is parsed.
    """

    def __init__(self, policy: InferencePolicy, max_rows: int) -> None:
        self._forms: dict[str, _Form] = {}
        for name in policy.in_keys:
            shape, dtype = policy.space.observations[name]
            self._forms[name] = _Form(tuple(shape), np.dtype(dtype))
        self._max_rows = max_rows
        self._most = self._most_signs()

    def _most_signs(self) -> dict[bytes, int]:
        """Return how often each sign of JSON may be in a message."""
        forms = self._forms.values()
        lists = sum(1 + self._max_rows * form.lists for form in forms)
        numbers = self._max_rows * sum(form.numbers for form in forms)
        counts = {b"{": 1, b"[": lists, b",": numbers + lists, b'"': len(forms) + _MORE_QUOTES}
        return {sign: _SLACK * count for sign, count in counts.items()}

    def parse(self, body: bytes | str, is_json: bool) -> Observations:
        """Return the observations of a message.

        No call holds the interpreter for long, so that a thread may read large ones.

        Raises:
            BadMessage: A key, type, shape, number of rows or value is another.
        """
        raw = body.encode("utf-8", "replace") if isinstance(body, str) else body
        try:
            given = self._read_json(raw) if is_json else self._read_tensors(raw)
        except Exception as error:
            # Bytes that somebody made up fail in many ways.
            kind = "JSON" if is_json else "safetensors"
            raise BadMessage(f"invalid {kind}: {' '.join(str(error).split())[:_MOST_QUOTED]}") from None
        required = set(self._forms) - {ACTIVE}
        if not isinstance(given, dict) or not required <= set(given) <= set(self._forms):
            found = list(given) if isinstance(given, dict) else type(given).__name__
            raise BadMessage(f"the entries must be {', '.join(self._forms)}, not {shown(found)}")
        observations = {name: self._entry(name, given[name], is_json) for name in self._forms if name in given}
        rows = {len(value) for value in observations.values()}
        if len(rows) != 1 or not 1 <= min(rows) <= self._max_rows:
            raise BadMessage(
                f"the entries must have the same number of rows, from 1 to {self._max_rows}, not {sorted(rows)}"
            )
        if ACTIVE in self._forms and ACTIVE not in observations:
            observations[ACTIVE] = np.ones((min(rows), *self._forms[ACTIVE].shape), np.bool_)
        return observations

    def pack(self, action: np.ndarray, is_json: bool) -> bytes:
        """Return the message of actions."""
        if not is_json:
            return save({"action": action})
        return json.dumps({"action": action.tolist()}, allow_nan=False).encode()

    def _read_json(self, body: bytes) -> object:
        for sign, most in self._most.items():
            if body.count(sign) > most:
                raise ValueError(f"more than {most} times {sign.decode()}, which {self._max_rows} rows do not need")
        # Numbers are made by functions of Python: between them another thread has its turn.
        parsed: object = json.loads(body, parse_int=lambda text: int(text), parse_float=lambda text: float(text))
        return parsed

    def _read_tensors(self, body: bytes) -> object:
        most = _HEADER_BYTES + _ENTRY_BYTES * len(self._forms)
        size = int.from_bytes(body[:8], "little")
        if size > most:
            raise ValueError(f"the header may have {most} bytes, not {size}")
        return load(body)

    def _entry(self, name: str, value: object, is_json: bool) -> np.ndarray:
        """Return the values of an entry, (B, …)."""
        form = self._forms[name]
        try:
            found = np.stack([np.asarray(row) for row in value]) if isinstance(value, list) else np.asarray(value)
            # Numbers of JSON are int64 or float64 here; booleans stay apart from them.
            is_number = found.dtype.kind in "biuf" and (found.dtype.kind == "b") == (form.dtype.kind == "b")
            if is_json and is_number:
                found = self._convert(found, form.dtype)
        except (ValueError, TypeError, OverflowError, FloatingPointError):
            self._refuse(name, reprlib.repr(value))
        if found.dtype != form.dtype or found.shape[1:] != form.shape or found.ndim == 0:
            self._refuse(name, f"{found.dtype} {found.shape}")
        check_finite(f"{name} must not contain NaN or infinity", found)
        return found

    @staticmethod
    def _convert(plain: np.ndarray, dtype: np.dtype) -> np.ndarray:
        """Return numbers of JSON in the dtype of an entry.

        Raises:
            ValueError: They do not fit.
        """
        with np.errstate(over="raise", invalid="raise"):
            found = plain.astype(dtype, casting="same_kind" if dtype.kind == "f" else "unsafe")
        if dtype.kind in "iu" and not np.array_equal(found, plain):
            raise ValueError("numbers that do not fit")
        return found

    def _refuse(self, name: str, given: str) -> NoReturn:
        form = self._forms[name]
        shape = f"(rows, {', '.join(map(str, form.shape))})"
        raise BadMessage(f"{name} must be {form.dtype} of shape {shape}, not {given}")
