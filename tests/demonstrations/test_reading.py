"""Every format gives the same form of demonstrations.

What is broken is refused in a line, nothing in it is run, and nothing crashes.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from tests import forks
from tests.demonstrations import drawn, refusals, row_files
from torchrl_gpu.demonstrations import read_demonstrations


def test_lerobot_without_its_videos(copy: Path) -> None:
    shutil.rmtree(copy / "videos")
    shown = read_demonstrations(copy)
    assert shown.lengths.tolist() == list(drawn.LENGTHS)
    assert shown.rows["action"].shape == (sum(drawn.LENGTHS), 2)
    tables = [pq.read_table(path) for path in sorted(copy.glob("data/*/*.parquet"))]
    actions = np.concatenate([np.stack(table.column("action").to_pylist()) for table in tables])
    assert torch.equal(shown.rows["action"], torch.from_numpy(actions.astype(np.float32)))
    assert "episode_index" not in shown.rows


def test_columns_of_lerobot_that_nobody_needs_are_not_read(copy: Path, caplog: pytest.LogCaptureFixture) -> None:
    columns = drawn.data_columns(2) | {"observation.state": [[float("nan")] * 3] * 6}
    drawn.write_data(copy, (0, 1), columns)
    with pytest.raises(ValueError, match=r"observation\.state: .*finite"):
        read_demonstrations(copy)
    found = read_demonstrations(copy, entries=["next.reward"])
    assert set(found.rows.keys()) == {"action", "next.reward"}
    assert found.lengths.tolist() == list(drawn.LENGTHS)
    assert read_demonstrations(copy, on_bad="skip").lengths.tolist() == [5, 7, 4]
    assert f"demonstrations: 1 episodes skipped: {copy}: episode 2: " in caplog.text


def test_reading_refuses_folders_without_demonstrations(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no such folder"):
        read_demonstrations(tmp_path / "nobody")
    with pytest.raises(ValueError, match=r"neither demonstrations\.json .*meta/info\.json"):
        read_demonstrations(tmp_path)


Spoil = Callable[[Path], object]


def about(**changes: Any) -> Spoil:
    """Changes what the JSON of rows says."""

    def spoil(folder: Path) -> None:
        path = folder / "demonstrations.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return spoil


def entry(name: str = "state", **changes: Any) -> Spoil:
    """Changes what it says of an entry."""

    def spoil(folder: Path) -> None:
        path = folder / "demonstrations.json"
        said = json.loads(path.read_text())
        said["entries"][name] = said["entries"].get(name, {}) | changes
        path.write_text(json.dumps(said))

    return spoil


def index(**changes: Any) -> Spoil:
    """Changes what tensordict's own index says."""

    def spoil(folder: Path) -> None:
        path = folder / "rows" / "meta.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return spoil


def bad_number(value: float) -> Spoil:
    def spoil(folder: Path) -> None:
        rows = np.memmap(folder / "rows" / "state.memmap", np.float32, "r+")
        rows[9] = value
        rows.flush()

    return spoil


class Code:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch ran-code",)


def with_pickle(place: str) -> Spoil:
    return lambda path: (path / place if place else path).write_bytes(pickle.dumps(Code()))


def devices(place: str, target: str) -> Spoil:
    def spoil(path: Path) -> None:
        (path / place).unlink()
        (path / place).symlink_to(target)

    return spoil


ROWS: dict[str, Spoil] = {
    "rows: another format": about(format="torchrl_gpu rows 2"),
    "rows: no rows": about(num_rows=0),
    "rows: more rows than memory": about(num_rows=2**60),
    "rows: a fraction of a row": about(num_rows=15.5),
    "rows: rows in words": about(num_rows="15"),
    "rows: one row more": about(num_rows=16),
    "rows: an episode too few": about(lengths=[5, 3]),
    "rows: a negative episode": about(lengths=[5, 13, -3]),
    "rows: lengths that wrap around": about(lengths=[2**63, 2**63, 15], num_episodes=3),
    "rows: flags for lengths": about(lengths=[True] * 15, num_episodes=15),
    "rows: another number of episodes": about(num_episodes=4),
    "rows: no entries": about(entries={}),
    "rows: entries in a list": about(entries=[1]),
    "rows: objects": entry(stored="object"),
    "rows: a dtype that runs": entry(dtype="load"),
    "rows: numbers of another width": entry(stored="int16"),
    "rows: a wider row": entry(shape=[5]),
    "rows: a negative width": entry(shape=[-4]),
    "rows: a row of no numbers": entry(shape=[0]),
    "rows: a row too large": entry(shape=[2**40]),
    "rows: too many axes": entry(shape=[1] * 12 + [4]),
    "rows: a shape that overflows": entry(shape=[2**32, 2**32]),
    "rows: an entry of nothing": entry("more"),
    "rows: a path for a name": entry("../../etc/passwd", stored="uint8", dtype="uint8", shape=[]),
    "rows: an index of more rows": index(shape=[16]),
    "rows: an index of other types": index(state={"dtype": "torch.float64", "shape": [15, 4], "is_nested": False}),
    "rows: an index with a nested entry": index(more={"type": "NonTensorData"}),
    "rows: an index that is a list": lambda path: (path / "rows" / "meta.json").write_text("[1]"),
    "rows: no index": lambda path: (path / "rows" / "meta.json").unlink(),
    "rows: no entry": lambda path: (path / "rows" / "state.memmap").unlink(),
    "rows: a folder for an entry": lambda path: (
        (path / "rows" / "state.memmap").unlink(),
        (path / "rows" / "state.memmap").mkdir(),
    ),
    "rows: an endless device": devices("rows/state.memmap", "/dev/zero"),
    "rows: a pickle for an entry": with_pickle("rows/state.memmap"),
    "rows: a pickle for the index": with_pickle("rows/meta.json"),
    "rows: a pickle for the JSON": with_pickle("demonstrations.json"),
    "rows: NaN": bad_number(np.nan),
    "rows: infinity": bad_number(np.inf),
    "rows: NaN in the JSON": lambda path: (path / "demonstrations.json").write_text('{"format": NaN}'),
    "rows: lists in each other": lambda path: (path / "demonstrations.json").write_text("[" * 100_000),
    "rows: no UTF-8": lambda path: (path / "demonstrations.json").write_bytes(b"\xff\xfe{}"),
    "rows: no action": lambda path: (
        shutil.move(path / "rows" / "action.memmap", path / "rows" / "verb.memmap"),
        *(
            each.write_text(each.read_text().replace('"action"', '"verb"'))
            for each in (path / "demonstrations.json", path / "rows" / "meta.json")
        ),
    ),
}


