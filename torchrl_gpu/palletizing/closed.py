"""`ClosedSessions`: answers of closed sessions, kept for clients who missed them."""

from __future__ import annotations

import json
import re
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torchrl_gpu.palletizing.events import Plain
from torchrl_gpu.system import arguments
from torchrl_gpu.system.files import publish

FOLDER = "closed"
# Answers go after this time, or earlier where there are too many of them.
KEPT_S = 24 * 3600.0
MOST_KEPT = 1024
MOST_KEPT_BYTES = 2**26
_FORMAT = "torchrl_gpu closed packing session, 1"
# Bytes of one answer.
_MOST_BYTES = 2**24
_ID = re.compile(r"[0-9a-f]{12}")

Request = tuple[str, str | int]
"""Name of a session, and the request that closed it."""


@dataclass(frozen=True)
class _Closed:
    """A closed session, as its file holds it.

    Attributes:
        request: That closed it.
        closed_s: When, in seconds since 1970.
        answer: To that request.
    """

    request: Request
    closed_s: float
    answer: Plain

    def to_json(self) -> Plain:
        name, request = self.request
        return {
            "format": _FORMAT,
            "session": name,
            "request": request,
            "closed_s": self.closed_s,
            "answer": self.answer,
        }


@dataclass(frozen=True)
class _Kept:
    """File of an answer.

    Attributes:
        path: Of the file.
        closed_s: Seconds since 1970.
        size: Bytes.
    """

    path: Path
    closed_s: float
    size: int


class ClosedSessions:
    """Answers to `close` in a folder, by session and request.

    The newest ones are kept for `KEPT_S` seconds.

    A session is closed once its answer is in the folder. Its own file is removed after that: a program that ends
    between the two finds by `ids` that the session is closed.

    Args:
        folder: Holds a file ID.json of each answer; made with the first one.
        now: Seconds since 1970.

    Raises:
        ValueError: A file in the folder is not the answer of a closed session.
    """

    def __init__(self, folder: Path, now: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._now = now
        self._kept: OrderedDict[Request, _Kept] = OrderedDict()
        self.ids = set[str]()
        # Oldest first, as `remove_old` expects them.
        found = [(_read(path), path) for path in folder.glob("*.json")]
        found.sort(key=lambda each: each[0].closed_s)
        for closed, path in found:
            self.ids.add(path.stem)
            self._kept[closed.request] = _Kept(path, closed.closed_s, path.stat().st_size)
        self.remove_old()

    def add(self, session_id: str, name: str, request: str | int, answer: Plain) -> None:
        """Keep an answer.

        The session is closed once this returns.
        """
        self._folder.mkdir(exist_ok=True)
        closed = _Closed((name, request), self._now(), answer)
        path = self._folder / f"{session_id}.json"
        # A program that ends while it writes leaves no half file under the name.
        fresh = path.with_suffix(".json-new")
        fresh.write_text(json.dumps(closed.to_json()), encoding="utf-8")
        size = fresh.stat().st_size
        publish(fresh, path)
        # A session of the same name may have been closed by the same request before.
        before = self._kept.pop(closed.request, None)
        if before is not None and before.path != path:
            before.path.unlink(missing_ok=True)
        self.ids.add(session_id)
        self._kept[closed.request] = _Kept(path, closed.closed_s, size)
        self.remove_old()

    def answer(self, name: str, request: str | int) -> Plain | None:
        """Return the answer that a request got when it closed a session, if it is kept."""
        self.remove_old()
        kept = self._kept.get((name, request))
        return None if kept is None else _read(kept.path).answer

    def remove_old(self) -> None:
        """Remove answers whose time is over, and the oldest if there are too many."""
        size = sum(each.size for each in self._kept.values())
        while self._kept:
            request, oldest = next(iter(self._kept.items()))
            is_over = self._now() - oldest.closed_s >= KEPT_S
            if not is_over and len(self._kept) <= MOST_KEPT and size <= MOST_KEPT_BYTES:
                return
            oldest.path.unlink(missing_ok=True)
            self.ids.discard(oldest.path.stem)
            size -= oldest.size
            del self._kept[request]


def _read(path: Path) -> _Closed:
    """Read the file of an answer, and check it."""
    where = f"PackingSessions: {path}"
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError(f"more than {_MOST_BYTES:,} bytes")
        content = json.loads(path.read_bytes())
        if not isinstance(content, dict) or content.get("format") != _FORMAT or not _ID.fullmatch(path.stem):
            raise ValueError(f"no file of {_FORMAT!r}")
        closed_s = arguments.number(where, "closed_s", content.get("closed_s"))
        name = content.get("session")
        request = content.get("request")
        answer = content.get("answer")
        if not isinstance(name, str) or not isinstance(request, str | int) or not isinstance(answer, dict):
            raise ValueError("no session, request and answer")
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{where} is not the answer of a closed session: {reason}; move it away") from error
    return _Closed((name, request), closed_s, answer)
