"""`Demonstrations`: rows to learn from and the episodes that they are of, from any file format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from torchrl_gpu.demonstrations.recordings import BadParts
from torchrl_gpu.demonstrations.untrusted import MOST_FRAMES, Arrays, check_room, finite, refuse
from torchrl_gpu.system.arguments import shown

_CHUNK = 2**16  # rows that are hashed together


_INT64: dict[str, Any] = {"dtype": torch.int64, "device": "cpu"}


class Demonstrations:
    """L rows of E episodes, in order: observations, and the `action` that followed.

    Args:
        rows: (L,) entries by flat names, as they are stored; `action` is one of them.
        lengths: Rows of each episode, (E,) int64.
        dtypes: Of the values of entries that are stored as smaller integers.
        about: Facts about the demonstrations: plain data.
        name: Of the file, in messages.
    """

    def __init__(
        self,
        rows: TensorDict,
        lengths: Tensor,
        dtypes: Mapping[str, torch.dtype] | None = None,
        about: Mapping[str, Any] | None = None,
        name: str = "demonstrations",
    ) -> None:
        self.rows, self.lengths, self.name = rows, lengths.cpu(), name
        self.dtypes, self.about = dict(dtypes or {}), dict(about or {})
        if "action" not in rows.keys():  # noqa: SIM118  # of a tensordict
            refuse(name, "an entry action", shown(sorted(rows.keys())))
        if not len(lengths) or int(lengths.min()) < 1 or int(lengths.sum()) != len(rows):
            refuse(name, f"lengths of episodes, from 1 on, that add up to {len(rows)} rows", shown(lengths.tolist()))
        self.first = self.lengths.cumsum(0) - self.lengths
        """(E,) int64, number of the first row of each episode, on the host."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def num_episodes(self) -> int:
        """E."""
        return len(self.lengths)

    def to(self, device: torch.device) -> Demonstrations:
        """A copy on a device."""
        return Demonstrations(self.rows.to(device), self.lengths, self.dtypes, self.about, self.name)

    def rows_of(self, episodes: Tensor) -> Tensor:
        """Indices of all rows of some episodes, in their order, int64 on the host."""
        lengths = self.lengths[episodes]
        start = (self.first[episodes] - (lengths.cumsum(0) - lengths)).repeat_interleave(lengths)
        return start + torch.arange(len(start), **_INT64)

    def batch(self, index: Tensor) -> TensorDict:
        """Rows by their indices (B,), decoded, without synchronising with the device."""
        stored = {name: value.index_select(0, index) for name, value in self.rows.items()}
        values = {name: value.to(self.dtypes.get(name, value.dtype)) for name, value in stored.items()}
        return TensorDict(values, batch_size=index.shape, device=index.device)

    def same_episodes(self) -> Tensor:
        """(E,) int64, the same number for bitwise equal episodes, as a deterministic policy gives from equal starts."""
        generator = torch.Generator().manual_seed(0)
        digest = torch.zeros(len(self), **_INT64)
        for _, value in sorted(self.rows.items()):
            weight: Tensor | None = None
            for begin in range(0, len(self), _CHUNK):
                chunk = value[begin : begin + _CHUNK].reshape(-1, value[0].numel()).cpu().contiguous()
                content = chunk.view(torch.uint8).long()
                if weight is None:
                    weight = torch.randint(1, 2**40, content.shape[1:], generator=generator, **_INT64)
                digest[begin : begin + _CHUNK] = digest[begin : begin + _CHUNK] * 1_000_003 + (content * weight).sum(1)
        step = torch.arange(len(self), **_INT64) - self.first.repeat_interleave(self.lengths)
        weights = torch.randint(1, 2**62, (int(self.lengths.max()),), generator=generator, **_INT64)
        number = torch.arange(self.num_episodes, **_INT64).repeat_interleave(self.lengths)
        sums = torch.zeros(self.num_episodes, **_INT64).index_add_(0, number, digest * (2 * weights[step] + 1))
        return sums.unique(return_inverse=True)[1]

    def split(self, share: float, seed: int) -> tuple[Tensor, Tensor]:
        """Indices of episodes to learn from, and of others with about `share` of all rows for validation, on the host.

        Equal episodes stay together: a copy of an episode that was learned from would validate nothing.

        Raises:
            ValueError: One of the two would be empty.
        """
        alike = self.same_episodes()
        num = int(alike.max()) + 1
        sizes = torch.zeros(num, **_INT64).index_add_(0, alike, self.lengths).tolist()  # rows of equal episodes
        order = torch.randperm(num, generator=torch.Generator().manual_seed(seed), **_INT64).tolist()
        chosen, taken = list[int](), 0
        for each in order:
            if taken + sizes[each] / 2 <= share * len(self):  # nearer to the share with it than without
                chosen.append(each)
                taken += sizes[each]
        least = min(order, key=sizes.__getitem__)
        held = torch.isin(alike, torch.tensor(chosen or [least], **_INT64))
        if held.all():
            wanted = f"different episodes enough to hold {share:.0%} of them back for validation"
            refuse(self.name, wanted, f"{num} different ones of {self.num_episodes}")
        return (~held).nonzero().flatten(), held.nonzero().flatten()


