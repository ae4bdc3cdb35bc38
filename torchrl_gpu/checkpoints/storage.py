"""Copies of checkpoints on storage that fsspec reaches, such as S3 or GCS.

A copy is fetched whole or not at all. Each checkpoint has a folder of its own there, which is never written again. Its
parts come first and its `.ckpt` last; who fetches takes a folder only if that file is a whole archive and every part
that it lists is there with its size.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from torchrl_gpu.checkpoints.files import Manifest, order_of, read_entry
from torchrl_gpu.system.archives import read_archive
from torchrl_gpu.system.files import publish

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_FOLDER = re.compile(
    r"(?P<saved_ms>\d{15})-(?P<run>[0-9a-f]{12})-(?P<id>[0-9a-f]{12})-(?P<stem>[A-Za-z0-9_-]{1,60})"
    r"\.(?P<upload>\d{1,18})\.(?P<generation>\d{1,18})\.(?P<step>\d{1,18})"
)
_WHERE = "checkpoints on storage"


class Remote(NamedTuple):
    """A checkpoint's folder on storage, which may not be whole.

    Attributes:
        path: Folder on the storage.
        run: Id of the run.
        stem: Name of the checkpoint without its suffix.
        saved_ms: Time of saving in ms by a clock, which orders nothing.
        upload: One more than the largest number that was there before.
        generation: As in `checkpoint_entry`.
        step: Updates of the run.
    """

    path: str
    run: str
    stem: str
    saved_ms: int
    upload: int
    generation: int
    step: int


# All that decides which copy is the newest stands in the name of its folder: to list names is one request, where to
# read a manifest of each would be as many as there are copies. A clock is in it for people alone. The number of the
# upload orders what generation and updates leave equal, such as two runs that save to one place in turn.
class CheckpointStorage:
    """Checkpoints below a URL that fsspec reaches, such as "s3://bucket/runs/packing".

    Credentials are looked for where the storage's own programs look for them; a password in the URL is a ValueError.
    """

    def __init__(self, url: str) -> None:
        import fsspec

        protocol = urlsplit(url).scheme or "file"
        if urlsplit(url).password:
            raise ValueError(
                f"{_WHERE}: the URL holds a password, which would be saved with the configuration. Put it where the"
                " storage's own programs look for it"
            )
        try:
            fsspec.get_filesystem_class(protocol)
        except (ValueError, ImportError) as error:
            raise ValueError(
                f"{_WHERE}: fsspec cannot reach {url!r}: {error}. For s3:// and gs:// install the extra `cloud`"
            ) from error
        self.url = url

    def open(self) -> tuple[AbstractFileSystem, str]:
        import fsspec

        files, path = fsspec.core.url_to_fs(self.url)
        # fsspec keeps what it has listed, and another process may have uploaded or removed since.
        files.invalidate_cache()
        return files, path.rstrip("/")

    def put(self, entry: Manifest, checkpoint: Path, parts: Sequence[Path]) -> str:
        """Upload a checkpoint and return its folder.

        An interrupted upload leaves a folder that is never fetched.
        """
        files, root = self.open()
        try:
            content = read_archive(checkpoint, "checkpoint")
            generation, step, _ = order_of(content, f"checkpoint {checkpoint}")
        except ValueError:
            # Other files are kept too, and ordered before all checkpoints.
            generation = step = 0
        upload = 1 + max((remote.upload for remote in self.list_remotes()), default=0)
        saved = f"{max(0, int(1000 * entry['saved_s'])):015d}-{entry['run']}-{entry['id']}-{checkpoint.stem}"
        folder = f"{root}/{saved}.{upload}.{generation}.{step}"
        files.makedirs(folder, exist_ok=True)
        try:
            for path in (*parts, checkpoint):
                files.put_file(str(path), f"{folder}/{path.name}")
        except Exception:
            # A half uploaded checkpoint would count among those that are kept.
            with contextlib.suppress(Exception):
                files.rm(folder, recursive=True)
            raise
        return folder

    def list_remotes(self) -> list[Remote]:
        """List the folders of checkpoints, without other things.

        Those of the run that was uploaded to last come first, of each run those that are furthest in it: generation and
        updates decide, never a clock.
        """
        files, root = self.open()
        if not files.exists(root):
            return []
        paths = [path.rstrip("/") for path in files.ls(root, detail=False)]
        names = [path.rpartition("/")[2] for path in paths]
        remotes = []
        for match in filter(None, map(_FOLDER.fullmatch, names)):
            saved_ms = int(match["saved_ms"])
            upload = int(match["upload"])
            generation = int(match["generation"])
            step = int(match["step"])
            run = match["run"]
            path = f"{root}/{match[0]}"
            found = Remote(path, run, match["stem"], saved_ms, upload, generation, step)
            remotes.append(found)
        last: dict[str, int] = {}
        for remote in remotes:
            last_so_far = last.get(remote.run, 0)
            last[remote.run] = max(remote.upload, last_so_far)

        def order(remote: Remote) -> tuple[int, str, int, int, int, str]:
            return last[remote.run], remote.run, remote.generation, remote.step, remote.upload, remote.path

        return sorted(remotes, key=order, reverse=True)

    def remove_old(self, run: str, keep: int, uploaded: str = "") -> None:
        """Remove old checkpoints of a run.

        The newest `keep`, the newest best one and what was just uploaded stay.
        """
        files, _ = self.open()
        own = [remote for remote in self.list_remotes() if remote.run == run]
        best = _best_of(own)
        others = [remote for remote in own if remote.stem != "best"]
        for remote in (*others[keep:], *best[1:]):
            if remote.path == uploaded:
                continue
            # Another process may remove it in the meantime.
            with contextlib.suppress(FileNotFoundError):
                paths = files.ls(remote.path, detail=False)
                # The .ckpt goes first, so that nobody fetches what is being removed.
                for path in sorted(paths, key=lambda path: not path.endswith(".ckpt")):
                    files.rm_file(path)
                # A store of objects has no folders that could be empty.
                if files.exists(remote.path):
                    files.rmdir(remote.path)

    def fetch_newest(self, folder: Path) -> tuple[list[Path], list[str]]:
        """Fetch the newest whole checkpoint, and the newest whole best one of its run.

        Returns the `.ckpt` files that are there now, and a line for each on storage that is not whole.
        """
        fetched = list[Path]()
        torn = list[str]()
        run = ""
        found = self.list_remotes()
        others = [remote for remote in found if remote.stem != "best"]
        for remotes in (others, _best_of(found)):
            for remote in remotes:
                if fetched and remote.run != run:
                    continue
                try:
                    fetched.append(self._fetch(remote, folder))
                    run = remote.run
                    break
                except (ValueError, FileNotFoundError) as error:
                    torn.append(str(error))
        return fetched, torn

    def _fetch(self, remote: Remote, folder: Path) -> Path:
        files, _ = self.open()
        folder.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".fetching-", dir=folder))
        try:
            checkpoint = scratch / f"{remote.stem}.ckpt"
            files.get_file(f"{remote.path}/{checkpoint.name}", str(checkpoint))
            content = read_archive(checkpoint, "checkpoint", every_byte=True)
            entry = read_entry(content, f"checkpoint {remote.path}")
            listed = entry["parts"] if entry else {}
            parts = {name: size for name, size in listed.items() if size is not None}
            for name, size in parts.items():
                part = f"{remote.path}/{name}"
                there = files.size(part)
                if there != size:
                    raise ValueError(
                        f"checkpoint {remote.path}: its part {name} has {there} bytes, but {size} were saved"
                    )
                files.get_file(part, str(scratch / name))
                read_archive(scratch / name, "checkpoint part", every_byte=True)
            # The .ckpt last, as in a save: who is killed in between leaves no checkpoint that is half there.
            for name in (*parts, checkpoint.name):
                publish(scratch / name, folder / name)
            return folder / checkpoint.name
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _best_of(remotes: list[Remote]) -> list[Remote]:
    """Return folders of best checkpoints, the better first.

    Each was uploaded because it was better than the one before.
    """
    best = [each for each in remotes if each.stem == "best"]
    return sorted(best, key=lambda each: each.upload, reverse=True)
