"""Box sequences from a file: the user's own orders."""

from __future__ import annotations

import itertools
import json
import logging
import math
import pickle
import re
import warnings
import zipfile
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple

import numpy as np
import torch

from torchrl_gpu.envs.packing.items.boxes import (
    box_catalogue,
    cell_volume,
    check_rounding,
    fits,
    pad_sequences,
    whole_cells,
    written,
)
from torchrl_gpu.envs.packing.items.source import Built, ItemSource, Labels, Masses, PooledSequences
from torchrl_gpu.envs.packing.types import UNITS, Bin
from torchrl_gpu.lists.box_list import Label
from torchrl_gpu.lists.files import SUFFIXES, check_size
from torchrl_gpu.lists.reading import ListOptions, read_list
from torchrl_gpu.system import arguments
from torchrl_gpu.system.archives import describe_refusal

_LOG = logging.getLogger(__name__)
SEQUENCE_UNITS = ("cells", *UNITS)
# Keys of a box in an order that plans record.
NAMES = ("id", "name", "sku", "article")
# Another such key, and the heaviest box that is believed, kilograms.
_WEIGHT = "weight/kg"
_MOST_KG = 1e6
_UPRIGHT = "not to lie on every side"
MISFITS = ("refuse", "skip_boxes", "skip_orders")
# Numbers in all episodes of a file.
MOST_NUMBERS = 2**27
# Longest side of a box, in any unit.
MOST_SIZE = 1e9