def from_episodes(
    episodes: Sequence[tuple[str, Arrays]], bad: BadParts, name: str, about: Mapping[str, Any] | None = None
) -> tuple[Demonstrations, list[str]]:
    """Demonstrations of the validated columns of episodes, and the names of those that are in them.

    ValueError where there is none, or an episode has columns of other names or forms than most.
    """
    forms = [frozenset((key, each.dtype, each.shape[1:]) for key, each in arrays.items()) for _, arrays in episodes]
    usual = Counter(forms).most_common(1)[0][0] if forms and bad.on_bad == "skip" else frozenset(*forms[:1])
    kept: list[tuple[str, Arrays]] = []
    for form, (place, arrays) in zip(forms, episodes, strict=True):
        with bad.guard(place):
            for key in sorted(each[0] for each in usual ^ form):
                forms_of_key = [{name: f"{kind} {shape}" for name, kind, shape in each} for each in (usual, form)]
                wanted, came = (each.get(key, "none") for each in forms_of_key)
                refuse(f"{place}/{key}", f"{wanted}, as the episode before", came)
            kept.append((place, arrays))
    if not kept:
        bad.log()
        refuse(name, "an episode that can be used", next(iter(bad.reasons.values()), "none"))
    first = kept[0][1]
    check_room(name, sum(each.nbytes for _, arrays in kept for each in arrays.values()))
    joined = {key: np.concatenate([arrays[key] for _, arrays in kept]) for key in first}
    lengths = [len(next(iter(arrays.values()))) for _, arrays in kept]
    return from_arrays(joined, lengths, name, about), [place for place, _ in kept]


def from_arrays(
    arrays: Arrays, lengths: list[int], name: str, about: Mapping[str, Any] | None = None
) -> Demonstrations:
    """Demonstrations of validated arrays, (L, …) each: reals as float32, at least (L, 1), and choices (L,)."""
    total, rows = sum(lengths), {}
    if not 0 < total <= MOST_FRAMES:
        refuse(name, f"1 to {MOST_FRAMES:,} rows", f"{total:,}")
    for key, values in arrays.items():
        if values.dtype.kind == "f":
            with np.errstate(over="ignore"):
                values = values.astype(np.float32).reshape(total, *(values.shape[1:] or (1,)))
            finite(values, f"{name}: {key}")  # in float32, too
        elif key == "action" and values.shape == (total, 1):
            values = values[:, 0]
        rows[key] = torch.from_numpy(values)
    return Demonstrations(TensorDict(rows, [total]), torch.tensor(lengths, **_INT64), about=about, name=name)
