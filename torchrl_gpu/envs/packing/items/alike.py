"""Box sequences from a file with the catalogue of another source."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from torchrl_gpu.envs.packing.items.sequences import BoxSequences
from torchrl_gpu.envs.packing.items.source import Built, ItemSource, Labels, Masses, PooledSequences
from torchrl_gpu.envs.packing.types import Bin, Catalogue


class AlikeSequences(BoxSequences):
    """Sequences of a file with the catalogue of a source of the same boxes.

    A protocol's published sequences are such a file.

    What was made for that source's items, such as `NextItems`, takes these. Boxes that it lacks are an error of
    `build`.
    """

    def __init__(self, file: BoxSequences, source: ItemSource) -> None:
        # The file is read only once.
        self.__dict__ |= file.__dict__
        self.source = source

    @property
    def drawn_as(self) -> ItemSource:
        return self.source

    def foreign(self, bin_: Bin, orientations: str | float) -> str:
        """Return the first box of the file that the other source lacks.

        It is written as "6 × 2 × 2 cells", and is "" if there is none.
        """
        of_file, _ = super().build(bin_, orientations, 1, 1)
        catalogue, _ = self.source.build(bin_, orientations, 1, 1)
        rows = _rows(of_file, catalogue, bin_)
        return "" if None not in rows else _boxes(of_file, bin_)[rows.index(None)]

    def masses(self, number: int, items: Sequence[int], bin_: Bin, orientations: str | float) -> Masses:
        # The items are rows of the other source.
        return None

    def labels_of(self, number: int, items: Sequence[int], bin_: Bin, orientations: str | float) -> Labels:
        return [self.label(item, bin_) for item in items]

    def build(self, bin_: Bin, orientations: str | float, num_items: int, num_envs: int) -> Built:
        of_file, sequences = super().build(bin_, orientations, num_items, num_envs)
        catalogue, _ = self.source.build(bin_, orientations, num_items, num_envs)
        rows = _rows(of_file, catalogue, bin_)
        if None in rows:
            wanted = f"the {catalogue.num_items} boxes of {type(self.source).__name__}"
            came = _boxes(of_file, bin_)[rows.index(None)]
            raise ValueError(f"BoxSequences: {self.path}: a box of {came} is not among {wanted}")
        assert isinstance(sequences, PooledSequences)
        # The last place is also number −1, which is no box.
        place = torch.tensor([*rows, -1], dtype=torch.int64, device="cpu")
        return catalogue, PooledSequences(place[sequences.sequences], sequences.in_order, sequences.stride)


def _rows(of_file: Catalogue, catalogue: Catalogue, bin_: Bin) -> list[int | None]:
    """Return the row of each box of one catalogue in another one.

    Volumes must agree, too. None if the other catalogue lacks the box.
    """
    row = {box: i for i, box in enumerate(_boxes(catalogue, bin_))}
    found = [row.get(box) for box in _boxes(of_file, bin_)]
    ours, theirs = of_file.volume.tolist(), catalogue.volume.tolist()
    same = [at is not None and math.isclose(ours[i], theirs[at], rel_tol=1e-5) for i, at in enumerate(found)]
    return [at if yes else None for at, yes in zip(found, same, strict=True)]


def _boxes(catalogue: Catalogue, bin_: Bin) -> list[str]:
    """Text of each box's length, width and height in the first orientation."""
    height = (catalogue.height[:, :1].double() / bin_.cell[0]).round().long()
    sides = torch.cat([catalogue.extent[:, 0], height], 1).tolist()
    return [" × ".join(map(str, box)) + " cells" for box in sides]