class BoxSequences(ItemSource):
    """Sequences of boxes read from a file.

    Args:
        path: `.npy`, `.npz` (its only array, or the one named "sequences"), `.pt` (a tensor) of shape (episodes, items,
            3), short episodes padded with zeros; `.json` or `.pt`: nested lists (or tuples) of that shape, in which
            episodes may differ in length; or `.json` of orders, {order: {"item_sequence": {place: {"length/mm",
            "width/mm", "height/mm"}}}}, always in millimetres. A `.pt` file is read with `weights_only`. Or a list of
            boxes, one article a row, of one or many orders: `.csv`, `.tsv`, `.txt`, `.xlsx`, `.xlsm`, `.xls`, `.ods`,
            `.jsonl`, `.ndjson` or `.parquet`, see `lists.reading.read_list`; what is doubtful in it is logged.
        unit: "cells", "m", "cm" or "mm", where a list does not say it itself. Sides are rounded up to whole cells;
            volumes stay those of the true sizes.
        in_order: Environment i plays episode i, then i + num_envs, …; else each episode draws one.
        misfits: Of boxes that fit the bin in no orientation: "refuse" (an error names the first of them), "skip_boxes"
            or "skip_orders" (whole episodes), and likewise of rows of a list that give no box. One logged line counts
            what is left out.
        columns: Headers of a list by what they are, one of `lists.columns.COLUMNS`, where the words of the field do
            not find them.
        options: More of what a list does not say itself, such as its decimal sign.

    Boxes that fill the whole bin, as the published sequences of Zhao et al. (AAAI 2021) have one at each end, mark the
    end of an episode and are not packed: those behind the last smaller box of an episode that has one.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It holds no box sequences: wrong rank, negative or non-finite sizes, a zero before the padding, a
            pickle; and, from `build`, a box does not fit the bin, or cells are far larger than the boxes.
    """

    def __init__(
        self,
        path: str,
        unit: str = "cells",
        in_order: bool = False,
        misfits: str = "refuse",
        columns: dict[str, str] | None = None,
        options: ListOptions | None = None,
    ) -> None:
        arguments.choice("BoxSequences", "unit", unit, SEQUENCE_UNITS)
        self.misfits = arguments.choice("BoxSequences", "misfits", misfits, MISFITS)
        if not isinstance(path, (str, Path)):
            arguments.refuse("BoxSequences", "path", "that of a file", path)
        self.path = Path(path).expanduser()
        self.in_order = arguments.flag("BoxSequences", "in_order", in_order)
        self.columns = columns
        self.options = options
        self._said = set[str]()
        # Counts of the boxes of a list with a limit that environments ignore, by the limit.
        self._limits: dict[str, int] = {}
        self._played: dict[tuple[Bin, str | float], PlayedBoxes] = {}
        if self.path.suffix.lower() in SUFFIXES:
            self.names, self.episodes, self.labels, self.unit = self._listed(unit)
        elif columns or options is not None:
            name = "columns" if columns else "options"
            arguments.refuse("BoxSequences", name, f"none but for {', '.join(SUFFIXES)}", columns or options)
        else:
            self.names, self.episodes, self.labels, self.unit = _read(self.path, unit)
            # Only a file of orders says which unit its sizes are in.
            self.names_unit = bool(self.labels)

    def _listed(self, unit: str) -> tuple[list[str], list[np.ndarray], list[Labels], str]:
        """Orders of a list of boxes, without its rows that give none."""
        read = read_list(self.path, self._where, unit, self.columns, self.options)
        for doubt in read.doubts:
            self._say(f"{self._where}: {doubt}")
        self.names_unit = read.names_unit
        if read.faults:
            line, order, reason = read.faults[0]
            of_order = f" (order {order})" if len(read.orders) > 1 else ""
            told = f"line {line}{of_order}: {reason}; the first of {len(read.faults):,} such rows"
            if self.misfits == "refuse":
                raise ValueError(f"{self._where}: {told} (misfits skip_boxes or skip_orders leaves them out)")
            self._say(f"{self._where}: left out {self.misfits.removeprefix('skip_')} of {told}")
        broken = {order for _, order, _ in read.faults} if self.misfits == "skip_orders" else set()
        kept = [i for i, order in enumerate(read.orders) if order not in broken]
        if not kept:
            raise ValueError(f"{self._where}: the list has no order of boxes")
        names = [read.orders[i] for i in kept]
        is_limited = [np.isfinite(load) for load in read.max_loads]
        is_upright = [np.any(~up, axis=1) for up in read.up]
        limits = {"fragile": read.fragile, "bottom only": read.bottom_only}
        limits |= {"of limited load": is_limited, _UPRIGHT: is_upright}
        for word, each in limits.items():
            self._limits[word] = sum(int(each[i].sum()) for i in kept)
        sizes = [_checked(read.sizes[i], f"{self._where}: order {name}") for i, name in zip(kept, names, strict=True)]
        return names, sizes, [_plain_labels(read.labels[i]) for i in kept], read.unit

    def build(self, bin_: Bin, orientations: str | float, num_items: int, num_envs: int) -> Built:
        played = self.played(bin_, orientations)
        sizes, number = played.sizes, np.bincount(np.concatenate(played.rows))
        self._say(check_rounding(self._where, sizes, number, self.unit, bin_))
        self._say_limits(upright=orientations in ("fixed", "yaw"))
        volume = cell_volume(sizes, bin_) if self.unit == "cells" else (sizes * UNITS[self.unit]).prod(-1)
        catalogue = box_catalogue(whole_cells(sizes, self.unit, bin_), volume, bin_, orientations)
        rows = [each[:num_items] for each in played.rows]
        return catalogue, PooledSequences(pad_sequences(rows), self.in_order, num_envs)

    def played(self, bin_: Bin, orientations: str | float) -> PlayedBoxes:
        """Return the boxes of the file that are packed into a bin.

        End marks and the boxes left out as misfits are not among them.

        ValueError where a box does not fit, see `misfits`, or all are left out, or cells are not whole numbers.
        """
        if (bin_, orientations) not in self._played:
            self._played = {(bin_, orientations): self._find_played(bin_, orientations)}
        return self._played[bin_, orientations]

    def _find_played(self, bin_: Bin, orientations: str | float) -> PlayedBoxes:
        # The bin in the unit of the file.
        whole = np.array(bin_.size) / bin_.per_unit(self.unit)
        episodes = []
        for episode in self.episodes:
            # Boxes as large as the bin behind the last smaller box mark the end of the episode.
            smaller = ~np.isclose(episode, whole, rtol=1e-6, atol=0).all(1)
            episodes.append(episode[: int(np.nonzero(smaller)[0][-1]) + 1] if smaller.any() else episode)
        sizes, row = np.unique(np.concatenate(episodes), axis=0, return_inverse=True)
        rows = np.split(row.reshape(-1), np.cumsum([len(each) for each in episodes])[:-1])
        if self.unit == "cells" and (sizes % 1 != 0).any():
            first = next(i for i, each in enumerate(episodes) if (each % 1 != 0).any())
            at = int(np.flatnonzero((episodes[first] % 1 != 0).any(1))[0])
            came = f"{_shown(episodes[first][at])} in episode {first}, box {at}"
            raise ValueError(f"{self._where}: sizes in cells must be whole numbers, not {came}")
        inside = fits(whole_cells(sizes, self.unit, bin_), bin_, orientations)
        places = [np.flatnonzero(inside[each]) for each in rows]
        misfits = [i for i, each in enumerate(places) if len(each) < len(rows[i])]
        if misfits:
            self._say_misfits(misfits, [np.flatnonzero(~inside[rows[i]]) for i in misfits], bin_)
        left_out = misfits if self.misfits == "skip_orders" else [i for i in misfits if not len(places[i])]
        kept = sorted(set(range(len(rows))) - set(left_out))
        if not kept:
            raise ValueError(f"{self._where}: no box fits the bin of {written(bin_.size, self.unit, bin_)}")
        used, row = np.unique(np.concatenate([rows[i][places[i]] for i in kept]), return_inverse=True)
        parts = np.split(row.reshape(-1), np.cumsum([len(places[i]) for i in kept])[:-1])
        number = sum(map(len, rows)) - sum(map(len, parts))
        left = {"boxes": number, "orders": len(left_out)}
        boxes = [each.tolist() for each in parts]
        return PlayedBoxes(kept, [places[i].tolist() for i in kept], boxes, sizes[used], left)

    def box_label(self, episode: int, place: int) -> dict[str, Any]:
        """Return the label of a box of the file in plans.

        It holds its row in the episode, the names that it has there, and its sides.
        """
        sides = [int(side) if side.is_integer() else side for side in self.episodes[episode][place].tolist()]
        return {"row": place, **(self.labels[episode][place] if self.labels else {}), "sides": sides}

    def labels_of(self, number: int, items: Sequence[int], bin_: Bin, orientations: str | float) -> Labels:
        """As in the base class: the first placed of like boxes is the first in the file."""
        played, waiting = self.played(bin_, orientations), defaultdict[int, deque[int]](deque)
        for place, row in zip(played.places[number], played.rows[number], strict=True):
            waiting[row].append(place)
        return [self.box_label(played.episodes[number], waiting[item].popleft()) for item in items]

    def masses(self, number: int, items: Sequence[int], bin_: Bin, orientations: str | float) -> Masses:
        """As in the base class.

        Boxes without a weight get the mean density of those boxes of the file that have one.
        """
        density = self._density
        if density is None:
            return None
        labels = self.labels_of(number, items, bin_, orientations)
        return tuple(label.get(_WEIGHT) or density * math.prod(label["sides"]) for label in labels)

    @cached_property
    def _density(self) -> float | None:
        """Mean kilograms in a cube of the file's unit.

        Over the boxes whose weight is known. None if there are none.
        """
        weight = volume = 0.0
        for labels, sizes in zip(self.labels, self.episodes, strict=False):
            for label, size in zip(labels, sizes, strict=True):
                if label.get(_WEIGHT):
                    weight, volume = weight + label[_WEIGHT], volume + float(size.prod())
        return weight / volume if volume else None

    def _say_misfits(self, episodes: list[int], places: list[np.ndarray], bin_: Bin) -> None:
        """Report misfits as an error or as a warning.

        `places` are their places in each of `episodes`.
        """
        first, at = episodes[0], int(places[0][0])
        box = self.episodes[first][at]
        kind, label = ("order", self.labels[first][at]) if self.labels else ("episode", {})
        name = f"line {label['line']}" if "line" in label else f"box {label.get('place', at)}"
        told = f"{kind} {self.names[first]}, {name}: {_shown(box)} {self.unit}"
        if self.unit != "cells":
            told += f" ({_shown(whole_cells(box, self.unit, bin_))} cells)"
        room = written(bin_.size, self.unit, bin_)
        number = sum(len(each) for each in places)
        such = "such box" if number == 1 else "such boxes"
        count = f"{number:,} {such} in {len(episodes):,} of {len(self.episodes):,} {kind}s"
        if self.misfits == "refuse":
            raise ValueError(
                f"{self._where}: boxes do not fit the bin of {room} in any orientation: {told}, the first of"
                f" {count} (unit says what sizes are in; misfits skip_boxes or skip_orders leaves them out)"
            )
        what = "boxes" if self.misfits == "skip_boxes" else "orders"
        self._say(f"{self._where}: left out the {what} that do not fit the bin of {room}: {told}, the first of {count}")

    def _say_limits(self, upright: bool) -> None:
        found = [f"{n:,} {word}" for word, n in self._limits.items() if n and not (upright and word == _UPRIGHT)]
        if found:
            self._say(f"{self._where}: boxes {', '.join(found)}: torchrl-gpu pack heeds that, environments do not")

    def _say(self, warning: str) -> None:
        if warning and warning not in self._said:
            self._said.add(warning)
            _LOG.warning(warning)

    @property
    def _where(self) -> str:
        return f"BoxSequences: {self.path}"