def second(place: str, make: Callable[[Any, str], object]) -> Spoil:
    """Makes something of the second episode of a robomimic file anew."""

    def spoil(path: Path) -> None:
        with h5py.File(path, "a") as file:
            demo = file["data/demo_1"]
            if place in demo:
                del demo[place]
            make(demo, place)

    return spoil


def values(array: Any) -> Callable[[Any, str], object]:
    return lambda group, name: group.create_dataset(name, data=array)


def nan_in_row(row: int, width: int = 4) -> np.ndarray:
    array = np.zeros((3, width))
    array[row, 1] = np.nan
    return array


def unallocated(group: Any, name: str) -> None:
    group.create_dataset(name, shape=(10**7, 10**4), dtype="f8", chunks=(1000, 1000), compression="gzip")


def virtual(group: Any, name: str) -> None:
    layout = h5py.VirtualLayout((3, 4), "f8")
    layout[:] = h5py.VirtualSource("/etc/passwd", "x", (3, 4))
    group.create_virtual_dataset(name, layout)


def elsewhere(group: Any, name: str) -> None:
    group.create_dataset(name, (3, 4), "f8", external=[("/etc/passwd", 0, 96)])


def compound(group: Any, name: str) -> None:
    group.create_dataset(name, data=np.zeros(3, [("a", "f8"), ("b", "O")][:1]))


def circle(group: Any, name: str) -> None:
    made = group.create_group(name)
    made["again"] = made


ROBOMIMIC: dict[str, Spoil] = {
    "robomimic: no actions": second("actions", lambda group, name: None),
    "robomimic: no observations": second("obs", lambda group, name: None),
    "robomimic: one observation is missing": second("obs/hand", lambda group, name: None),
    "robomimic: empty observations": second("obs", lambda group, name: group.create_group(name)),
    "robomimic: actions of another width": second("actions", values(np.zeros((3, 2)))),
    "robomimic: states of another width": second("obs/state", values(np.zeros((3, 5)))),
    "robomimic: one row too few": second("obs/state", values(np.zeros((2, 4)))),
    "robomimic: one row too many": second("actions", values(np.zeros((4, 3)))),
    "robomimic: no rows": second("actions", values(np.zeros((0, 3)))),
    "robomimic: NaN in an observation": second("obs/state", values(nan_in_row(2))),
    "robomimic: NaN in an action": second("actions", values(nan_in_row(1, 3))),
    "robomimic: too large for float32": second("obs/state", values(np.full((3, 4), 1e300))),
    "robomimic: words": second("obs/state", values(np.array([b"a", b"b", b"c"]))),
    "robomimic: words of any length": second("obs/state", values(["a", "bb", "ccc"])),
    "robomimic: complex numbers": second("obs/state", values(np.zeros((3, 4), complex))),
    "robomimic: a scalar": second("actions", values(1.0)),
    "robomimic: nothing": second("actions", values(h5py.Empty("f8"))),
    "robomimic: compound numbers": second("obs/state", compound),
    "robomimic: whole numbers among reals": second("obs/state", values(np.zeros((3, 4), int))),
    "robomimic: references": second("obs/state", values(np.full(3, h5py.Reference(), dtype=h5py.ref_dtype))),
    "robomimic: a link to another file": second(
        "obs/state", lambda group, name: group.__setitem__(name, h5py.ExternalLink("/etc/passwd", "/x"))
    ),
    "robomimic: a link in the file": second(
        "obs/state", lambda group, name: group.__setitem__(name, h5py.SoftLink("/data/demo_0/obs/state"))
    ),
    "robomimic: values in other files": second("obs/state", elsewhere),
    "robomimic: a virtual dataset": second("obs/state", virtual),
    "robomimic: more than memory holds": second("obs/state", unallocated),
    "robomimic: a group that holds itself": second("obs/more", circle),
    "robomimic: an observation called action": second("obs/action", values(np.zeros((3, 4)))),
    "robomimic: a dataset for an episode": lambda path: spoil_root(path, "demo_1"),
    "robomimic: no episodes": lambda path: spoil_root(path, None),
    "robomimic: a pickle": with_pickle(""),
    "robomimic: nothing at all": lambda path: path.write_bytes(b""),
    "robomimic: only its first bytes": lambda path: path.write_bytes(path.read_bytes()[:8]),
}


