"""`Demonstrations`: rows to learn from, and their episodes, from any format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from torchrl_gpu.demonstrations.recordings import BadParts
from torchrl_gpu.demonstrations.untrusted import MOST_FRAMES, Arrays, check_finite, check_room, fail, refuse
from torchrl_gpu.system.arguments import shown

# Rows that are hashed together.
_CHUNK = 2**16
# Odd, so that multiplying by it modulo 2⁶⁴ loses nothing.
_PRIME = 1_000_003

Facts: TypeAlias = Mapping[str, object]
"""Plain data about demonstrations, as JSON holds it."""

Form: TypeAlias = tuple[str, np.dtype, tuple[int, ...]]
"""Name, dtype and shape in a row of a column."""


class Demonstrations:
    """L rows of E episodes, in order: observations, and the `action` that followed.

    Args:
        rows: (L,) entries by flat names, as they are stored; `action` is one of them.
        lengths: Rows of each episode, (E,) int64.
        dtypes: Of the values of entries that are stored as smaller integers.
        about: Facts about the demonstrations: plain data.
        name: Of the file, in messages.

    Attributes:
        first: (E,) int64, number of the first row of each episode, on the host.

    Raises:
        ValueError: There is no action, or rows and lengths do not fit together.
    """

    def __init__(
        self,
        rows: TensorDict,
        lengths: Tensor,
        dtypes: Mapping[str, torch.dtype] | None = None,
        about: Facts | None = None,
        name: str = "demonstrations",
    ) -> None:
        self.rows = rows
        self.lengths = lengths.cpu()
        self.name = name
        self.dtypes = dict(dtypes or {})
        self.about = dict(about or {})
        names = list(rows.keys())
        if "action" not in names:
            fail(name, f"it has no entry action, only {shown(sorted(names))}")
        if not len(lengths) or int(lengths.min()) < 1 or int(lengths.sum()) != len(rows):
            refuse(name, f"lengths of episodes, from 1 on, that add up to {len(rows)} rows", shown(lengths.tolist()))
        self.first = self.lengths.cumsum(0) - self.lengths

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def num_episodes(self) -> int:
        """E."""
        return len(self.lengths)

    def to(self, device: torch.device) -> Demonstrations:
        """Return a copy on a device."""
        return Demonstrations(self.rows.to(device), self.lengths, self.dtypes, self.about, self.name)

    def rows_of(self, episodes: Tensor) -> Tensor:
        """Return the indices of all rows of some episodes, int64 on the host.

        They are in the order of the episodes.
        """
        lengths = self.lengths[episodes]
        # By how much the rows of an episode lie further on than their place in the result.
        shift = self.first[episodes] - (lengths.cumsum(0) - lengths)
        shifts = shift.repeat_interleave(lengths)
        return shifts + _arange(len(shifts))

    def batch(self, index: Tensor) -> TensorDict:
        """Return rows by their indices (B,), decoded.

        The host does not wait for the device.
        """
        values: dict[str, Tensor] = {}
        for name, value in self.rows.items():
            stored = value.index_select(0, index)
            dtype = self.dtypes.get(name, stored.dtype)
            values[name] = stored.to(dtype)
        return TensorDict(values, batch_size=index.shape, device=index.device)

    def same_episodes(self) -> Tensor:
        """Return a number for each episode, (E,) int64, the same for bitwise equal ones.

        A deterministic policy gives equal episodes from equal starts. To compare them pair by pair would take E² reads
        of all rows. So each row gets a hash of its bytes, and each episode a sum of these, weighted by the step: two
        episodes of the same rows in another order are not equal. Sums wrap around in 64 bits; that two different
        episodes have the same is as unlikely as a collision of any hash of this length.
        """
        generator = torch.Generator().manual_seed(0)
        digest = self._hash_rows(generator)
        step = _arange(len(self)) - self.first.repeat_interleave(self.lengths)
        longest = int(self.lengths.max())
        weights = torch.randint(1, 2**62, (longest,), generator=generator, dtype=torch.int64, device="cpu")
        number = _arange(self.num_episodes).repeat_interleave(self.lengths)
        sums = _zeros(self.num_episodes).index_add_(0, number, digest * (2 * weights[step] + 1))
        return sums.unique(return_inverse=True)[1]

    def _hash_rows(self, generator: torch.Generator) -> Tensor:
        """Return a hash of all entries of each row, (L,) int64."""
        digest = _zeros(len(self))
        for _, value in sorted(self.rows.items()):
            weight: Tensor | None = None
            for begin in range(0, len(self), _CHUNK):
                chunk = value[begin : begin + _CHUNK].reshape(-1, value[0].numel()).cpu().contiguous()
                content = chunk.view(torch.uint8).long()
                if weight is None:
                    shape = content.shape[1:]
                    weight = torch.randint(1, 2**40, shape, generator=generator, dtype=torch.int64, device="cpu")
                before = digest[begin : begin + _CHUNK]
                digest[begin : begin + _CHUNK] = before * _PRIME + (content * weight).sum(1)
        return digest

    def split(self, share: float, seed: int) -> tuple[Tensor, Tensor]:
        """Split the episodes into those to learn from and those for validation.

        Equal episodes stay together: a copy of an episode that was learned from would validate nothing.

        Args:
            share: Of all rows for validation, about.
            seed: Of the choice.

        Returns:
            Indices of the episodes of both, on the host.

        Raises:
            ValueError: One of the two would be empty.
        """
        alike = self.same_episodes()
        num_different = int(alike.max()) + 1
        # Rows of equal episodes.
        sizes = _zeros(num_different).index_add_(0, alike, self.lengths).tolist()
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(num_different, generator=generator, dtype=torch.int64, device="cpu").tolist()
        chosen: list[int] = []
        taken = 0
        wanted_rows = share * len(self)
        for each in order:
            nearer_with_it = taken + sizes[each] / 2 <= wanted_rows
            if nearer_with_it:
                chosen.append(each)
                taken += sizes[each]
        # If the share is too small for any episode, the shortest one is held back.
        least = min(order, key=sizes.__getitem__)
        held = torch.isin(alike, torch.tensor(chosen or [least], dtype=torch.int64, device="cpu"))
        if held.all():
            wanted = f"different episodes enough to hold {share:.0%} of them back for validation"
            refuse(self.name, wanted, f"{num_different} different ones of {self.num_episodes}")
        return (~held).nonzero().flatten(), held.nonzero().flatten()


def _arange(end: int) -> Tensor:
    return torch.arange(end, dtype=torch.int64, device="cpu")


def _zeros(size: int) -> Tensor:
    return torch.zeros(size, dtype=torch.int64, device="cpu")


# -- from arrays -------------------------------------------------------------------------------------------------------


def from_episodes(
    episodes: Sequence[tuple[str, Arrays]], bad: BadParts, name: str, about: Facts | None = None
) -> tuple[Demonstrations, list[str]]:
    """Return demonstrations of the validated columns of episodes.

    Args:
        episodes: Name and columns of each.
        bad: What to do with an episode whose columns differ.
        name: Of the file, in messages.
        about: Facts about the demonstrations.

    Returns:
        The demonstrations, and the names of the episodes that are in them.

    Raises:
        ValueError: There is no episode, or one has columns of other names or forms than most.
    """
    forms = [_forms_of(arrays) for _, arrays in episodes]
    usual = _usual(forms, bad)
    kept: list[tuple[str, Arrays]] = []
    for form, (place, arrays) in zip(forms, episodes, strict=True):
        with bad.guard(place):
            _check_forms(place, usual, form)
            kept.append((place, arrays))
    if not kept:
        bad.log()
        refuse_all(name, "episode", bad)
    check_room(name, sum(_num_bytes(arrays) for _, arrays in kept))
    joined: Arrays = {}
    for key in kept[0][1]:
        parts = [arrays[key] for _, arrays in kept]
        joined[key] = np.concatenate(parts)
    lengths = [len(next(iter(arrays.values()))) for _, arrays in kept]
    names = [place for place, _ in kept]
    return from_arrays(joined, lengths, name, about), names


def refuse_all(name: str, part: str, bad: BadParts) -> None:
    """Raise the error of a file without a usable part, with the first reason."""
    reason = next(iter(bad.reasons.values()), "there is none")
    fail(name, f"no {part} can be used: {reason}")


def _forms_of(arrays: Arrays) -> frozenset[Form]:
    return frozenset((key, each.dtype, each.shape[1:]) for key, each in arrays.items())


def _usual(forms: Sequence[frozenset[Form]], bad: BadParts) -> frozenset[Form]:
    """Return the forms of most episodes.

    If another form is an error anyway, those of the first one are the usual.
    """
    if not forms:
        return frozenset()
    if bad.on_bad == "skip":
        return Counter(forms).most_common(1)[0][0]
    return forms[0]


def _check_forms(place: str, usual: frozenset[Form], found: frozenset[Form]) -> None:
    for key in sorted(form[0] for form in usual ^ found):
        wanted = _form_text(usual, key)
        refuse(f"{place}/{key}", f"{wanted}, as the episode before", _form_text(found, key))


def _form_text(forms: frozenset[Form], key: str) -> str:
    texts = [f"{dtype} {shape}" for name, dtype, shape in forms if name == key]
    return texts[0] if texts else "none"


def _num_bytes(arrays: Arrays) -> int:
    return sum(each.nbytes for each in arrays.values())


def from_arrays(arrays: Arrays, lengths: list[int], name: str, about: Facts | None = None) -> Demonstrations:
    """Return demonstrations of validated arrays, (L, …) each.

    Reals become float32, at least (L, 1), and choices (L,).
    """
    total = sum(lengths)
    if not 0 < total <= MOST_FRAMES:
        refuse(name, f"1 to {MOST_FRAMES:,} rows", f"{total:,}")
    rows: dict[str, Tensor] = {}
    for key, values in arrays.items():
        if values.dtype.kind == "f":
            with np.errstate(over="ignore"):
                values = values.astype(np.float32).reshape(total, *(values.shape[1:] or (1,)))
            # Again, as a float64 may be too large for float32.
            check_finite(values, f"{name}: {key}")
        # A choice is one number, (L,), as an environment gives it.
        elif key == "action" and values.shape == (total, 1):
            values = values[:, 0]
        rows[key] = torch.from_numpy(values)
    lengths_tensor = torch.tensor(lengths, dtype=torch.int64, device="cpu")
    return Demonstrations(TensorDict(rows, [total]), lengths_tensor, about=about, name=name)