def _plain_labels(labels: Sequence[Label]) -> Labels:
    return [dict(label) for label in labels]


class PlayedBoxes(NamedTuple):
    """The boxes of a file that are packed into a bin.

    Attributes:
        episodes: Number of each episode in the file.
        places: Place of each box of an episode in the file's episode.
        rows: Row in `sizes` of each box of an episode.
        sizes: Different sizes, shape (M, 3), in the unit of the file.
        left_out: Numbers of "boxes" and of whole "orders" that are left out because they do not fit.
    """

    episodes: list[int]
    places: list[list[int]]
    rows: list[list[int]]
    sizes: np.ndarray
    left_out: dict[str, int]


def _shown(size: np.ndarray) -> str:
    return " × ".join(f"{side:g}" for side in size)


def _read(path: Path, unit: str) -> tuple[list[str], list[np.ndarray], list[Labels], str]:
    """Read names, sizes, labels of boxes, and the unit of a file.

    Sizes are (items, 3) float64 for every episode. Only orders have labels.
    """
    where = f"BoxSequences: {path}"
    if not path.is_file():
        raise FileNotFoundError(f"{where}: there is no such file of box sequences")
    raw = _load(path, where)
    labels: list[Labels] = []
    if isinstance(raw, dict):
        orders = [_order(order, f"{where}: order {name}") for name, order in raw.items()]
        names = list(raw)
        sizes = [each[0] for each in orders]
        labels = [each[1] for each in orders]
        unit = "mm"
    else:
        sizes = _episodes(raw, where)
        names = [str(i) for i in range(len(sizes))]
    if not sizes:
        raise ValueError(f"{where}: the file has no episode")
    kind = "order" if labels else "episode"
    return names, [_checked(s, f"{where}: {kind} {n}") for n, s in zip(names, sizes, strict=True)], labels, unit


