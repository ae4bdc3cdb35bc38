"""Small files that unpack to much: they are refused before any of it takes memory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from torchrl_gpu.demonstrations import parquet_pages, untrusted
from torchrl_gpu.demonstrations.untrusted import read_npz, read_parquet, read_strings
from torchrl_gpu.envs import memory

MANY = 20_000


@pytest.fixture(autouse=True)
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that small files reach."""
    monkeypatch.setattr(untrusted, "_SMALL_BYTES", 2**16)
    monkeypatch.setattr(untrusted, "_MOST_TIMES", 1)


def written(path: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), path, compression="zstd")
    return path


def in_groups(path: Path) -> Path:
    with pq.ParquetWriter(path, pa.schema([("action", pa.int64())]), compression="zstd") as writer:
        for _ in range(20):
            writer.write_table(pa.table({"action": np.zeros(MANY // 20, np.int64)}))
    return path


def nested(deep: int) -> Any:
    """One row of so many lists in each other, of zeros."""
    values: Any = pa.array(np.zeros(MANY, np.int64))
    for _ in range(deep):
        values = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    return values


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda path: written(path, action=np.zeros(MANY, np.int64)), id="run lengths"),
        pytest.param(lambda path: written(path, action=np.zeros(MANY, bool)), id="run lengths of flags"),
        pytest.param(lambda path: written(path, action=np.arange(MANY) // 100 % 2 + 0.5), id="a dictionary"),
        pytest.param(lambda path: written(path, action=nested(1)), id="one row"),
        pytest.param(lambda path: written(path, action=nested(4)), id="lists in each other"),
        pytest.param(
            lambda path: written(path, action=pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(MANY)), MANY // 2)),
            id="lists of one length",
        ),
        pytest.param(in_groups, id="many row groups"),
        pytest.param(
            lambda path: written(path, **{f"c{i}": np.zeros(MANY // 20) for i in range(20)}), id="many columns"
        ),
    ],
)
def test_parquet_that_unpacks_to_much_is_not_decoded(
    make: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make(tmp_path / "a.parquet")
    monkeypatch.setattr(pq.ParquetFile, "read", lambda *_, **__: pytest.fail("it was decoded"))
    said = rf"may have {2**16 + path.stat().st_size:,} bytes of values, not {16 * MANY:,}"
    with pytest.raises(ValueError, match=said):
        read_parquet(path)
    monkeypatch.setattr(untrusted, "_SMALL_BYTES", 2**27)
    monkeypatch.setattr(memory, "free_bytes", lambda device: 2**16)
    with pytest.raises(ValueError, match=r"52,428 bytes"):
        read_parquet(path)


def test_columns_that_nobody_asks_for_do_not_count(tmp_path: Path) -> None:
    path = written(tmp_path / "a.parquet", action=np.zeros(MANY, np.int64), more=[0.5, *[1.5] * (MANY - 1)])
    with pytest.raises(ValueError, match=r"bytes of values"):
        read_parquet(path, ["more"])
    small = written(tmp_path / "b.parquet", action=[1, 2], more=[list(range(MANY)), []])
    assert read_parquet(small, ["action"])["action"].tolist() == [1, 2]


def strings(path: Path, encoding: str | None = None, **columns: Any) -> Path:
    table = pa.table({"task_index": np.arange(100)} | columns)
    pq.write_table(
        table,
        path,
        compression="zstd",
        use_dictionary=encoding is None,
        column_encoding=None if encoding is None else {"task": encoding, "task_index": "PLAIN"},
    )
    return path


def test_a_string_is_held_once_however_many_rows_have_it(tmp_path: Path) -> None:
    """A hundred of these strings would be 3 MB."""
    path = strings(tmp_path / "a.parquet", task=["x" * 30_000] * 100)
    words = read_strings(path, ("task",), "task_index")
    assert len(words) == 100
    assert len({id(each) for each in words.values()}) == 1
    with pytest.raises(ValueError, match=r"bytes of values"):
        read_strings(strings(path, task=["x" * 90_000] * 100), ("task",), "task_index")
    with pytest.raises(ValueError, match="in encoding 7"):
        read_strings(strings(path, "DELTA_BYTE_ARRAY", task=["x" * 300] * 100), ("task",), "task_index")
    for encoding in ("PLAIN", "DELTA_LENGTH_BYTE_ARRAY"):
        path = strings(path, encoding, task=[f"task {i}" for i in range(100)])
        assert read_strings(path, ("task",), "task_index") == {i: f"task {i}" for i in range(100)}


@pytest.mark.parametrize("task", [[None] * 100, list(range(100))])
def test_strings_are_strings(task: Any, tmp_path: Path) -> None:
    path = strings(tmp_path / "a.parquet", task=task)
    with pytest.raises(ValueError, match=r"(whole numbers|parquet file)"):
        read_strings(path, ("task",), "task_index")


@pytest.mark.parametrize("changes", [{"num_values": 10}, {"num_values": 4 * MANY}, {"total_uncompressed_size": 40}])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_pages_are_held_against_the_description(changes: dict[str, int], version: str, tmp_path: Path) -> None:
    """A footer is as easily written as the rest, and decoding goes by the pages."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"action": nested(1)}), path, compression="zstd", data_page_version=version)
    metadata = pq.ParquetFile(path).metadata
    column = metadata.row_group(0).column(0)
    assert parquet_pages.column_sizes(path, metadata, [0]) == (MANY, column.total_uncompressed_size, True)
    names = ("num_values", "total_uncompressed_size", "total_compressed_size", "data_page_offset", "path_in_schema")
    said = {name: getattr(column, name) for name in (*names, "has_dictionary_page", "dictionary_page_offset")}
    liar = SimpleNamespace(num_row_groups=1, row_group=lambda _: SimpleNamespace(column=lambda _: fake))
    fake = SimpleNamespace(**said | changes)
    with pytest.raises(ValueError, match="pages of"):
        parquet_pages.column_sizes(path, liar, [0])


def test_pages_of_many_writers(tmp_path: Path) -> None:
    """Pages as many writers make them.

    Small ones, checksums, statistics of long strings, no compression, and dictionaries that grow too large.
    """
    rng, path = np.random.default_rng(0), tmp_path / "a.parquet"
    table = pa.table({"a": rng.integers(0, 9, 3000), "b": rng.normal(size=3000), "c": ["y" * 5000] * 3000})
    for options in ({"data_page_size": 256}, {"compression": "none"}, {"dictionary_pagesize_limit": 64}):
        for version in ("1.0", "2.0"):
            pq.write_table(table, path, data_page_version=version, write_page_checksum=True, **options)
            metadata = pq.ParquetFile(path).metadata
            assert parquet_pages.column_sizes(path, metadata, [0, 1, 2])[0] == 9000


@pytest.mark.parametrize("length", [2**26 + 1, 2**32 - 1])
def test_a_description_that_is_too_long_is_not_parsed(length: int, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    with path.open("wb") as file:
        file.truncate(2**27)
        file.seek(-8, 2)
        file.write(length.to_bytes(4, "little") + b"PAR1")
    with pytest.raises(ValueError, match=f"description .*{length:,} bytes"):
        read_parquet(path)


@pytest.mark.parametrize("read", [read_parquet, lambda path: read_strings(path, ("task",), "task_index")])
def test_mangled_pages_are_one_kind_of_error(read: Callable[[Path], object], tmp_path: Path) -> None:
    path, rng = tmp_path / "a.parquet", np.random.default_rng(0)
    written(path, action=rng.normal(size=50), task_index=np.arange(50), task=["a", "b"] * 25)
    whole = path.read_bytes()
    for _ in range(100):
        content = bytearray(whole)
        for at in rng.integers(0, len(whole), 3):
            content[at] = rng.integers(0, 256)
        path.write_bytes(bytes(content))
        with suppress(ValueError):
            read(path)


def test_npz_that_unpacks_to_much_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, action=np.zeros(MANY))
    with pytest.raises(ValueError, match=r"file of .* bytes of values, not"):
        read_npz(path)
