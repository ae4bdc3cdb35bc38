from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest
import torch

from torchrl_gpu.system.archives import read_archive


def test_what_was_saved_is_read_and_stays_on_disk(tmp_path: Path) -> None:
    saved = {"weights": torch.arange(6.0).view(2, 3), "frames": 7}
    torch.save(saved, tmp_path / "a.pt")
    for every_byte in (False, True):
        found = read_archive(tmp_path / "a.pt", "archive", every_byte=every_byte)
        assert found["frames"] == 7
        assert torch.equal(found["weights"], saved["weights"])


def test_a_flipped_bit_is_seen_where_every_byte_is_read(tmp_path: Path) -> None:
    torch.save({"weights": torch.full((64,), 1.5)}, tmp_path / "a.pt")
    content = bytearray((tmp_path / "a.pt").read_bytes())
    content[content.index(torch.full((64,), 1.5).numpy().tobytes()) + 17] ^= 1
    (tmp_path / "a.pt").write_bytes(content)
    assert not (read_archive(tmp_path / "a.pt", "archive")["weights"] == 1.5).all()
    with pytest.raises(ValueError, match=r"archive .*a.pt: want the bytes that were written; got others in a/data/0"):
        read_archive(tmp_path / "a.pt", "archive", every_byte=True)


def test_an_archive_that_unpacks_to_more_than_itself_is_refused(tmp_path: Path) -> None:
    torch.save({"weights": torch.zeros(100_000)}, tmp_path / "a.pt")
    packed = tmp_path / "packed.pt"
    with zipfile.ZipFile(tmp_path / "a.pt") as old, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    with pytest.raises(ValueError, match="got one with more in it than its bytes"):
        read_archive(packed, "archive")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="got no regular file"):
        read_archive(tmp_path / "pipe", "archive")
    with pytest.raises(FileNotFoundError, match="got none there"):
        read_archive(tmp_path / "nothing", "archive")
