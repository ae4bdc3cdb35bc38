"""Box sequences from files, good and bad."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import BoxSequences
from torchrl_gpu.envs.packing.types import Bin

Write = Callable[[Path], object]

TWO_EPISODES = np.array([[[2, 3, 4], [1, 1, 1]], [[5, 5, 5], [0, 0, 0]]])
LISTS = [[[2, 3, 4], [1, 1, 1]], [[5, 5, 5]]]


def saved(path: Path, write: Write) -> str:
    """The path of a file after `write` has written it."""
    write(path)
    return str(path)


def text(value: object) -> Write:
    """Writes JSON, or a string as it is."""
    return lambda path: path.write_text(value if isinstance(value, str) else json.dumps(value))


def raw(data: bytes) -> Write:
    """Writes bytes."""
    return lambda path: path.write_bytes(data)


def array(value: object) -> Write:
    """Writes a .npy file."""
    return lambda path: np.save(path, np.asarray(value))


GOOD: dict[str, tuple[str, Write]] = {
    "npy": ("a.npy", array(TWO_EPISODES)),
    "npy of floats": ("a.npy", array(TWO_EPISODES.astype(np.float32))),
    "npz": ("a.npz", lambda path: np.savez(path, whatever=TWO_EPISODES)),
    "npz by name": ("a.npz", lambda path: np.savez(path, other=np.zeros(3), sequences=TWO_EPISODES)),
    "pt": ("a.pt", lambda path: torch.save(torch.from_numpy(TWO_EPISODES), path)),
    "nested lists": ("a.json", text(LISTS)),
    "padded lists": ("a.JSON", text(TWO_EPISODES.tolist())),
}


@pytest.mark.parametrize("kind", GOOD)
def test_every_format_holds_the_same(kind: str, tmp_path: Path) -> None:
    name, write = GOOD[kind]
    source = BoxSequences(saved(tmp_path / name, write))
    assert [episode.tolist() for episode in source.episodes] == LISTS
    assert source.num_sequences == 2
    assert source.names == ["0", "1"]


def test_the_pool_of_a_file(tmp_path: Path) -> None:
    source = BoxSequences(saved(tmp_path / "a.npy", array(TWO_EPISODES)))
    catalogue, stream = source.build(Bin((10.0, 10.0, 10.0), (10, 10)), "fixed", 100, 1)
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


def test_padding_of_zeros_may_be_long(tmp_path: Path) -> None:
    sizes = np.zeros((2, 50, 3), dtype=int)
    sizes[0, :3], sizes[1, :1] = 2, 3
    source = BoxSequences(saved(tmp_path / "a.npy", array(sizes)))
    assert [len(episode) for episode in source.episodes] == [3, 1]


def test_an_environment_plays_the_file_in_order(tmp_path: Path) -> None:
    sizes = np.array([[[side, side, side]] for side in (1, 2, 3, 4)])
    source = BoxSequences(saved(tmp_path / "a.npy", array(sizes)), in_order=True)
    env = PackingEnv(2, items=source, orientations="fixed", device="cpu", seed=0)
    shown = [env.catalogue.height[env.reset()["item_id"], 0].flatten().tolist() for _ in range(3)]
    assert shown == [[1, 2], [3, 4], [1, 2]]


# -- bad files --------------------------------------------------------------------------------------------------------


class Bomb:
    """Leaves a mark if it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.mark,)


def bombs(mark: Path) -> dict[str, Write]:
    """Files by name that run code if anything in them is unpickled without care."""
    objects = np.array([[[Bomb(mark)] * 3]], dtype=object)

    def without_objects(value: object) -> bytes:
        return pickle.dumps(value, protocol=2)

    return {
        "object.npy": lambda path: np.save(path, objects, allow_pickle=True),
        "raw.npy": raw(without_objects(Bomb(mark))),
        "object.npz": lambda path: np.savez(path, sequences=objects),
        "raw.npz": raw(without_objects(Bomb(mark))),
        "object.pt": lambda path: torch.save(Bomb(mark), path),
        "inside.pt": lambda path: torch.save({"sequences": [Bomb(mark)]}, path),
        "raw.pt": raw(without_objects(Bomb(mark))),
        "new.pth": raw(pickle.dumps(Bomb(mark))),
        "raw.json": raw(without_objects(Bomb(mark))),
    }


