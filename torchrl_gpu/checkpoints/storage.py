"""Checkpoints on storage that fsspec reaches (S3, GCS, a folder): put there whole, and fetched whole or not at all.

Each checkpoint has a folder of its own there, which is never written again. Its parts come first and its `.ckpt` last;
who fetches takes a folder only if that file is a whole archive and every part that it lists is there with its size.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from torchrl_gpu.checkpoints.files import order_of, read_entry
from torchrl_gpu.system.archives import read_archive
from torchrl_gpu.system.files import publish

_FOLDER = re.compile(
    r"(?P<saved_ms>\d{15})-(?P<run>[0-9a-f]{12})-(?P<id>[0-9a-f]{12})-(?P<stem>[A-Za-z0-9_-]{1,60})"
    r"\.(?P<upload>\d{1,18})\.(?P<generation>\d{1,18})\.(?P<step>\d{1,18})"
)
_WHERE = "checkpoints on storage"


class Remote(NamedTuple):
    """A checkpoint's folder on storage: whether it is whole is not known yet."""

    path: str
    run: str  # id
    stem: str  # name of the checkpoint without its suffix
    saved_ms: int  # by a clock: a label
    upload: int  # one more than that of any that was there before
    generation: int  # as `checkpoint_entry` has it
    step: int  # updates of the run


class CheckpointStorage:
    """The checkpoints below a URL that fsspec reaches, such as "s3://bucket/runs/packing".

    Credentials are looked for where the storage's own programs look for them; a password in the URL is a ValueError.
    """

    def __init__(self, url: str) -> None:
        import fsspec

        protocol = urlsplit(url).scheme or "file"
        if urlsplit(url).password:
            wanted = "a URL without a password, which would be saved with the configuration"
            raise ValueError(f"{_WHERE}: want {wanted}; got one")
        try:
            fsspec.get_filesystem_class(protocol)
        except (ValueError, ImportError) as error:
            raise ValueError(
                f"{_WHERE}: want a URL that fsspec reaches (s3:// and gs:// by the extra `cloud`); got {url!r}: {error}"
            ) from error
        self.url = url

    def _open(self) -> tuple[Any, str]:
        import fsspec

        files, path = fsspec.core.url_to_fs(self.url)
        files.invalidate_cache()
        return files, path.rstrip("/")

    def put(self, entry: Mapping[str, Any], checkpoint: Path, parts: Sequence[Path]) -> str:
        """Uploads a checkpoint; the folder that it got. An interrupted upload leaves a folder that is never fetched."""
        files, root = self._open()
        try:
            content = read_archive(checkpoint, "checkpoint")
            generation, step, _ = order_of(content, f"checkpoint {checkpoint}")
        except ValueError:  # what is no checkpoint comes behind all others
            generation = step = 0
        upload = 1 + max((remote.upload for remote in self.found()), default=0)
        saved = f"{max(0, int(1000 * entry['saved_s'])):015d}-{entry['run']}-{entry['id']}-{checkpoint.stem}"
        folder = f"{root}/{saved}.{upload}.{generation}.{step}"
        files.makedirs(folder, exist_ok=True)
        try:
            for path in (*parts, checkpoint):
                files.put_file(str(path), f"{folder}/{path.name}")
        except Exception:
            with contextlib.suppress(Exception):  # half of it would count among those that are kept
                files.rm(folder, recursive=True)
            raise
        return folder

    def found(self) -> list[Remote]:
        """Folders of checkpoints; other things are passed over.

        Those of the run that was uploaded to last come first, of each run those that are furthest in it: generation and
        updates decide, never a clock.
        """
        files, root = self._open()
        if not files.exists(root):
            return []
        names = [path.rstrip("/").rpartition("/")[2] for path in files.ls(root, detail=False)]
        remotes = []
        for match in filter(None, map(_FOLDER.fullmatch, names)):
            order = (int(match[name]) for name in ("saved_ms", "upload", "generation", "step"))
            remotes.append(Remote(f"{root}/{match[0]}", match["run"], match["stem"], *order))
        last = {remote.run: remote.upload for remote in sorted(remotes, key=lambda remote: remote.upload)}
        return sorted(
            remotes, key=lambda it: (last[it.run], it.run, it.generation, it.step, it.upload, it.path), reverse=True
        )

    def remove_old(self, run: str, keep: int, uploaded: str = "") -> None:
        """Removes checkpoints of a run but for the newest `keep`, the newest best one, and what was just uploaded."""
        files, _ = self._open()
        own = [remote for remote in self.found() if remote.run == run]
        best, others = _best_of(own), [remote for remote in own if remote.stem != "best"]
        for remote in (*others[keep:], *best[1:]):
            if remote.path == uploaded:
                continue
            with contextlib.suppress(FileNotFoundError):  # removed by another process meanwhile
                for path in sorted(files.ls(remote.path, detail=False), key=lambda path: not path.endswith(".ckpt")):
                    files.rm_file(path)  # the .ckpt first, so that what is being removed is never fetched
                if files.exists(remote.path):  # storage of objects has no folders of its own
                    files.rmdir(remote.path)

    def fetch_newest(self, folder: Path) -> tuple[list[Path], list[str]]:
        """Fetches the newest whole checkpoint, and the newest whole best one, into a local folder.

        Returns the `.ckpt` files that are there now, and a line for each on storage that is not whole.
        """
        fetched, torn, run = list[Path](), list[str](), ""
        found = self.found()
        for remotes in ([remote for remote in found if remote.stem != "best"], _best_of(found)):
            for remote in remotes:
                if fetched and remote.run != run:
                    continue  # the best one of the same run
                try:
                    fetched.append(self._fetch(remote, folder))
                    run = remote.run
                    break
                except (ValueError, FileNotFoundError) as error:
                    torn.append(str(error))
        return fetched, torn

    def _fetch(self, remote: Remote, folder: Path) -> Path:
        files, _ = self._open()
        folder.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".fetching-", dir=folder))
        try:
            checkpoint = scratch / f"{remote.stem}.ckpt"
            files.get_file(f"{remote.path}/{checkpoint.name}", str(checkpoint))
            content = read_archive(checkpoint, "checkpoint", every_byte=True)
            entry = read_entry(content, f"checkpoint {remote.path}")
            parts = {name: size for name, size in (entry or {"parts": {}})["parts"].items() if size is not None}
            for name, size in parts.items():
                if (there := files.size(f"{remote.path}/{name}")) != size:
                    raise ValueError(f"checkpoint {remote.path}: want its part {name} of {size} bytes; got {there}")
                files.get_file(f"{remote.path}/{name}", str(scratch / name))
                read_archive(scratch / name, "checkpoint part", every_byte=True)
            for name in (*parts, checkpoint.name):
                publish(scratch / name, folder / name)
            return folder / checkpoint.name
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _best_of(remotes: list[Remote]) -> list[Remote]:
    """Those that hold a best checkpoint, the better first: each was uploaded as it was better than the one before."""
    return sorted((each for each in remotes if each.stem == "best"), key=lambda each: each.upload, reverse=True)
