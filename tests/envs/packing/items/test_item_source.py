"""Words, paths and sources."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from torchrl_gpu.envs.packing.items import (
    BoxSequences,
    CutBoxes,
    OrderBoxes,
    ProceduralSolids,
    RandomBoxes,
    item_source,
)


@pytest.mark.parametrize(
    ("word", "source"),
    [("random", RandomBoxes), ("cut", CutBoxes), ("orders", OrderBoxes), ("procedural", ProceduralSolids)],
)
def test_words_name_sources(word: str, source: type) -> None:
    assert type(item_source(word)) is source


def test_a_source_is_itself() -> None:
    source = RandomBoxes()
    assert item_source(source) is source


def test_anything_else_is_a_path(tmp_path: Path) -> None:
    np.save(tmp_path / "boxes.npy", np.ones((1, 1, 3), dtype=int))
    assert isinstance(item_source(str(tmp_path / "boxes.npy")), BoxSequences)
    with pytest.raises(FileNotFoundError, match=r"^BoxSequences: randon: want a file of box sequences; there is none$"):
        item_source("randon")


def test_other_types_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^item_source: want an ItemSource, a word or a path; got 3$"):
        item_source(3)  # type: ignore[arg-type]
