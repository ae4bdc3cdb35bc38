"""How a function goes over to a faster form of itself, and back."""

from __future__ import annotations

import logging
import textwrap
from abc import ABC, abstractmethod
from typing import ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from torchrl_gpu.policies.generators import generators_kept

_LOG = logging.getLogger(__name__)
# Characters of a reason.
_LONGEST = 400

CLOSE = 1e-2
"""How far apart numbers of both forms may be, relatively.

Fused operators, and sums on a GPU, round in another order.
"""

Form = TypeVar("Form")
Data = TypeVar("Data")
State = TypeVar("State")
Result = TypeVar("Result")


class Accelerator(ABC, Generic[Form, Data, State, Result]):
    """Base class of functions with a faster form: a graph, or compiled code.

    There are three states. At first operators run one by one. Once `patience` calls were alike in their settings, the
    faster form is made and both are tried from the same state and the same random numbers; where they give the same,
    the faster one runs from then on, until a call has other settings. Where making it fails, or it gives something
    else, one warning says why, and operators run one by one for good. Making and trying leaves everything as it was.

    A subclass says how the form is made and tried, by the methods below. It names four types: the faster form, the data
    of a call, the copy of all that a call may change, and what two forms are compared by.

    Args:
        device: Where the function computes.
        active: Whether a faster form is looked for at all.
    """

    instead: ClassVar[str] = "operators are launched one by one"
    """What happens without a faster form, for the warning."""

    patience: ClassVar[int] = 0
    """Calls of the same settings that run plainly before a form is made."""

    keeps_all: ClassVar[bool] = False
    """Whether forms of other settings are kept.

    Else their memory is free before another one is made.
    """

    def __init__(self, device: torch.device, active: bool = True) -> None:
        self.device = device
        self.active = active
        self.gives_up = False
        # Each with its settings.
        self._forms: list[tuple[object, Form]] = []
        self._last: object = None
        self._alike = 0

    @abstractmethod
    def _saved(self) -> State:
        """Copies of all that a call may change, random numbers apart."""

    @abstractmethod
    def _restore(self, saved: State) -> None:
        """Put everything back to what `_saved` returned."""

    @abstractmethod
    def _made(self, data: Data) -> Form:
        """The faster form for calls with such data.

        Whatever it raises is why there is none.
        """

    @abstractmethod
    def _tried(self, form: Form | None, data: Data) -> Result:
        """Numbers and states of a call by a form, in new tensors.

        For None operators run one by one.
        """

    @abstractmethod
    def _compare(self, plain: Result, found: Result) -> None:
        """Raise RuntimeError where the results of `_tried` differ by more than rounding."""

    @property
    def proven(self) -> bool:
        """Whether a faster form has been found to give the same."""
        return bool(self._forms)

    @property
    def is_open(self) -> bool:
        """Whether there is a faster form, or one may still be made."""
        return self.active and not self.gives_up

    @property
    def has_been_called(self) -> bool:
        """Whether a call has been counted since forms were dropped last."""
        return self._alike > 0

    def forget(self) -> None:
        """Drop all forms, as what they were made of is there no longer.

        The next calls may make new ones.
        """
        self._forms.clear()
        self._last = None
        self._alike = 0

    def form_for(self, settings: object, data: Data) -> Form | None:
        """The faster form for a call.

        It is None where operators are to run one by one.

        Args:
            settings: All that a form takes for granted: shapes, modes, numbers of Python that its operators read.
            data: What the call is given, for a first try.
        """
        if not self.is_open:
            return None
        # A list and no dict: settings may hold what has no hash, such as the options of an optimizer.
        for known, form in self._forms:
            if known == settings:
                return form
        if not self.keeps_all:
            self._forms.clear()
        if self.note_call(settings) <= self.patience:
            return None
        # A capture, a compiler, a driver or a launch may raise anything.
        try:
            form = self._proven(data)
        except Exception as error:
            self.give_up(error)
            return None
        self._forms.append((settings, form))
        return form

    def note_call(self, settings: object) -> int:
        """Count a call.

        Returns:
            How many in a row have had these settings, this one included.
        """
        is_alike = self._alike > 0 and settings == self._last
        self._alike = self._alike + 1 if is_alike else 1
        self._last = settings
        return self._alike

    def give_up(self, error: Exception) -> None:
        """Go back to operators one by one for good, and say why in one line."""
        self._forms.clear()
        self.gives_up = True
        reason = textwrap.shorten(str(error), _LONGEST, placeholder=" …") or type(error).__name__
        where = self.where
        said = reason if reason.startswith(where) else f"{where}: {reason}"
        _LOG.warning("%s; %s instead", said, self.instead)

    @property
    def where(self) -> str:
        """Name of the function in messages."""
        return type(self).__name__

    # To trust a graph or a compiler would be simpler. But a capture leaves out what the host does between two
    # operators, and a compiler may be wrong on one chip alone. Neither raises anything then, and the run learns from
    # wrong numbers. So each form is compared once with operators one by one, from the same state and the same random
    # numbers.
    def _proven(self, data: Data) -> Form:
        """Make a form, and return it once it has given the same as operators do."""
        before = self._saved()
        try:
            form = self._made(data)
            self._restore(before)
            with generators_kept(self.device):
                plain = self._tried(None, data)
            self._restore(before)
            with generators_kept(self.device):
                found = self._tried(form, data)
            self._compare(plain, found)
            return form
        finally:
            self._restore(before)


def casts(device: torch.device) -> tuple[bool, torch.dtype]:
    """Autocast state: on or off, and its dtype."""
    return torch.is_autocast_enabled(device.type), torch.get_autocast_dtype(device.type)


def uncached_casts(device: torch.device) -> torch.autocast:
    """Autocast as it is, but without its cache.

    A form would go on with weights that were cast before it was made.
    """
    enabled, dtype = casts(device)
    return torch.autocast(device.type, dtype, enabled, cache_enabled=False)


def are_close(one: Tensor, other: Tensor) -> bool:
    """Whether all numbers are the same but for rounding, which reads the device back."""
    return bool(torch.isclose(one, other, rtol=CLOSE, atol=1e-3, equal_nan=True).all())


def rows_that_differ(one: Tensor, other: Tensor) -> Tensor:
    """Rows (N,) bool in which two tensors (N, …) differ by more than rounding."""
    if one.is_floating_point():
        differ = ~torch.isclose(one, other, rtol=CLOSE, atol=1e-3, equal_nan=True)
    else:
        differ = one != other
    return differ.flatten(1).any(1) if differ.ndim > 1 else differ