def _load(path: Path, where: str) -> object:
    suffix = path.suffix.lower()
    if suffix not in _READERS:
        known = f"{', '.join([*_READERS, *SUFFIXES[:-1]])} or {SUFFIXES[-1]}"
        raise ValueError(f"{where}: the suffix must be {known}, not {suffix!r}")
    try:
        with path.open("rb") as file, warnings.catch_warnings():
            # Warnings about oddities of a file that is refused anyway would be noise.
            warnings.simplefilter("ignore")
            check_size(path)
            return _READERS[suffix](file)
    except Exception as error:
        # A broken or foreign file can make a reader raise anything.
        reason = re.split(r"\.\s|\n", str(error).strip())[0][:100] or type(error).__name__
        raise ValueError(
            f"{where}: the file must hold numbers only, no pickled objects; reading it fails with: {reason}"
        ) from error


def _read_tensor(file: BinaryIO) -> object:
    try:
        loaded = torch.load(file, weights_only=True, map_location="cpu")
    except pickle.UnpicklingError as error:
        raise ValueError(describe_refusal(error)) from error
    if isinstance(loaded, (list, tuple)):
        return list(loaded)
    if not isinstance(loaded, torch.Tensor):
        raise TypeError(f"a {type(loaded).__name__} in place of a tensor or of lists")
    # Strides of 0 make a large tensor of a small storage.
    if loaded.numel() > MOST_NUMBERS:
        raise ValueError(f"{loaded.numel():,} numbers, more than {MOST_NUMBERS:,}")
    return loaded.detach().numpy()


def _read_npz(file: BinaryIO) -> np.ndarray:
    with zipfile.ZipFile(file) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist()]
        if "sequences" in names:
            name = "sequences"
        elif len(names) == 1:
            name = names[0]
        else:
            raise ValueError(f'neither one array nor one named "sequences" but {names}')
        with archive.open(f"{name}.npy") as inner:
            return _read_npy(inner)


def _read_npy(file: IO[bytes]) -> np.ndarray:
    file.seek(0)
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"version {version} of the format")
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = header(file)
    # Checked before any memory is allocated for it.
    if math.prod(shape) > MOST_NUMBERS or dtype.itemsize > 16:
        raise ValueError(f"{dtype} {shape}, more than {MOST_NUMBERS:,} numbers")
    file.seek(0)
    return np.lib.format.read_array(file, allow_pickle=False)


