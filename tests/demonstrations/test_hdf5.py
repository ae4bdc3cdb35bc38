"""robomimic and Minari: each number where it belongs.

No row follows the last action.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from tests.demonstrations import row_files
from torchrl_gpu.demonstrations import read_demonstrations
from torchrl_gpu.envs import memory


def test_robomimic_is_read_by_rows(tmp_path: Path) -> None:
    shown = read_demonstrations(row_files.write_robomimic(tmp_path / "a.hdf5"))
    assert shown.lengths.tolist() == list(row_files.LENGTHS)
    assert set(shown.rows.keys()) == {"action", "state", "hand"}
    for name in ("action", "state", "hand"):
        assert torch.equal(shown.rows[name], row_files.joined(name))


@pytest.mark.parametrize(("grouped", "name"), [(True, "observation.state"), (False, "observation")])
def test_minari_is_read_by_rows(grouped: bool, name: str, tmp_path: Path) -> None:
    folder = row_files.write_minari(tmp_path / "a", grouped)
    for path in (folder, folder / "data" / "main_data.hdf5"):
        shown = read_demonstrations(path)
        assert shown.lengths.tolist() == list(row_files.LENGTHS)
        assert torch.equal(shown.rows[name], row_files.joined("state"))
        assert torch.equal(shown.rows["action"], row_files.joined("action"))


def test_episodes_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for number in (10, 9, 2):
            demo = file.create_group(f"data/demo_{number}")
            demo["actions"] = np.full((1, 1), float(number))
            demo["obs/state"] = np.zeros((1, 1))
    assert read_demonstrations(tmp_path / "a.hdf5").rows["action"].flatten().tolist() == [2.0, 9.0, 10.0]


def test_compressed_pictures_and_flags(tmp_path: Path) -> None:
    frames = np.random.default_rng(0).integers(0, 255, (6, 8, 8, 3), np.uint8)
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        demo = file.create_group("data/demo_0")
        demo["actions"] = np.zeros((6, 1))
        demo.create_dataset("obs/frames", data=frames, compression="gzip", shuffle=True)
        demo.create_dataset("obs/shut", data=np.arange(6) > 2, compression="lzf")
    rows = read_demonstrations(tmp_path / "a.hdf5").rows
    assert torch.equal(rows["frames"], torch.from_numpy(frames))
    assert rows["shut"].tolist() == [False] * 3 + [True] * 3


def test_an_install_without_h5py_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = row_files.write_robomimic(tmp_path / "a.hdf5")
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with pytest.raises(ModuleNotFoundError, match=r"demonstrations: h5py .*\[hdf5\]"):
        read_demonstrations(path)


def test_hdf5_too_large_for_memory_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The file has 10 kB.
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        demo = file.create_group("data/demo_0")
        demo["actions"] = np.zeros((6, 1))
        demo.create_dataset("obs/frames", (6, 4096, 4096, 3), np.uint8, chunks=(1, 1024, 1024, 3), compression="gzip")
    monkeypatch.setattr(memory, "free_bytes", lambda device: 2**28)
    with pytest.raises(ValueError, match=r"demo_0/obs/frames: .*memory: .* too many"):
        read_demonstrations(tmp_path / "a.hdf5")


def changed(path: Path, number: int, **places: Any) -> Path:
    """Replace arrays at some places of an episode.

    None leaves an array out.
    """
    with h5py.File(path, "a") as file:
        for place, values in places.items():
            demo, where = file[f"data/demo_{number}"], place.replace("__", "/")
            if where in demo:
                del demo[where]
            if values is not None:
                demo[where] = values
    return path


def test_only_what_is_asked_for_is_read(tmp_path: Path) -> None:
    """Words, NaN, links and rows too few in what nobody wants are nobody's concern."""
    words, nan = np.array([b"a", b"b", b"c"]), np.full((3, 2), np.nan)
    path = changed(row_files.write_robomimic(tmp_path / "a.hdf5"), 1, obs__word=words, obs__hand=nan, obs__few=[1.0])
    changed(path, 2, obs__link=h5py.ExternalLink("/etc/passwd", "/x"), obs__hand=None)
    with pytest.raises(ValueError, match=r"demo_1/obs/hand: .*finite"):
        read_demonstrations(path)
    with pytest.raises(ValueError, match=r"rows of .*leave it"):
        read_demonstrations(changed(path, 0, obs__a=np.array([b"a"] * 5)))
    found = read_demonstrations(path, entries=["state"])
    assert set(found.rows.keys()) == {"action", "state"}
    assert torch.equal(found.rows["state"], row_files.joined("state"))
    with pytest.raises(ValueError, match=r"demo_2/obs: .*entry hand, .*\['link', 'state'\]"):
        read_demonstrations(changed(path, 1, obs__hand=np.zeros((3, 2))), entries=["state", "hand"])


