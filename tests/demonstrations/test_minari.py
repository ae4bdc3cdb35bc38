"""Minari's Arrow: each number where it belongs.

No row follows the last action, and nothing broken comes through.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from tests.demonstrations import row_files
from torchrl_gpu.demonstrations import read_demonstrations
from torchrl_gpu.envs import memory


@pytest.mark.parametrize(("grouped", "name"), [(True, "observation.state"), (False, "observation")])
def test_arrow_is_read_as_hdf5_is(grouped: bool, name: str, tmp_path: Path) -> None:
    ours = read_demonstrations(row_files.write_minari_arrow(tmp_path / "arrow", grouped))
    assert ours.lengths.tolist() == list(row_files.LENGTHS)
    assert torch.equal(ours.rows[name], row_files.joined("state"))
    assert torch.equal(ours.rows["action"], row_files.joined("action"))
    other = read_demonstrations(row_files.write_minari(tmp_path / "hdf5", grouped))
    assert set(ours.rows.keys()) == set(other.rows.keys())
    assert all(torch.equal(ours.rows[key], other.rows[key]) for key in ours.rows.keys())  # noqa: SIM118


def test_choices_and_flags(tmp_path: Path) -> None:
    folder = row_files.write_minari_arrow(tmp_path / "a")
    for number, length in enumerate(row_files.LENGTHS):
        columns = {"observations": pa.array(np.arange(length + 1) > 1), "actions": pa.array(np.arange(length + 1))}
        path = folder / "data" / str(number) / "part-0.arrow"
        row_files.write_arrow(path, pa.RecordBatch.from_pydict(columns))
    rows = read_demonstrations(folder).rows
    numbers = list(chain.from_iterable(map(range, row_files.LENGTHS)))
    assert rows["action"].tolist() == numbers
    assert rows["observation"].tolist() == [i > 1 for i in numbers]


def batch(**columns: Any) -> pa.RecordBatch:
    usual = {"observations": pa.array(np.zeros(4)), "actions": pa.array(np.zeros(4))}
    return pa.RecordBatch.from_pydict(usual | columns)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        pytest.param(lambda path: row_files.write_arrow(path, batch(), compression="zstd"), "packed", id="packed"),
        pytest.param(lambda path: row_files.write_arrow(path, batch(), batch()), "one batch", id="two batches"),
        pytest.param(
            lambda path: row_files.write_arrow(path, batch(observations=pa.array(["a"] * 4))),
            "part-0.arrow: observations: .*numbers or flags, not string",
            id="text",
        ),
        pytest.param(
            lambda path: row_files.write_arrow(path, batch(actions=pa.array([1.0, None, 2.0, 3.0]))),
            "actions: 1 values are null",
            id="nulls",
        ),
        pytest.param(
            lambda path: row_files.write_arrow(path, batch().drop_columns(["actions"])),
            "observations and actions, once each",
            id="no actions",
        ),
        pytest.param(
            lambda path: row_files.write_arrow(path, batch()),
            r"float32 \(3,\), as the episode before, not float64 \(\)",
            id="of another form",
        ),
        pytest.param(
            lambda path: row_files.write_arrow(path, batch().slice(0, 1)), "two rows or more, not 1", id="one row"
        ),
        pytest.param(
            lambda path: path.write_bytes(b"\x89HDF\r\n\x1a\n" * 4), "does not begin like an Arrow file", id="HDF5"
        ),
        pytest.param(lambda path: path.unlink(), "one .arrow file, not 0", id="nothing"),
    ],
)
def test_strange_minari_files_are_refused(spoil: Callable[[Path], object], said: str, tmp_path: Path) -> None:
    folder = row_files.write_minari_arrow(tmp_path / "a")
    spoil(folder / "data" / "1" / "part-0.arrow")
    with pytest.raises(ValueError, match=rf"^demonstrations: .*{said}"):
        read_demonstrations(folder)


@pytest.mark.parametrize("number", [0, -1, "3", None, 10**9, True, 1.5])
def test_the_number_of_episodes_is_checked(number: Any, tmp_path: Path) -> None:
    folder = row_files.write_minari_arrow(tmp_path / "a")
    said = {None: "null", True: "true"}.get(number, f'"{number}"' if isinstance(number, str) else number)
    (folder / "data" / "metadata.json").write_text(f'{{"data_format": "arrow", "total_episodes": {said}}}')
    with pytest.raises(ValueError, match="total_episodes from 1 to 1,000,000, not"):
        read_demonstrations(folder)


def test_minari_too_large_for_memory_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = row_files.write_minari_arrow(tmp_path / "a")
    monkeypatch.setattr(memory, "free_bytes", lambda device: 2**14)
    with pytest.raises(ValueError, match=r"part-0.arrow: .*memory: .* too many"):
        read_demonstrations(folder)


def test_columns_that_share_the_bytes_of_a_file_count_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchrl_gpu.demonstrations.untrusted._SMALL_BYTES", 2**16)
    monkeypatch.setattr("torchrl_gpu.demonstrations.untrusted._MOST_TIMES", 1)
    folder = row_files.write_minari_arrow(tmp_path / "a")
    path = folder / "data" / "1" / "part-0.arrow"
    small = pa.array(np.zeros(100, np.int8))
    parts = pa.StructArray.from_arrays([small] * 50, names=[f"x{i}" for i in range(50)])
    row_files.write_arrow(path, pa.RecordBatch.from_pydict({"observations": parts, "actions": small}))
    with pytest.raises(ValueError, match=r"part-0\.arrow: .* bytes of values, not 80,784"):
        read_demonstrations(folder)


def test_minari_columns_that_nobody_needs_may_be_anything(tmp_path: Path) -> None:
    folder = row_files.write_minari_arrow(tmp_path / "a")
    for number, length in enumerate(row_files.LENGTHS):
        words, state = pa.array(["x"] * (length + 1)), pa.array(np.arange(length + 1.0))
        parts = pa.StructArray.from_arrays([state, words], names=["state", "word"])
        columns = {"observations": parts, "actions": pa.array(np.arange(length + 1))}
        row_files.write_arrow(folder / "data" / str(number) / "part-0.arrow", pa.RecordBatch.from_pydict(columns))
    with pytest.raises(ValueError, match=r"observations/word: .*numbers .*string"):
        read_demonstrations(folder)
    found = read_demonstrations(folder, entries=["observation.state"])
    assert set(found.rows.keys()) == {"action", "observation.state"}


def test_a_bad_episode_is_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = row_files.write_minari_arrow(tmp_path / "a")
    (folder / "data" / "1" / "part-0.arrow").write_bytes(b"nothing")
    found = read_demonstrations(folder, on_bad="skip")
    assert found.lengths.tolist() == [5, 7]
    assert "demonstrations: 1 episodes skipped: " in caplog.text


@pytest.mark.parametrize("how", ["changed", "cut off"])
def test_broken_files_give_numbers_or_an_error(how: str, tmp_path: Path) -> None:
    folder = row_files.write_minari_arrow(tmp_path / "a")
    path = folder / "data" / "1" / "part-0.arrow"
    whole = path.read_bytes()
    rng = random.Random(0)
    refused = 0
    for _ in range(50):
        content = bytearray(whole)
        if how == "changed":
            for _ in range(rng.randrange(1, 8)):
                content[rng.randrange(len(content))] = rng.randrange(256)
        path.write_bytes(bytes(content) if how == "changed" else whole[: rng.randrange(len(whole))])
        try:
            rows = read_demonstrations(folder).rows
        except ValueError:
            refused += 1
        else:
            assert torch.stack([row.float().sum() for row in rows.values()]).isfinite().all()
    assert refused > 10