_READERS: dict[str, Callable[[BinaryIO], object]] = {
    ".npy": _read_npy,
    ".npz": _read_npz,
    ".pt": _read_tensor,
    ".pth": _read_tensor,
    ".json": json.load,
}


def _order(order: Any, where: str) -> tuple[np.ndarray, Labels]:
    """Return sizes (items, 3) of an order, and the labels of its boxes.

    A label holds the place of a box and its `NAMES` there.
    """
    try:
        items = order["item_sequence"]
        places = [{"place": place} for place in items] if isinstance(items, dict) else [{} for _ in items]
        items = list(items.values()) if isinstance(items, dict) else items
        sizes = [[item["length/mm"], item["width/mm"], item["height/mm"]] for item in items]
        labels = [place | _names(item) | _weight(item) for place, item in zip(places, items, strict=True)]
        return np.array(sizes, dtype=np.float64).reshape(len(sizes), 3), labels
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(
            f'{where}: an order must have "item_sequence" of items with "length/mm", "width/mm" and "height/mm";'
            f" reading it fails with {type(error).__name__}: {str(error)[:120]}"
        ) from error


def _names(item: Mapping[str, object]) -> dict[str, str | int]:
    given = ((name, item.get(name)) for name in NAMES)
    return {name: value for name, value in given if isinstance(value, (str, int))}


def _weight(item: Mapping[str, object]) -> dict[str, float]:
    given = item.get(_WEIGHT)
    return {_WEIGHT: given} if isinstance(given, (int, float)) and 0 < given <= _MOST_KG else {}


def _episodes(raw: object, where: str) -> list[np.ndarray]:
    if isinstance(raw, np.ndarray):
        if raw.ndim != 3 or raw.shape[-1] != 3 or raw.dtype.kind not in "iuf":
            raise ValueError(
                f"{where}: the array must be numbers of shape (episodes, items, 3), not {raw.dtype} {raw.shape}"
            )
        return [episode.astype(np.float64) for episode in raw]
    if not isinstance(raw, list):
        raise ValueError(f"{where}: the file must hold a list of episodes, not {type(raw).__name__}")
    if len(raw) > MOST_NUMBERS // 3:
        raise ValueError(f"{where}: {len(raw):,} episodes are more than the limit of {MOST_NUMBERS // 3:,}")
    return [_listed(episode, f"{where}: episode {i}") for i, episode in enumerate(raw)]


def _listed(episode: Any, where: str) -> np.ndarray:
    wanted = f"{where}: every item must be three numbers"
    if isinstance(episode, (torch.Tensor, np.ndarray)):
        episode = episode.tolist()
    try:
        sizes = np.array(episode, dtype=np.float64)
    except OverflowError as error:
        raise ValueError(f"{wanted}, and one is too large for a float") from error
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{wanted}; the list is ragged or has other values") from error
    if len(sizes.shape) == 1 and not sizes.size:
        return sizes.reshape(0, 3)
    if sizes.ndim != 2 or sizes.shape[1] != 3:
        raise ValueError(f"{wanted}, not an array of shape {sizes.shape}")
    if not all(type(side) in (int, float) for side in itertools.chain.from_iterable(episode)):
        raise ValueError(f"{wanted}; the list has other values")
    return sizes


def _checked(sizes: np.ndarray, where: str) -> np.ndarray:
    for broken, wanted in (
        (~np.isfinite(sizes), "sizes must be finite"),
        (sizes > MOST_SIZE, f"sizes must be at most {MOST_SIZE:g}"),
        (sizes < 0, "sizes must not be negative"),
    ):
        if broken.any():
            at = int(np.flatnonzero(broken.any(1))[0])
            raise ValueError(f"{where}: {wanted}; got {sizes[at].tolist()}, its box {at}")
    used = np.atleast_1d((sizes > 0).any(1))
    length = len(sizes) - int(np.argmax(used[::-1])) if used.any() else 0
    if length == 0:
        raise ValueError(f"{where}: there must be at least one box; there are {'zeros only' if len(sizes) else 'none'}")
    if (sizes[:length] == 0).any():
        at = int(np.flatnonzero((sizes[:length] == 0).any(1))[0])
        came = f"{sizes[at].tolist()}, its box {at}, before it"
        raise ValueError(f"{where}: zeros may only pad the end of an episode; got {came}")
    return sizes[:length]