def spoil_root(path: Path, name: str | None) -> None:
    with h5py.File(path, "a") as file:
        if name is None:
            del file["data"]
        else:
            del file["data"][name]
            file["data"][name] = np.zeros(3)


MINARI: dict[str, Spoil] = {
    "minari: parquet": lambda path: (path / "data" / "metadata.json").write_text('{"data_format": "parquet"}'),
    "minari: metadata in a list": lambda path: (path / "data" / "metadata.json").write_text("[]"),
    "minari: no data": lambda path: (path / "data" / "main_data.hdf5").unlink(),
    "minari: a pickle for the data": with_pickle("data/main_data.hdf5"),
}
LEROBOT: dict[str, Spoil] = {
    "lerobot: no data": lambda path: shutil.rmtree(path / "data"),
    "lerobot: no episodes": lambda path: shutil.rmtree(path / "meta" / "episodes"),
    "lerobot: a path that leads out": lambda path: (path / "meta" / "info.json").write_text(
        (path / "meta" / "info.json").read_text().replace("data/chunk-", "../data/chunk-")
    ),
    "lerobot: a pickle for a table": lambda path: with_pickle(str(next(path.glob("data/*/*")).relative_to(path)))(path),
}


def truncated(path: Path, rng: random.Random) -> None:
    """A file, or one of a folder's that is read, without its end."""
    files = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
    files = [each for each in files if each.suffix != ".mp4" and each.name not in ("tasks.parquet", "stats.json")]
    chosen = rng.choice(files)
    content = chosen.read_bytes()
    chosen.write_bytes(content[: rng.randrange(len(content) - 1)])


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory, dataset: Path) -> dict[str, Path]:
    """A hundred files and folders that cannot be used, by what is wrong with them."""
    root, rng = tmp_path_factory.mktemp("broken"), random.Random(16)
    whole = {
        "rows": row_files.write_rows(root / "rows"),
        "robomimic": row_files.write_robomimic(root / "robomimic.hdf5"),
        "minari": row_files.write_minari(root / "minari"),
        "lerobot": dataset,
    }
    spoils: dict[str, Spoil] = {**ROWS, **ROBOMIMIC, **MINARI, **LEROBOT}
    for number in range(20):
        kind = ("rows", "robomimic", "lerobot", "minari")[number % 4]
        spoils[f"{kind}: truncated {number}"] = lambda path: truncated(path, rng)
    return {name: _spoilt(whole[name.partition(":")[0]], root / str(i), spoils[name]) for i, name in enumerate(spoils)}


def _spoilt(whole: Path, place: Path, spoil: Spoil) -> Path:
    if whole.is_dir():
        shutil.copytree(whole, place, ignore=shutil.ignore_patterns("*.mp4"))
    else:
        shutil.copy(whole, place)
    spoil(place)
    return place


@pytest.fixture(scope="module")
def outcomes(broken: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    log = tmp_path_factory.mktemp("outcomes") / "log"
    assert not forks.run(refusals.main, *broken.values(), log=log), log.read_text()[-2000:]
    return dict(zip(broken, json.loads(log.read_text().splitlines()[-1]), strict=True))


def test_a_hundred_broken_files_are_refused(outcomes: dict[str, dict[str, str]]) -> None:
    assert len(outcomes) >= 100
    assert {name: each for name, each in outcomes.items() if each["end"] != "refused"} == {}
    assert not Path("ran-code").exists()


SAID = {
    "rows: NaN": "rows/state.memmap: state: numbers must be finite; row 2 is [",
    "rows: a wider row": "rows/meta.json: state: expected float32 of shape (15, 5), not",
    "robomimic: NaN in an observation": "demo_1/obs/state: numbers must be finite; row 2 is [0.0, nan, 0.0, 0.0]",
    "robomimic: actions of another width": "demo_1/action: expected float32 (3,), as the episode before, not float32",
    "robomimic: one row too few": "demo_1: state: expected 3 rows, as actions have 3, not 2",
    "robomimic: a link to another file": "what lies in the file itself, no link to elsewhere, not ExternalLink",
    "minari: parquet": "data_format hdf5 or arrow, not",
}


@pytest.mark.parametrize("name", SAID)
def test_the_line_names_file_entry_and_row(name: str, outcomes: dict[str, dict[str, str]]) -> None:
    assert SAID[name] in outcomes[name]["said"]
    assert outcomes[name]["path"] in outcomes[name]["said"]