@pytest.mark.parametrize("name", bombs(Path("mark")))
def test_code_in_a_file_does_not_run(name: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    path = saved(tmp_path / name, bombs(mark)[name])
    assert_refused(path, "want numbers only, no pickled objects; got a file that fails with: ")
    assert not mark.exists()


def test_the_bomb_would_go_off(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Bomb(tmp_path / "mark")))
    assert (tmp_path / "mark").exists()


def assert_refused(path: str, message: str) -> None:
    """One line: the file, then what is wanted and what came."""
    with pytest.raises(ValueError) as error:
        BoxSequences(path)
    line = str(error.value)
    assert line.startswith(f"BoxSequences: {path}: ")
    assert message in line
    assert "; got " in line
    assert "\n" not in line
    assert line.isprintable()
    assert len(line) - len(path) < 200


def side(**sizes: object) -> dict[str, object]:
    """An order of one item."""
    return {"A": {"item_sequence": {"1": {f"{name}/mm": value for name, value in sizes.items()}}}}


NUMBERS = "want numbers of shape (episodes, items, 3); got "
THREE = "want items of three numbers each; got "
ORDER = 'order A: want "item_sequence" of items with "length/mm", "width/mm" and "height/mm"; got '
READABLE = "want numbers only, no pickled objects; got a file that fails with: "
BAD: dict[str, tuple[str, Write, str]] = {
    "wrong rank": ("a.npy", array(np.ones((4, 3))), NUMBERS + "float64 (4, 3)"),
    "four sides": ("a.npy", array(np.ones((1, 2, 4))), NUMBERS + "float64 (1, 2, 4)"),
    "words": ("a.npy", array([[["a", "b", "c"]]]), NUMBERS + "<U1 (1, 1, 3)"),
    "booleans": ("a.pt", lambda path: torch.save(torch.ones(1, 1, 3, dtype=torch.bool), path), NUMBERS + "bool"),
    "negative": (
        "a.npy",
        array([[[1, 2, 3], [1, -2, 3]]]),
        "episode 0: sizes must not be negative; got [1.0, -2.0, 3.0]",
    ),
    "NaN": ("a.npy", array([[[1, 2, np.nan]]]), "episode 0: sizes must be finite; got [1.0, 2.0, nan]"),
    "infinite": ("a.json", text("[[[1, 2, Infinity]]]"), "episode 0: sizes must be finite; got [1.0, 2.0, inf]"),
    "NaN in JSON": ("a.json", text("[[[1, 2, NaN]]]"), "episode 0: sizes must be finite; got [1.0, 2.0, nan]"),
    "no episode": ("a.npy", array(np.ones((0, 2, 3))), "want at least one episode; got none"),
    "no box": ("a.npy", array(np.ones((1, 0, 3))), "episode 0: want at least one box; got none"),
    "only padding": ("a.npy", array(np.zeros((1, 4, 3))), "episode 0: want at least one box; got zeros only"),
    "padding first": (
        "a.npy",
        array([[[0, 0, 0], [1, 1, 1]]]),
        "zeros may only pad the end of an episode; got [0.0, 0.0,",
    ),
    "a zero side": (
        "a.npy",
        array([[[1, 0, 1], [1, 1, 1]]]),
        "zeros may only pad the end of an episode; got [1.0, 0.0,",
    ),
    "truncated npy": ("a.npy", raw(b"\x93NUMPY\x01\x00"), READABLE),
    "empty npy": ("a.npy", raw(b""), READABLE),
    "broken zip": ("a.npz", raw(b"PK\x03\x04junk"), READABLE + "File is not a zip file"),
    "two arrays": (
        "a.npz",
        lambda path: np.savez(path, a=TWO_EPISODES, b=TWO_EPISODES),
        READABLE + "neither one array nor",
    ),
    "empty pt": ("a.pt", raw(b""), READABLE),
    "a dict": ("a.pt", lambda path: torch.save({"a": torch.ones(1, 1, 3)}, path), READABLE),
    "bfloat16": ("a.pt", lambda path: torch.save(torch.ones(1, 1, 3, dtype=torch.bfloat16), path), READABLE),
    "sparse": ("a.pt", lambda path: torch.save(torch.ones(1, 1, 3).to_sparse(), path), READABLE),
    "empty JSON": ("a.json", text(""), READABLE + "Expecting value"),
    "not UTF-8": ("a.json", raw(b"[[[1, 1, \xff]]]"), READABLE),
    "a number": ("a.json", text(3), "want a list of episodes; got int"),
    "ragged items": ("a.json", text([[[1, 2, 3], [1, 2]]]), "episode 0: " + THREE + "a ragged list or other values"),
    "pairs": ("a.json", text([[[1, 2, 3]], [[1, 2]]]), "episode 1: " + THREE + "shape (1, 2)"),
    "one list": ("a.json", text([1, 2, 3]), "episode 0: " + THREE + "shape ()"),
    "word in list": ("a.json", text([[[1, 2, "tall"]]]), "episode 0: " + THREE),
    "no list": ("a.json", text([]), "want at least one episode; got none"),
    "no orders": ("a.json", text({}), "want at least one episode; got none"),
    "empty order": ("a.json", text({"A": {"item_sequence": {}}}), "episode A: want at least one box; got none"),
    "order without items": ("a.json", text({"A": {}}), ORDER + "what fails with KeyError: 'item_sequence'"),
    "order of a list": ("a.json", text({"A": [1]}), ORDER),
    "order without height": ("a.json", text(side(length=1, width=2)), ORDER + "what fails with KeyError: 'height/mm'"),
    "word in order": ("a.json", text(side(length=1, width=2, height="x")), ORDER),
    "list in order": ("a.json", text(side(length=[1, 2], width=[1, 2], height=[1, 2])), ORDER),
    "negative in order": (
        "a.json",
        text(side(length=1, width=2, height=-3)),
        "episode A: sizes must not be negative; got",
    ),
    "null in order": ("a.json", text(side(length=1, width=2, height=None)), "episode A: sizes must be finite; got"),
    "unknown suffix": ("a.csv", raw(b"1,2,3"), "want a .npy, .npz, .json or .pt file; got '.csv'"),
    "no suffix": ("boxes", raw(b"1,2,3"), "want a .npy, .npz, .json or .pt file; got 'no suffix'"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_files_are_refused_in_one_line(kind: str, tmp_path: Path) -> None:
    name, write, message = BAD[kind]
    assert_refused(saved(tmp_path / name, write), message)


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.mkdir()], ids=["missing", "a folder"])
def test_a_missing_file_is_named(make: Write, tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npy", make)
    with pytest.raises(FileNotFoundError) as error:
        BoxSequences(path)
    assert str(error.value) == f"BoxSequences: {path}: want a file of box sequences; there is none"


def test_an_unknown_unit_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^BoxSequences: unit must be one of cells, m, mm; got 'inch'$"):
        BoxSequences(saved(tmp_path / "a.npy", array(TWO_EPISODES)), unit="inch")


def test_cells_are_whole(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npy", array([[[1, 2.5, 3]]]))
    with pytest.raises(ValueError) as error:
        BoxSequences(path).build(Bin((10.0, 10.0, 10.0), (10, 10)), "fixed", 10, 1)
    assert str(error.value) == f"BoxSequences: {path}: sizes in cells must be whole numbers; got 2.5"


def test_boxes_too_large_for_the_bin_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npy", array([[[1, 2, 11]]]))
    with pytest.raises(
        ValueError, match=r"every box must fit the bin of \[10.0, 10.0, 10.0\] cells .*\[1.0, 2.0, 11.0\]"
    ):
        PackingEnv(1, items=path, device="cpu")