def test_parts_of_minari_are_asked_for_by_their_whole_names(tmp_path: Path) -> None:
    folder = row_files.write_minari(tmp_path / "a")
    with h5py.File(folder / "data" / "main_data.hdf5", "a") as file:
        file["episode_1/observations/word"] = np.array([b"x"] * 4)
        file["episode_1/observations/deep/er"] = np.full((4, 1), np.nan)
    found = read_demonstrations(folder, entries=["observation.state"])
    assert torch.equal(found.rows["observation.state"], row_files.joined("state"))


@pytest.mark.parametrize(
    "arrays",
    [
        pytest.param({"obs__state": np.full((3, 4), np.nan)}, id="NaN"),
        pytest.param({"actions": None}, id="no actions"),
        pytest.param({"obs__state": np.array([b"a", b"b", b"c"])}, id="words"),
        pytest.param({"obs__state": np.zeros((3, 5))}, id="another width"),
        pytest.param({"obs__more": np.zeros((3, 5))}, id="another entry"),
        pytest.param({"obs__state": np.zeros((2, 4))}, id="a row too few"),
    ],
)
@pytest.mark.parametrize("number", [0, 1])
def test_a_bad_episode_is_skipped(
    arrays: dict[str, Any], number: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    length = row_files.LENGTHS[number]
    places: dict[str, Any] = dict(arrays)
    for place, values in places.items():
        if values is not None:
            places[place] = np.resize(values, (length - 3 + len(values), *values.shape[1:]))
    path = changed(row_files.write_robomimic(tmp_path / "a.hdf5"), number, **places)
    with pytest.raises(ValueError, match="demo_"):
        read_demonstrations(path)
    found = read_demonstrations(path, on_bad="skip")
    kept = [i for i in range(3) if i != number]
    assert found.lengths.tolist() == [row_files.LENGTHS[i] for i in kept]
    wanted = np.concatenate([row_files.arrays()[i]["action"][:-1] for i in kept]).astype(np.float32)
    assert torch.equal(found.rows["action"], torch.from_numpy(wanted))
    (record,) = caplog.records
    assert record.getMessage().startswith(f"demonstrations: 1 episodes skipped: {path}: demo_{number}: ")
    assert found.about["masks"] == {"train": [0] if number < 2 else [0, 1]}, "robomimic's masks are by what was kept"


def test_where_no_episode_can_be_used_the_first_says_why(tmp_path: Path) -> None:
    path = row_files.write_robomimic(tmp_path / "a.hdf5")
    for number in range(3):
        changed(path, number, actions=None)
    with pytest.raises(ValueError, match=r"no episode .*actions and obs"):
        read_demonstrations(path, on_bad="skip")
    with pytest.raises(ValueError, match=r"on_bad .*raise, skip.*'no'"):
        read_demonstrations(path, on_bad="no")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(np.array([b"demo_2", b"demo_0"]), id="bytes"),
        pytest.param(np.array([b"demo_2", b"demo_0"], "S200"), id="wide bytes"),
        pytest.param(np.array([b"demo_2", b"demo_0"], h5py.string_dtype("ascii")), id="bytes of any length"),
        pytest.param(np.array(["demo_2", "demo_0"], h5py.string_dtype("utf-8", 12)), id="text"),
        pytest.param(["demo_2", "demo_0"], id="text of any length"),
        pytest.param(np.array([b"demo_2  ", b"demo_0  "]), id="padded by spaces"),
    ],
)
@pytest.mark.parametrize("compression", [None, "gzip"])
def test_masks_are_read_whatever_strings_they_hold(tmp_path: Path, names: object, compression: str | None) -> None:
    path = row_files.write_robomimic(tmp_path / "a.hdf5")
    with h5py.File(path, "a") as file:
        file.create_dataset("mask/valid", data=names, compression=compression)
        file["mask/none"] = np.array([], "S8")
    assert read_demonstrations(path).about["masks"] == {"none": [], "train": [0, 1], "valid": [2, 0]}


