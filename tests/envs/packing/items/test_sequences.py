"""Box sequences from files, good and bad."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import BoxSequences, CutBoxes, OrderBoxes, RandomBoxes
from torchrl_gpu.envs.packing.items.alike import AlikeSequences
from torchrl_gpu.envs.packing.types import Bin

Write = Callable[[Path], object]
TEN = Bin((10.0, 10.0, 10.0), (10, 10))

SUFFIXES = ".npy, .npz, .pt, .pth, .json, .csv, .tsv, .txt, .xlsx, .xlsm, .xls, .ods, .parquet, .jsonl or .ndjson"
TWO_EPISODES = np.array([[[2, 3, 4], [1, 1, 1]], [[5, 5, 5], [0, 0, 0]]])
LISTS = [[[2, 3, 4], [1, 1, 1]], [[5, 5, 5]]]


def saved(path: Path, write: Write) -> str:
    write(path)
    return str(path)


def text(value: object) -> Write:
    return lambda path: path.write_text(value if isinstance(value, str) else json.dumps(value))


def raw(data: bytes) -> Write:
    return lambda path: path.write_bytes(data)


def truncated(write: Write) -> Write:

    def half(path: Path) -> None:
        write(path)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    return half


def array(value: object) -> Write:
    return lambda path: np.save(path, np.asarray(value))


def tensor_file(value: object) -> Write:
    return lambda path: torch.save(value, path)


GOOD: dict[str, tuple[str, Write]] = {
    "npy": ("a.npy", array(TWO_EPISODES)),
    "npy of floats": ("a.npy", array(TWO_EPISODES.astype(np.float32))),
    "npz": ("a.npz", lambda path: np.savez(path, whatever=TWO_EPISODES)),
    "npz by name": ("a.npz", lambda path: np.savez(path, other=np.zeros(3), sequences=TWO_EPISODES)),
    "pt": ("a.pt", tensor_file(torch.from_numpy(TWO_EPISODES))),
    "pt of lists": ("a.pt", tensor_file(LISTS)),
    "pt of tuples": ("a.pt", tensor_file([[(2, 3, 4), (1, 1, 1.0)], [(5, 5, 5)]])),
    "nested lists": ("a.json", text(LISTS)),
    "padded lists": ("a.JSON", text(TWO_EPISODES.tolist())),
}


@pytest.mark.parametrize("kind", GOOD)
def test_every_format_holds_the_same(kind: str, tmp_path: Path) -> None:
    name, write = GOOD[kind]
    source = BoxSequences(saved(tmp_path / name, write))
    assert [episode.tolist() for episode in source.episodes] == LISTS
    assert source.names == ["0", "1"]


def test_the_pool_of_a_file(tmp_path: Path) -> None:
    source = BoxSequences(saved(tmp_path / "a.npy", array(TWO_EPISODES)))
    catalogue, stream = source.build(TEN, "fixed", 100, 1)
    # Rows are the sizes in ascending order: 1×1×1, 2×3×4, 5×5×5.
    assert catalogue.extent[:, 0].tolist() == [[1, 1], [2, 3], [5, 5]]
    assert catalogue.height[:, 0].tolist() == [1, 4, 5]
    assert catalogue.volume.tolist() == [1, 24, 125]
    items = stream.items(torch.tensor([0, 1]), torch.arange(3).expand(2, -1))
    assert items.tolist() == [[1, 0, -1], [2, -1, -1]]


ORDERS = {
    "A7": {
        "item_sequence": {
            "1": {"article": "x", "length/mm": 395, "width/mm": 200, "height/mm": 101, "weight/kg": 6.3},
            "2": {"length/mm": 100, "width/mm": 100, "height/mm": 100},
        },
        "properties": {},
    },
    "B2": {"item_sequence": [{"length/mm": 300, "width/mm": 200.5, "height/mm": 100}]},
}


def test_orders_in_millimetres(tmp_path: Path) -> None:
    source = BoxSequences(saved(tmp_path / "orders.json", text(ORDERS)), unit="cells")
    assert source.names == ["A7", "B2"]
    assert source.unit == "mm"  # whatever was asked for: the keys say so
    bin_ = Bin((1.2, 0.8, 1.5), (24, 16))  # cells of 50 mm
    catalogue, _ = source.build(bin_, "yaw", 10, 1)
    # In ascending order: 100×100×100 → 2×2×2 cells, 300×200.5×100 → 6×5×2, 395×200×101 → 8×4×3, rounded up.
    assert catalogue.extent[:, 0].tolist() == [[2, 2], [6, 5], [8, 4]]
    assert catalogue.extent[:, 1].tolist() == [[2, 2], [5, 6], [4, 8]]
    assert catalogue.height[:, 0].tolist() == pytest.approx([0.10, 0.10, 0.15])
    # volumes are the true ones
    assert catalogue.volume.tolist() == pytest.approx([0.001, 0.3 * 0.2005 * 0.1, 0.395 * 0.2 * 0.101])


@pytest.mark.parametrize(("unit", "factor"), [("m", 1.0), ("mm", 1000.0)])
def test_units_in_metres_and_millimetres(unit: str, factor: float, tmp_path: Path) -> None:
    sizes = np.array([[[0.1, 0.2, 0.3], [0.11, 0.2, 0.05]]]) * factor
    source = BoxSequences(saved(tmp_path / "a.npy", array(sizes)), unit=unit)
    catalogue, _ = source.build(Bin((1.0, 1.0, 1.0), (10, 10)), "fixed", 10, 1)
    assert catalogue.extent[:, 0].tolist() == [[1, 2], [2, 2]]  # 0.1 m is one cell, 0.11 m two
    assert catalogue.height[:, 0].tolist() == pytest.approx([0.3, 0.1])
    assert catalogue.volume.tolist() == pytest.approx([0.006, 0.0011])


def test_an_environment_plays_the_file_in_order(tmp_path: Path) -> None:
    sizes = np.array([[[side, side, side]] for side in (1, 2, 3, 4)])
    source = BoxSequences(saved(tmp_path / "a.npy", array(sizes)), in_order=True)
    env = PackingEnv(2, items=source, orientations="fixed", device="cpu", seed=0)
    shown = [env.catalogue.height[env.reset()["item_id"], 0].flatten().tolist() for _ in range(3)]
    assert shown == [[1, 2], [3, 4], [1, 2]]


# Zhao et al. (AAAI 2021) publish such files: lists of episodes, each of which a box like the bin ends.
PUBLISHED = [[[2, 3, 4], [5, 5, 5], [10, 10, 10]], [[4, 4, 4], [10, 10, 10], [10, 10, 10]], [[3, 2, 2]]]


def test_a_box_like_the_bin_marks_the_end_of_an_episode(tmp_path: Path) -> None:
    path = saved(tmp_path / "cut_2.pt", tensor_file(PUBLISHED))
    catalogue, stream = BoxSequences(path).build(TEN, "fixed", 100, 1)
    # In ascending order: 2×3×4, 3×2×2, 4×4×4, 5×5×5; none is 10×10×10.
    assert catalogue.height[:, 0].tolist() == [4, 2, 4, 5]
    assert stream.items(torch.arange(3), torch.arange(2).expand(3, -1)).tolist() == [[0, 3], [2, -1], [1, -1]]
    in_metres = BoxSequences(saved(tmp_path / "m.pt", tensor_file([[[0.2, 0.2, 0.2], [0.4, 0.6, 0.5]]])), unit="m")
    assert in_metres.build(Bin((0.4, 0.6, 0.5), (4, 6)), "fixed", 100, 1)[0].num_items == 1
    # In a bin of another size, or between others, it is a box, and so it is where an episode has no other.
    assert BoxSequences(path).build(Bin((10.0, 10.0, 11.0), (10, 10)), "fixed", 100, 1)[0].num_items == 5
    between = saved(tmp_path / "b.pt", tensor_file([[[10] * 3, [1] * 3], [[10] * 3]]))
    catalogue, stream = BoxSequences(between).build(TEN, "fixed", 100, 1)
    assert stream.items(torch.arange(2), torch.arange(2).expand(2, -1)).tolist() == [[1, 0], [1, -1]]


# -- bad files --------------------------------------------------------------------------------------------------------


class Bomb:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.mark,)


def bombs(mark: Path) -> dict[str, Write]:
    objects = np.array([[[Bomb(mark)] * 3]], dtype=object)

    def without_objects(value: object) -> bytes:
        return pickle.dumps(value, protocol=2)

    return {
        "object.npy": lambda path: np.save(path, objects, allow_pickle=True),
        "raw.npy": raw(without_objects(Bomb(mark))),
        "object.npz": lambda path: np.savez(path, sequences=objects),
        "raw.npz": raw(without_objects(Bomb(mark))),
        "object.pt": tensor_file(Bomb(mark)),
        "inside.pt": tensor_file({"sequences": [Bomb(mark)]}),
        "raw.pt": raw(without_objects(Bomb(mark))),
        "new.pth": raw(pickle.dumps(Bomb(mark))),
        "raw.json": raw(without_objects(Bomb(mark))),
    }


@pytest.mark.parametrize("name", bombs(Path("mark")))
def test_code_in_a_file_does_not_run(name: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    path = saved(tmp_path / name, bombs(mark)[name])
    assert_refused(path, READABLE)
    assert not mark.exists()


def test_the_bomb_would_go_off(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Bomb(tmp_path / "mark")))
    assert (tmp_path / "mark").exists()


def assert_refused(path: str, message: str) -> None:
    with pytest.raises(ValueError) as error:
        BoxSequences(path)
    line = str(error.value)
    assert line.startswith(f"BoxSequences: {path}: ")
    assert message in line
    assert "\n" not in line
    assert line.isprintable()
    assert len(line) - len(path) < 200


def side(**sizes: object) -> dict[str, object]:
    return {"A": {"item_sequence": {"1": {f"{name}/mm": value for name, value in sizes.items()}}}}


NUMBERS = "(episodes, items, 3), not "
THREE = "every item must be three numbers"
ORDER = 'order A: an order must have "item_sequence" of items with "length/mm", "width/mm" and "height/mm";'
READABLE = "no pickled objects; reading it fails with: "
BAD: dict[str, tuple[str, Write, str]] = {
    "wrong rank": ("a.npy", array(np.ones((4, 3))), NUMBERS + "float64 (4, 3)"),
    "four sides": ("a.npy", array(np.ones((1, 2, 4))), NUMBERS + "float64 (1, 2, 4)"),
    "words": ("a.npy", array([[["a", "b", "c"]]]), NUMBERS + "<U1 (1, 1, 3)"),
    "booleans": ("a.pt", tensor_file(torch.ones(1, 1, 3, dtype=torch.bool)), NUMBERS + "bool"),
    "negative": ("a.npy", array([[[1, 2, 3], [1, -2, 3]]]), "episode 0: sizes must not be negative"),
    "NaN": ("a.npy", array([[[1, 2, np.nan]]]), "episode 0: sizes must be finite"),
    "infinite": ("a.json", text("[[[1, 2, Infinity]]]"), "episode 0: sizes must be finite"),
    "no episode": ("a.npy", array(np.ones((0, 2, 3))), "no episode"),
    "no box": ("a.npy", array(np.ones((1, 0, 3))), "episode 0: there must be at least one box; there are none"),
    "only padding": (
        "a.npy",
        array(np.zeros((1, 4, 3))),
        "episode 0: there must be at least one box; there are zeros only",
    ),
    "padding first": ("a.npy", array([[[0, 0, 0], [1, 1, 1]]]), "zeros may only pad the end of"),
    "a zero side": ("a.npy", array([[[1, 0, 1], [1, 1, 1]]]), "zeros may only pad the end of"),
    "truncated npy": ("a.npy", raw(b"\x93NUMPY\x01\x00"), READABLE),
    "broken zip": ("a.npz", raw(b"PK\x03\x04junk"), READABLE + "File is not a zip file"),
    "two arrays": (
        "a.npz",
        lambda path: np.savez(path, a=TWO_EPISODES, b=TWO_EPISODES),
        READABLE + "neither one array nor",
    ),
    "empty pt": ("a.pt", raw(b""), READABLE),
    "a dict": ("a.pt", tensor_file({"a": torch.ones(1, 1, 3)}), READABLE),
    "bfloat16": ("a.pt", tensor_file(torch.ones(1, 1, 3, dtype=torch.bfloat16)), READABLE),
    "sparse": ("a.pt", tensor_file(torch.ones(1, 1, 3).to_sparse()), READABLE),
    "huge shape": (
        "a.npy",
        raw(
            b"\x93NUMPY\x01\x00v\x00"
            + b"{'descr': '<f8', 'fortran_order': False, 'shape': (9999999999, 9, 3)}".ljust(118)
        ),
        READABLE + "float64 (9999999999, 9, 3), more than",
    ),
    "tensor of no storage": (
        "a.pt",
        tensor_file(torch.ones(1).expand(10**6, 10**6, 3)),
        READABLE + "3,000,000,000,000 numbers, more than",
    ),
    "booleans in pt": ("a.pt", tensor_file([[[True, 1, 1]]]), "episode 0: " + THREE + "; the list has other values"),
    "no box in pt": (
        "a.pt",
        tensor_file([[], [[1, 1, 1]]]),
        "episode 0: there must be at least one box; there are none",
    ),
    "truncated pt": ("a.pt", truncated(tensor_file(LISTS)), READABLE),
    "truncated npz": ("a.npz", truncated(lambda path: np.savez(path, TWO_EPISODES)), READABLE),
    "truncated array": ("a.npy", truncated(array(TWO_EPISODES)), READABLE),
    "a number beyond floats": ("a.json", text(f"[[[1, 2, 1{'0' * 400}]]]"), "one is too large for a float"),
    "a number of too many digits": ("a.json", text(f"[[[1, 2, 1{'0' * 5000}]]]"), READABLE),
    "a number beyond floats in an order": (
        "a.json",
        text('{"A": {"item_sequence": [{"length/mm": 1' + "0" * 400 + ', "width/mm": 1, "height/mm": 1}]}}'),
        ORDER,
    ),
    "too large a size": ("a.json", text([[[1, 2, 1e200]]]), "episode 0: sizes must be at most 1e+09"),
    "lists without end": ("a.json", text("[" * 100_000), READABLE),
    "not UTF-8": ("a.json", raw(b"[[[1, 1, \xff]]]"), READABLE),
    "a number": ("a.json", text(3), "list of episodes, not int"),
    "ragged items": (
        "a.json",
        text([[[1, 2, 3], [1, 2]]]),
        "episode 0: " + THREE + "; the list is ragged or has other values",
    ),
    "pairs": ("a.json", text([[[1, 2, 3]], [[1, 2]]]), "episode 1: " + THREE + ", not an array of shape (1, 2)"),
    "word in list": ("a.json", text([[[1, 2, "tall"]]]), "episode 0: " + THREE),
    "no list": ("a.json", text([]), "no episode"),
    "no orders": ("a.json", text({}), "no episode"),
    "empty order": (
        "a.json",
        text({"A": {"item_sequence": {}}}),
        "order A: there must be at least one box; there are none",
    ),
    "order without items": ("a.json", text({"A": {}}), ORDER + " reading it fails with KeyError: 'item_sequence'"),
    "order of a list": ("a.json", text({"A": [1]}), ORDER),
    "order without height": (
        "a.json",
        text(side(length=1, width=2)),
        ORDER + " reading it fails with KeyError: 'height/mm'",
    ),
    "word in order": ("a.json", text(side(length=1, width=2, height="x")), ORDER),
    "negative in order": ("a.json", text(side(length=1, width=2, height=-3)), "order A: sizes must not be negative"),
    "null in order": ("a.json", text(side(length=1, width=2, height=None)), "order A: sizes must be finite; got"),
    "unknown suffix": ("a.doc", raw(b"1,2,3"), f"{SUFFIXES}, not '.doc'"),
    "no suffix": ("boxes", raw(b"1,2,3"), f"{SUFFIXES}, not ''"),
}


def test_bad_files_are_refused_in_one_line(tmp_path: Path) -> None:
    for kind, (name, write, message) in BAD.items():
        (folder := tmp_path / kind).mkdir()
        assert_refused(saved(folder / name, write), message)


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.mkdir()], ids=["missing", "a folder"])
def test_a_missing_file_is_named(make: Write, tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npy", make)
    with pytest.raises(FileNotFoundError) as error:
        BoxSequences(path)
    assert str(error.value).startswith(f"BoxSequences: {path}: ")


def test_a_file_that_would_unpack_to_more_than_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path / "a.npz", lambda path: np.savez_compressed(path, np.ones((100, 100, 3))))
    monkeypatch.setattr("torchrl_gpu.lists.files.MOST_BYTES", 10_000)
    assert_refused(path, "240,128 bytes, more than 10,000")


def test_cells_are_whole(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npy", array([[[1, 2.5, 3]]]))
    with pytest.raises(ValueError) as error:
        BoxSequences(path).build(TEN, "fixed", 10, 1)
    assert str(error.value).startswith(f"BoxSequences: {path}: sizes in cells ")
    assert str(error.value).endswith("1 × 2.5 × 3 in episode 0, box 0")


def test_boxes_too_large_for_the_bin_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npy", array([[[1, 2, 11]]]))
    with pytest.raises(ValueError) as error:
        PackingEnv(1, items=path, device="cpu")
    line = str(error.value)
    assert line.startswith(f"BoxSequences: {path}: ")
    assert "10 × 10 × 10 cells" in line
    assert "episode 0, box 0: 1 × 2 × 11 cells, the first of 1 such box in 1 of 1 episodes" in line
    assert "skip_boxes or skip_orders" in line


PALLET = Bin((1.2, 0.8, 1.5), (120, 80))  # cells of 10 mm


def orders(*sizes: list[tuple[float, float, float]]) -> dict[str, Any]:
    """Orders A, B, … of boxes, millimetres, the places of which are counted from 1 and the articles named by size."""
    sides = ("length/mm", "width/mm", "height/mm")
    return {
        chr(ord("A") + i): {
            "item_sequence": {
                str(n + 1): dict(zip(sides, box, strict=True)) | {"article": f"art-{box[0]}"}
                for n, box in enumerate(boxes)
            }
        }
        for i, boxes in enumerate(sizes)
    }


MIXED = orders(
    [(300, 200, 100), (200, 200, 100)],
    [(100, 100, 100), (1300, 200, 100), (200, 100, 100)],
    [(2000, 2000, 2000)],
    [(300, 200, 100)],
)


def test_a_box_that_does_not_fit_is_named_as_the_file_has_it(tmp_path: Path) -> None:
    path = saved(tmp_path / "orders.json", text(MIXED))
    with pytest.raises(ValueError) as error:
        BoxSequences(path).build(PALLET, "yaw", 100, 1)
    line = str(error.value)
    assert line.startswith(f"BoxSequences: {path}: ")
    assert "1200 × 800 × 1500 mm" in line
    assert (
        "order B, box 2: 1300 × 200 × 100 mm (130 × 20 × 10 cells), the first of 2 such boxes in 2 of 4 order" in line
    )
    assert "\n" not in line


@pytest.mark.parametrize(
    ("misfits", "episodes", "places", "left_out"),
    [
        ("skip_boxes", [0, 1, 3], [[0, 1], [0, 2], [0]], {"boxes": 2, "orders": 1}),  # C has no other box
        ("skip_orders", [0, 3], [[0, 1], [0]], {"boxes": 4, "orders": 2}),
    ],
)
def test_what_does_not_fit_is_left_out_and_counted(
    misfits: str,
    episodes: list[int],
    places: list[list[int]],
    left_out: dict[str, int],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = BoxSequences(saved(tmp_path / "orders.json", text(MIXED)), in_order=True, misfits=misfits)
    env = PackingEnv(1, bin_size=PALLET.size, resolution=PALLET.cells, items=source, device="cpu")
    played = source.played(env.bin, "yaw")
    assert (played.episodes, played.places, played.left_out) == (episodes, places, left_out)
    assert env.item_sequences.num_keys == len(episodes)
    assert env.catalogue.num_items == len(played.sizes)
    (said,) = caplog.messages  # once, though it is looked at twice
    assert "order B, box 2: 1300 × 200 × 100 mm (130 × 20 × 10 cells), the first of 2 such boxes in 2 of 4" in said


def test_a_file_of_which_nothing_fits(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.json", text([[[11, 1, 1], [1, 1, 1]], [[12, 1, 1]]]))
    with pytest.raises(ValueError, match=r"BoxSequences.*10 × 10 × 10 cells"):
        BoxSequences(path, misfits="skip_orders").build(TEN, "fixed", 10, 1)


MM = [[[200, 300, 400], [100, 100, 100]]]


@pytest.mark.parametrize("unit", ["mm", "cm", "m"])
def test_boxes_far_smaller_than_cells_are_refused_with_numbers(unit: str, tmp_path: Path) -> None:
    factor = {"mm": 1, "cm": 10, "m": 1000}[unit]
    path = saved(tmp_path / "a.json", text((np.array(MM) / factor).tolist()))
    with pytest.raises(ValueError) as error:  # 0.024 + 0.001 m³ become two metre cubes
        PackingEnv(1, items=BoxSequences(path, unit), device="cpu")
    line = str(error.value)
    assert line.startswith(f"BoxSequences: {path}: ")
    assert "resolution" in line
    side, cell = f"{100 / factor:g}", f"{1000 / factor:g}"
    wanted = f"{side} × {side} × {side} {unit} in cells of {cell} × {cell} × {cell} {unit}, which rounded up to whole"
    assert f"{wanted} cells take 80 times their volume" in line


def test_rounding_by_more_than_a_tenth_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = BoxSequences(saved(tmp_path / "a.json", text([[[395, 200, 110]]])), "mm")
    for resolution, expected in (((120, 80), 0), ((24, 16), 1), ((24, 16), 1)):  # 1.28%, and 38% twice
        source.build(Bin((1.2, 0.8, 1.5), resolution), "yaw", 10, 1)
        assert len(caplog.messages) == expected
    assert "395 × 200 × 110 mm in cells of 50 × 50 × 50 mm" in caplog.messages[0]
    assert "take 1.38 times their volume" in caplog.messages[0]


def test_orders_drawn_at_random_are_no_smaller_than_cells_either() -> None:
    with pytest.raises(ValueError, match=r"OrderBoxes: .* mm in cells of 1000"):
        PackingEnv(1, items="orders", device="cpu")
    with pytest.raises(ValueError, match=r"OrderBoxes: .*mm.* 1200 × 800 × 1500 mm"):
        OrderBoxes(length=(1500, 2000)).build(PALLET, "yaw", 10, 1)


# -- the catalogue of another source ---------------------------------------------------------------------------------


def file_of(path: Path, *episodes: list[list[float]], unit: str = "cells") -> BoxSequences:
    path.write_text(json.dumps(episodes), encoding="utf-8")
    return BoxSequences(str(path), unit, in_order=True)


@pytest.mark.parametrize("unit", ["cells", "mm"])
@pytest.mark.parametrize("source", [RandomBoxes(2, 5), CutBoxes(2, 5, "stack", pool=None)])
def test_boxes_get_the_numbers_of_the_other_source(tmp_path: Path, source: RandomBoxes | CutBoxes, unit: str) -> None:
    scale = 1000 if unit == "mm" else 1  # a cell of this bin is a metre
    episodes = [[[5, 2, 3], [2, 2, 2]], [[2, 5, 3], [5, 2, 3], [5, 5, 5], [10, 10, 10]]]
    file = file_of(tmp_path / "some.json", *[[[scale * s for s in box] for box in e] for e in episodes], unit=unit)
    alike = AlikeSequences(file, source)
    catalogue, sequences = alike.build(TEN, "yaw", 100, 2)
    expected, _ = source.build(TEN, "yaw", 100, 2)
    assert alike.foreign(TEN, "yaw") == ""
    assert alike.drawn_as is source
    assert isinstance(alike, BoxSequences)
    assert alike.names == ["0", "1"]
    assert torch.equal(catalogue.extent, expected.extent)
    rows = sequences.items(torch.arange(2), torch.arange(3).expand(2, -1))
    sides = torch.cat([expected.extent[:, 0], expected.height[:, :1].long()], 1)
    assert rows[0, 2] == -1
    assert sides[rows[0, :2]].tolist() == episodes[0]
    assert sides[rows[1]].tolist() == episodes[1][:3]


def test_a_box_that_the_source_has_not_is_named(tmp_path: Path) -> None:
    file = file_of(tmp_path / "some.json", [[2, 2, 2], [6, 2, 2]])
    alike = AlikeSequences(file, RandomBoxes(2, 5))
    assert alike.foreign(TEN, "yaw") == "6 × 2 × 2 cells"
    with pytest.raises(ValueError, match=r"6 × 2 × 2 cells.* 64 boxes of RandomBoxes"):
        alike.build(TEN, "fixed", 100, 1)
    assert file.drawn_as is file


def test_a_box_that_is_smaller_than_its_cells_is_another_one(tmp_path: Path) -> None:
    file = file_of(tmp_path / "some.json", [[1990.0, 2000.0, 2000.0]], unit="mm")
    assert AlikeSequences(file, RandomBoxes(2, 5)).foreign(TEN, "yaw") == "2 × 2 × 2 cells"