@pytest.mark.parametrize("names", [[b"demo_9"], ["demo_9"], [b"demo_0", b""], ["demo_1" * 5_000], [b"demo_0"] * 4])
def test_a_mask_of_strangers_is_refused(tmp_path: Path, names: list[Any]) -> None:
    path = row_files.write_robomimic(tmp_path / "a.hdf5")
    with h5py.File(path, "a") as file:
        file["mask/valid"] = names
    with pytest.raises(ValueError, match=r"'mask/valid': .*names of .*episodes.*, not ") as error:
        read_demonstrations(path)
    assert len(str(error.value)) < 500


def test_a_mask_of_another_form_is_left_out_with_a_word(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = row_files.write_robomimic(tmp_path / "a.hdf5")
    with h5py.File(path, "a") as file:
        file["mask/elsewhere"] = h5py.SoftLink("/mask/train")
        file["mask/numbers"] = np.arange(3)
        file["mask/table"] = np.array([[b"demo_0"]])
        file.create_group("mask/group")
    assert read_demonstrations(path).about["masks"] == {"train": [0, 1]}
    for name in ("elsewhere", "numbers", "table", "group"):
        assert f"'mask/{name}' is left out" in caplog.text


def linked(path: Path, wide: int) -> Path:
    """Write three levels of groups.

    On each, the given number of links lead to the next.
    """
    with h5py.File(path, "w") as file:
        demo = file.create_group("data/demo_0")
        demo["actions"] = np.zeros((1, 1))
        levels = [demo.create_group("obs"), file.create_group("one"), file.create_group("two")]
        file["end"] = np.zeros((1, 1))
        for level, below in zip(levels, [*levels[1:], file["end"]], strict=True):
            for i in range(wide):
                level[f"l{i}"] = below
    return path


def test_links_that_multiply_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a thousand each, they lead to an array a billion times."""
    monkeypatch.setattr("torchrl_gpu.demonstrations.hdf5._MOST_AGAIN", 200)
    with pytest.raises(ValueError, match="more than 200 links"):
        read_demonstrations(linked(tmp_path / "a.hdf5", 8))
    assert len(read_demonstrations(linked(tmp_path / "b.hdf5", 5)).rows.keys()) == 126


def test_episodes_that_are_links_to_one_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchrl_gpu.demonstrations.hdf5._MOST_AGAIN", 30)
    path = row_files.write_robomimic(tmp_path / "a.hdf5")
    with h5py.File(path, "a") as file:
        for number in range(3, 8):
            file[f"data/demo_{number}"] = file["data/demo_0"]
    assert read_demonstrations(path).num_episodes == 8
    with h5py.File(path, "a") as file:
        for number in range(8, 20):
            file[f"data/demo_{number}"] = file["data/demo_0"]
    with pytest.raises(ValueError, match="more than 30 links"):
        read_demonstrations(path)


@pytest.mark.parametrize("how", ["never written", "gzip", "one large chunk"])
def test_arrays_that_are_far_larger_than_the_file_are_refused(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchrl_gpu.demonstrations.untrusted._SMALL_BYTES", 2**16)
    monkeypatch.setattr("torchrl_gpu.demonstrations.untrusted._MOST_TIMES", 1)
    path, rows = tmp_path / "a.hdf5", 4 if how == "one large chunk" else 1000
    with h5py.File(path, "w") as file:
        demo = file.create_group("data/demo_0")
        demo["actions"] = np.zeros((rows, 1))
        chunks = (2**14, 4) if how == "one large chunk" else (1000, 4)
        kind = None if how == "never written" else "gzip"
        made = demo.create_dataset("obs/x", (rows, 40), "f8", chunks=chunks, compression=kind, maxshape=(None, 40))
        if how == "gzip":
            made[:] = 0
    with pytest.raises(ValueError, match=r"demo_0/obs/x: .*memory: .* file of"):
        read_demonstrations(path)


def test_hdf5_with_values_packed_twice_is_refused(tmp_path: Path) -> None:
    """Twice, a byte stands for a million."""
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        demo = file.create_group("data/demo_0")
        demo["actions"] = np.zeros((6, 1))
        plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plan.set_chunk((6, 1))
        plan.set_deflate(9)
        plan.set_deflate(9)
        space = h5py.h5s.create_simple((6, 1))
        h5py.h5d.create(demo.create_group("obs").id, b"x", h5py.h5t.NATIVE_DOUBLE, space, plan)
    with pytest.raises(ValueError, match=r"file itself, .*gzip"):
        read_demonstrations(tmp_path / "a.hdf5")
